"""The approvals that people gave a run, for Python code to read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.json import decode, encode

from weftline.kernel.entries import AwaitKind
from weftline.runtime.people.grants import LoggedGrant


class GrantUse(Struct, frozen=True):
    """A call that began with a grant."""

    call_id: str
    at: datetime


class Grant(Struct, frozen=True, kw_only=True):
    """One approval of a call. See `Engine.grants`."""

    run_id: str
    await_id: str
    kind: AwaitKind
    """`confirm`, or `doubt`: the approval to repeat a call that a crash cut off."""
    call_id: str
    """The call that was asked about."""
    name: str
    """The name of the tool."""
    args: dict[str, Any]
    """The exact arguments that were approved."""
    digest: str
    edited: bool
    """Whether the approver changed the arguments."""
    shown_args: dict[str, Any]
    """The arguments that the approver saw."""
    shown_digest: str
    by: str
    at: datetime
    expires_at: datetime
    """A call that has not begun by then needs a new approval."""
    remember: bool | dict[str, Any]
    """Which later calls of the run it covers: all, those with these arguments, or none."""
    labels: dict[str, str]
    used: tuple[GrantUse, ...]
    """The calls that began under it. There can be several if it covers later calls."""


def to_grant(one: LoggedGrant) -> Grant:
    return Grant(
        run_id=one.run_id,
        await_id=one.await_id,
        kind=one.kind,
        call_id=one.call_id,
        name=one.name,
        args=decode(one.args),
        digest=one.digest,
        edited=one.edited,
        shown_args=decode(one.shown_args),
        shown_digest=one.shown_digest,
        by=one.by,
        at=_time(one.at),
        expires_at=_time(one.expires_at),
        remember=decode(encode(one.remembered)),  # its values are JSON
        labels=one.labels,
        used=tuple([GrantUse(use.call_id, _time(use.at)) for use in one.used]),
    )


def _time(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1_000_000, UTC)
