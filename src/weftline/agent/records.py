"""The calls of a run, for its result and for its own code."""

from __future__ import annotations

from weftline.agent.results import CallRecord
from weftline.events.project import call_failure, object_of
from weftline.failure import Failure
from weftline.messages import joined_text
from weftline.outcome import telemetry_of
from weftline.runtime.agent_code.code import PastCall

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
