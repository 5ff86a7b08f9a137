"""The calls of a run, for its result and for its own code."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.json import decode, encode

from weftline.agent.results import CallRecord
from weftline.events.project import call_failure, object_of
from weftline.failure import Failure, telemetry_of
from weftline.kernel.entries import AwaitKind
from weftline.messages import joined_text
from weftline.runtime.agent_code.code import PastCall
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


HISTORY_BYTES = 65_536
"""A larger result is left out of the calls that hooks see; it can be loaded by the call's id."""


def record_of(call: PastCall, *, whole: bool = True) -> CallRecord:
    """Returns the record of a call; with `whole`, it has its result whatever the size."""
    head, text = call.head, joined_text(call.parts)
    size = len(text) if text.isascii() else len(text.encode(errors="replace"))
    omitted = not whole and size > HISTORY_BYTES
    return CallRecord(
        id=head.id,
        name=head.name,
        args=object_of(call.args),
        ok=not head.is_error,
        result="" if omitted else text,
        how=head.how,
        turn=head.turn,
        parent_call=head.parent or None,
        failure=_failure(call, text),
        telemetry=telemetry_of(call.telemetry, active_us=head.active_us),
        bounds=call.bounds,
        server_data=() if omitted else call.server_data,
        child=call.child,
        result_omitted=omitted,
        result_omitted_reason="workflow_budget" if omitted else None,
        result_bytes=size,
    )


def _failure(call: PastCall, text: str) -> Failure | None:
    """Returns what is known about a failed call. Its kind and recovery are derived if they are not stored."""
    failure = call_failure(call.head, call.failure, text) if call.head.is_error else None
    if failure is None:
        return None
    stored = call.failure
    message, causes = (text, ()) if stored is None else (stored.message, stored.causes)
    return Failure(message, failure.kind, failure.recovery, failure.hint, causes)
