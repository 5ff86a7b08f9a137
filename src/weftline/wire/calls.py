"""The calls of runs in the protocol's format, and what a fork may change."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from weftline.kernel.entries import Effect, How

_States: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"enum": ["awaiting", "opened", "started", "closed", "in_doubt"]})
]
_Effect: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(Effect))})]
_How: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(How))})]
_Time: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class Call(Struct, rename="camel", kw_only=True):
    """One call of a run, from its log."""

    run_id: str
    tool_use_id: str
    turn: int
    index: int
    name: str
    digest: str
    """The digest of the final arguments."""
    idempotency_key: str
    effect: _Effect
    state: _States
    how: _How | None
    """How it was closed."""
    attempts: int
    opened_at: _Time
    started_at: _Time | None
    closed_at: _Time | None
    client: str | None
    child_run_id: str | None
    parent_tool_use_id: str | None
    """The call whose code made this call; absent if the model made it."""
    args: Any = UNSET
    """The final arguments. These and the result are left out unless `contents` was asked for."""
    result: str | UnsetType | None = UNSET
    """What the model reads; null until there is a result."""
    ok: bool | UnsetType | None = UNSET


class CallPage(Struct, rename="camel"):
    calls: list[Call]
    next_cursor: str | None
