"""What people allowed runs to do, as the protocol shows it."""

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
    """One approval of a call, as the log of its run has it."""

    run_id: str
    await_id: str
    kind: Annotated[str, Meta(extra_json_schema={"enum": ["confirm", "doubt"]})]
    tool_use_id: str
    name: str
    args: _JsonObject
    """Those that it was given for, exactly."""
    digest: str
    edited: bool
    shown_args: _JsonObject
    """Those that were asked about."""
    shown_digest: str
    by: str
    by_name: str | None
    """What people know whoever that is by, today: the name of the key or the app, the user's address."""
    at: _Time
    expires_at: _Time
    remember: bool | dict[str, Any]
    """Which later calls it covers too, as it was said; false if none."""
    labels: dict[str, str]
    used: list[GrantUse]


class GrantList(Struct):
    grants: list[Grant]
