"""Questions to people and what people allowed, in the protocol's format."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, get_args

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from weftline.events.parts import WireClarification
from weftline.kernel.entries import AwaitKind, AwaitOutcome

KINDS: tuple[str, ...] = get_args(AwaitKind)
Kind: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(KINDS)})]
Outcome: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(AwaitOutcome))})]
_Time: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
_JsonObject: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


class OpenAwait(Struct, rename="camel"):
    """A question to a person that has no answer yet."""

    id: str
    run_id: str
    """The run that asks, to which answers go."""
    root_run_id: str
    """The run at the top, which is another one if a subagent asks."""
    session_id: str | None
    agent_id: str | None
    run_name: str
    kind: Kind
    question: str
    name: str
    """The name of the tool."""
    args: _JsonObject
    """The exact arguments that will run."""
    tool_use_id: str
    options: tuple[str, ...]
    multiple: bool
    clarification: WireClarification | None
    """For a `clarification`: what the failed call lacks."""
    opened_at: _Time
    expires_at: _Time | None
    idempotency_key: str | UnsetType = UNSET
    """For a call in doubt."""
    called_at: _Time | UnsetType = UNSET
    """For a call in doubt: when it began."""
    approvers: tuple[str, ...] | UnsetType = UNSET
    """Who may decide; left out if anybody may."""
    error_code: str | UnsetType = UNSET
    """`log_damaged` if its stored data is unreadable; left out otherwise."""


class AwaitPage(Struct, rename="camel"):
    awaits: list[OpenAwait]
    next_cursor: str | None


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
