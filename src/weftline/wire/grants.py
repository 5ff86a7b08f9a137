"""The approvals of runs, in the protocol's format."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Raw, Struct

_Time: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
_JsonObject: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


class GrantUse(Struct, rename="camel"):
    """A call that began with a grant."""

    tool_use_id: str
    at: _Time


class Grant(Struct, rename="camel", kw_only=True):
    """One approval of a call, from the log of its run."""

    run_id: str
    await_id: str
    kind: Annotated[str, Meta(extra_json_schema={"enum": ["confirm", "doubt"]})]
    tool_use_id: str
    name: str
    args: _JsonObject
    """The exact arguments that were approved."""
    digest: str
    edited: bool
    shown_args: _JsonObject
    """The arguments that the approver saw."""
    shown_digest: str
    by: str
    by_name: str | None
    """The approver's current display name: the name of the key or app, or the user's address."""
    at: _Time
    expires_at: _Time
    remember: bool | dict[str, Any]
    """Which later calls it covers, as given; false if none."""
    labels: dict[str, str]
    used: list[GrantUse]


class GrantList(Struct):
    grants: list[Grant]
