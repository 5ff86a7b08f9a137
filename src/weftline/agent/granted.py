"""What people allowed a run to do, as Python code reads it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.json import decode, encode

from weftline.kernel.entries import AwaitKind
from weftline.runtime.grants import LoggedGrant


class GrantUse(Struct, frozen=True):
    """A call that began with a grant."""

    call_id: str
    at: datetime


class Grant(Struct, frozen=True, kw_only=True):
    """One approval of a call. See `Engine.grants`."""

    run_id: str
    await_id: str
    kind: AwaitKind
    """`confirm`, or `doubt`: a call that a crash cut off was to be carried out again."""
    call_id: str
    """The call that was asked about."""
    name: str
    """The tool's."""
    args: dict[str, Any]
    """Those that it was given for, exactly."""
    digest: str
    edited: bool
    """Whether these are others than those that were asked about."""
    shown_args: dict[str, Any]
    """Those that were asked about."""
    shown_digest: str
    by: str
    at: datetime
    expires_at: datetime
    """A call that did not begin by then is asked about again."""
    remember: bool | dict[str, Any]
    """Which later calls of the run it covers, too: all, those with these arguments, or none."""
    labels: dict[str, str]
    used: tuple[GrantUse, ...]
    """The calls that began with it: one, none, or more if it covers others."""


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
