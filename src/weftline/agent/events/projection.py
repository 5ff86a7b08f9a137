"""Projects the entries of a run to its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from weftline import events
from weftline.agent.results import RETRYABLE
from weftline.events import AnyEvent
from weftline.failure import CallFailure, Failure, failed_as, hint_of, recovers_by
from weftline.kernel import bodies
from weftline.kernel import entries as log
from weftline.kernel.context import ContextCompacted, ContextRestored
from weftline.kernel.control import CallClaimed, CallUnclaimed
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import Fact
from weftline.kernel.notes import (
    ARGS_DELTA,
    CHILD_NOTE,
    PROMPT_NOTE,
    PROVIDER_CALL,
    RUN_NOTE,
    TEXT_DELTA,
    THINKING_DELTA,
    TOOL_NOTE,
    TOOL_PROGRESS,
)
from weftline.kernel.policy import PolicyDecided
from weftline.messages import joined_text
from weftline.outcome import for_timeline, telemetry_of
from weftline.plan import agent_of
from weftline.runtime.decoding import check_observations, facts_in, require_skippable
from weftline.runtime.engine import EntryBatch
from weftline.store.rows import Item
from weftline.text.display import titled

_decode = msgspec.json.Decoder().decode
_decode_delta = msgspec.json.Decoder(events.TextDelta).decode
_decode_thought = msgspec.json.Decoder(events.ThinkingDelta).decode


def events_of(batch: EntryBatch) -> Iterator[AnyEvent]:
    """Yields the events of a batch: at most one per entry, whatever came before it.

    Raises `StoreError` (`log_damaged`) at an unreadable entry; one of newer code is an `UnknownEvent`, unless it is the
    end of the run: that raises `Conflict` (`unsupported_run`).
    """
    run_id, facts = batch.run_id, facts_in(batch)
    for item in batch.items:
        try:
            if not item.head:
                if batch.heads is None:
                    check_observations(item)
                if (observed := _OBSERVED.get(item.kind)) is not None:
                    for seq, body in enumerate(item.body.split(b"\n"), item.seq):
                        if batch.after < seq <= batch.last_seq:
                            yield replace(observed(body), run_id=run_id, seq=seq)
                continue
            head = next(facts)
            of_fact = _FACTS.get(type(head))
            event = None if of_fact is None else of_fact(head, item.body)
        except UNREADABLE:
            require_skippable(batch, item)
            yield from _unknown(batch, item)
            continue
        if event is not None:
            yield replace(event, run_id=run_id, seq=item.seq)


def _unknown(batch: EntryBatch, item: Item) -> Iterator[AnyEvent]:
    if item.kind not in _HIDDEN:
        for seq in range(max(item.seq, batch.after + 1), min(item.last_seq, batch.last_seq) + 1):
            yield events.UnknownEvent(run_id=batch.run_id, seq=seq, type=item.kind)


def _started(head: log.RunCreated, body: bytes) -> AnyEvent:
    return events.RunStarted(agent=agent_of(bodies.decode_created(body).plan))


def _restarted(head: log.AttemptStarted, body: bytes) -> AnyEvent | None:
    if head.attempt == 1:
        return None
    return events.TurnRestarted(turn=head.turn, attempt=head.attempt, reason=head.cause)


def _finished(head: log.TurnCompleted, body: bytes) -> AnyEvent:
    turn = bodies.decode_turn(body)
    message = turn.message
    calls = tuple(
        [events.RequestedCall(id=call.id, name=call.name, args=object_of(call.args)) for call in message.calls]
    )
    return events.TurnFinished(turn=head.turn, text=message.text, finish_reason=head.finish, calls=calls)


def _opened(head: log.CallOpened, body: bytes) -> AnyEvent | None:
    if head.blocked:
        return None
    opened = bodies.decode_opened(body)
    return events.CallOpened(
        call_id=head.id,
        name=head.name,
        args=object_of(opened.args),
        turn=head.turn,
        client=head.client,
        parent_call=head.parent or None,
        display_hint=opened.hint or titled(head.name),
    )


def _claimed(head: CallClaimed, body: bytes) -> AnyEvent | None:
    if head.renewed:
        return None
    return events.CallClaimed(call_id=head.id, name=head.name, by=head.by, lease_ms=head.lease_us // 1000)


def _unclaimed(head: CallUnclaimed, body: bytes) -> AnyEvent:
    if head.fallback:
        return events.CallFellBack(call_id=head.id, name=head.name, fallback=head.fallback, turn=head.turn)
    opened = bodies.decode_opened(body)
    return events.CallOpened(
        call_id=head.id,
        name=head.name,
        args=object_of(opened.args),
        turn=head.turn,
        client=head.client,
        attempt=head.attempt,
        display_hint=opened.hint or titled(head.name),
    )


def _child_started(head: log.CallStarted, body: bytes) -> AnyEvent | None:
    if not head.child:
        return None
    return events.ChildStarted(call_id=head.id, name=head.name, child_id=head.child, turn=head.turn)


def _child_ended(head: log.ChildEnded, body: bytes) -> AnyEvent:
    return events.ChildEnded(
        call_id=head.id,
        name=head.name,
        child_id=head.child,
        status=head.status,
        turns=head.turns,
        usage=head.usage,
        cost_usd=None if head.cost_nusd is None else head.cost_nusd / 1_000_000_000,
    )


def finished_call(head: log.CallClosed, body: bytes) -> events.CallFinished:
    closed = bodies.decode_closed(body)
    text = joined_text(closed.parts)
    return events.CallFinished(
        call_id=head.id,
        name=head.name,
        ok=not head.is_error,
        result=text,
        how=head.how,
        parent_call=head.parent or None,
        failure=call_failure(head, closed.failure, text) if head.is_error else None,
        telemetry=telemetry_of(closed.telemetry, active_us=head.active_us),
        bounds=closed.bounds,
        server_data=for_timeline(closed.server_data),
        child=closed.child,
    )


def call_failure(head: log.CallClosed, stored: Failure | None, text: str) -> CallFailure | None:
    """Returns a failure as followers of a run see it. `stored` is what is known besides how the call was closed."""
    kind, recovery = failed_as(head), recovers_by(head)
    if kind is None or recovery is None:
        return None
    hint = hint_of(head, tool=head.name, message=text, failure=stored)
    return CallFailure(kind, recovery, hint)


def _asked(head: log.AwaitOpened, body: bytes) -> AnyEvent:
    asked = bodies.decode_await(body)
    return events.AwaitOpened(
        id=head.id,
        kind=head.kind,
        question=asked.prompt,
        name=asked.name,
        args=object_of(asked.args),
        call_id=asked.call,
        options=asked.options,
        clarification=asked.clarification,
        approvers=asked.approvers,
    )


def _answered(head: log.AwaitClosed, body: bytes) -> AnyEvent:
    answer = bodies.decode_answer(body) if body else bodies.AnswerBody()
    args = None if answer.args is UNSET else object_of(answer.args)
    return events.AwaitClosed(
        id=head.id, outcome=head.outcome, by=head.by, reason=answer.reason, args=args, labels=answer.labels
    )


def _taken(head: log.MessagesTaken, body: bytes) -> AnyEvent:
    return events.MessagesTaken(texts=bodies.decode_taken(body).texts if body else ())


def _rejected(head: log.OutputRejected, body: bytes) -> AnyEvent:
    return events.OutputRejected(turn=head.turn, message=bodies.decode_text(body).text if body else "")


def _ended(head: log.RunEnded, body: bytes) -> AnyEvent:
    ended = bodies.decode_ended(body)
    return events.RunEnded(
        status=head.status,
        text=ended.text or ended.partial_text or "",
        error=ended.error,
        code=head.code,
        retryable=head.code in RETRYABLE,
        reason=head.reason,
        turns=head.turns,
        usage=head.usage,
        cost_usd=None if head.cost_nusd is None else head.cost_nusd / 1_000_000_000,
        by=head.requested_by,
        labels=ended.labels,
    )


def _looped(head: log.LoopDetected, body: bytes) -> AnyEvent:
    return events.LoopDetected(count=head.count, hard=head.hard, tools=head.tools)


def _over_budget(head: log.BudgetExceeded, body: bytes) -> AnyEvent:
    return events.BudgetExceeded(tool=head.tool, max_calls=head.max_calls, call_index=head.call_index)


def _policy(head: PolicyDecided, body: bytes) -> AnyEvent:
    return events.PolicyDecided(
        turn=head.turn,
        allowed_tools=head.allowed,
        calls_left=head.calls_left,
        failures_left=head.failures_left,
        disable_tools=head.disable_tools,
        failed=head.failed,
        labels=bodies.decode_policy(body).labels if body else {},
    )


def _forced(head: log.FinalForced, body: bytes) -> AnyEvent:
    return events.FinalForced(reason=head.reason)


def _compacted(head: ContextCompacted, body: bytes) -> AnyEvent:
    summary = bodies.decode_summary(body)
    return events.ContextCompacted(
        summary=summary.text,
        tokens_before=head.before,
        tokens_after=head.after,
        model=summary.model,
        inherited=not head.number,
        usage=head.usage,
        cost_usd=None if head.cost_nusd is None else head.cost_nusd / 1_000_000_000,
    )


def _restored(head: ContextRestored, body: bytes) -> AnyEvent:
    return events.ContextRestored(by=head.requested_by)


def _paused(head: log.RunPaused, body: bytes) -> AnyEvent:
    return events.RunPaused(reason=head.reason, by=head.requested_by, labels=_control(body).labels)


def _resumed(head: log.RunResumed, body: bytes) -> AnyEvent:
    control = _control(body)
    return events.RunResumed(
        notes=head.notes, by=head.requested_by, labels=control.labels, message_count=control.messages
    )


def _control(body: bytes) -> bodies.ControlBody:
    return bodies.decode_control(body) if body else bodies.ControlBody()


_FACTS: dict[type[Fact], Callable[[Any, bytes], AnyEvent | None]] = {
    log.RunCreated: _started,
    log.AttemptStarted: _restarted,
    log.TurnCompleted: _finished,
    log.CallStarted: _child_started,
    log.ChildEnded: _child_ended,
    log.CallOpened: _opened,
    CallClaimed: _claimed,
    CallUnclaimed: _unclaimed,
    log.CallClosed: finished_call,
    log.AwaitOpened: _asked,
    log.AwaitClosed: _answered,
    log.MessagesTaken: _taken,
    log.OutputRejected: _rejected,
    log.LoopDetected: _looped,
    log.BudgetExceeded: _over_budget,
    PolicyDecided: _policy,
    log.FinalForced: _forced,
    ContextCompacted: _compacted,
    ContextRestored: _restored,
    log.RunPaused: _paused,
    log.RunResumed: _resumed,
    log.RunEnded: _ended,
}


def _provider_called(body: bytes) -> AnyEvent:
    note = bodies.decode_note(body)
    return events.ProviderCalled(
        name=note.call.name,
        status=note.call.status,
        result=bodies.provider_result(note.call),
        turn=note.turn,
    )


def _progress(body: bytes) -> AnyEvent:
    note = bodies.decode_progress(body)
    return events.CallProgress(
        call_id=note.call, name=note.name, progress=note.progress, total=note.total, message=note.message
    )


def _note(body: bytes) -> AnyEvent:
    note = bodies.decode_tool_note(body)
    return events.Note(call_id=note.call, kind=note.kind, data=_decode(note.data))


_OBSERVED: dict[str, Callable[[bytes], AnyEvent]] = {
    TEXT_DELTA: _decode_delta,
    THINKING_DELTA: _decode_thought,
    PROVIDER_CALL: _provider_called,
    TOOL_PROGRESS: _progress,
    TOOL_NOTE: _note,
}


_HIDDEN = frozenset({RUN_NOTE, PROMPT_NOTE, CHILD_NOTE, ARGS_DELTA})
"""Kinds that only `weftline.details` reports."""


def object_of(args: str | bytes | Raw) -> dict[str, Any]:
    """Returns arguments as an object; empty if the model wrote something else."""
    try:
        value = _decode(args)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
