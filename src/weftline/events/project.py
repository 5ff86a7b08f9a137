"""Projects the log to events: each entry is one event, or none.

An event depends on its entry alone, whatever came before it, so that a replay is what a live reader saw.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, cast

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType
from msgspec.json import Decoder
from msgspec.structs import replace

from weftline.events import classes as events
from weftline.events.classes import RETRYABLE, AnyEvent
from weftline.events.parts import effort_name
from weftline.failure import CallFailure, Failure, failed_as, for_timeline, hint_of, recovers_by, telemetry_of
from weftline.kernel import bodies
from weftline.kernel import entries as log
from weftline.kernel.context import ContextCompacted, ContextRestored
from weftline.kernel.control import CallClaimed, CallUnclaimed
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
from weftline.messages import File, Image, Text, UserPart, joined_text
from weftline.plan import agent_of, may_name_agent
from weftline.text.display import titled

HIDDEN = frozenset({RUN_NOTE, PROMPT_NOTE, CHILD_NOTE, ARGS_DELTA})
"""Kinds that only the details of a run are made from."""
_LARGE_BYTES = 64 * 1024
_MAX_REMEMBERED = 10_000

_decode = Decoder().decode
_agents: dict[tuple[str, int], str | None] = {}
"""For large runs, by id and size, as every follower gets this event, and searching 16 MB takes long."""


class Form(Struct, frozen=True):
    """How events contain JSON: `args` are a call's, `written` those that a model wrote, and `value` is any other."""

    args: Callable[[Raw], Any]
    written: Callable[[str], Any]
    value: Callable[[Raw], Any]


def object_of(args: str | bytes | Raw) -> dict[str, Any]:
    """Returns arguments as an object; empty if the model wrote something else."""
    try:
        value = _decode(args)
    except (DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _written(args: str) -> Raw:
    """Returns a call's arguments as the model wrote them, or an empty object if they are not a JSON object."""
    try:
        return Raw(args.encode()) if isinstance(_decode(args), dict) else Raw(b"{}")
    except (DecodeError, UnicodeEncodeError, RecursionError):
        return Raw(b"{}")


def _unchanged(raw: Raw) -> Raw:
    return raw


DECODED = Form(object_of, object_of, _decode)
"""For Python."""
STORED = Form(_unchanged, _written, _unchanged)
"""For an encoder, which splices the stored bytes into its payload. Nobody else can use such events."""


def project(head: Fact, body: bytes, run_id: str = "", seq: int = 0, form: Form = DECODED) -> AnyEvent | None:
    """Returns the event of an entry; None for entries that readers do not see."""
    of_fact = OF_FACTS.get(type(head))
    if of_fact is None:
        return None
    event = of_fact(head, body, form)
    if type(event) is events.RunStarted:
        return replace(event, run_id=run_id, seq=seq, agent=_agent_of_run(body, run_id))
    if event is None or form is STORED:
        return event  # payloads do not say where else an event is from
    return replace(event, run_id=run_id, seq=seq)


def _agent_of_run(body: bytes, run_id: str) -> str | None:
    if len(body) <= _LARGE_BYTES:
        return _agent(body)
    which = run_id, len(body)
    if which not in _agents:
        if len(_agents) >= _MAX_REMEMBERED:
            _agents.clear()
        _agents[which] = _agent(body)
    return _agents[which]


def _agent(body: bytes) -> str | None:
    return agent_of(bodies.decode_created(body).plan) if may_name_agent(body) else None


def _usd(cost_nusd: int | None) -> float | None:
    return None if cost_nusd is None else cost_nusd / 1_000_000_000


def _started(head: log.RunCreated, body: bytes, form: Form) -> events.RunStarted:
    return events.RunStarted()  # the agent depends on the run's id if the plan is large


def _restarted(head: log.AttemptStarted, body: bytes, form: Form) -> events.TurnRestarted | None:
    if head.attempt == 1:
        return None
    return events.TurnRestarted(turn=head.turn, attempt=head.attempt, reason=head.cause)


def _finished(head: log.TurnCompleted, body: bytes, form: Form) -> events.TurnFinished:
    message = bodies.decode_turn(body).message
    calls = ()
    if head.calls:
        calls = tuple([events.RequestedCall(id=c.id, name=c.name, args=form.written(c.args)) for c in message.calls])
    return events.TurnFinished(
        turn=head.turn,
        text=message.text,
        finish_reason=head.finish,
        calls=calls,
        provider_metadata=head.metadata,
    )


def _opened(head: log.CallOpened, body: bytes, form: Form) -> events.CallOpened | None:
    return None if head.blocked else _offer(head, body, form, parent=head.parent)


def _unclaimed(head: CallUnclaimed, body: bytes, form: Form) -> events.CallOpened | events.CallFellBack:
    if head.client is None:
        return events.CallFellBack(call_id=head.id, name=head.name, fallback=head.fallback, turn=head.turn)
    return _offer(head, body, form, attempt=head.attempt)


def _offer(
    head: log.CallOpened | CallUnclaimed, body: bytes, form: Form, *, parent: str = "", attempt: int = 1
) -> events.CallOpened:
    opened = bodies.decode_opened(body)
    return events.CallOpened(
        call_id=head.id,
        name=head.name,
        args=form.args(opened.args),
        turn=head.turn,
        client=head.client,
        parent_call=parent or None,
        attempt=attempt,
        display_hint=opened.hint or titled(head.name),
        peer=None if head.client is None else _peer(opened, form),
    )


def _peer(opened: bodies.OpenedBody, form: Form) -> events.Peer | None:
    def value(raw: Raw | UnsetType | None) -> Any:
        return None if raw is UNSET or raw is None else form.value(raw)

    match opened.peer:
        case bodies.McpPeer(server, tool, info, annotations):
            return events.Peer(
                mcp_server=server, mcp_tool_name=tool, mcp_server_info=value(info), annotations=value(annotations)
            )
        case bodies.A2APeer(card):
            return events.Peer(agent_card=value(card))
        case None:
            return None


def _claimed(head: CallClaimed, body: bytes, form: Form) -> events.CallClaimed | None:
    if head.renewed:
        return None
    return events.CallClaimed(call_id=head.id, name=head.name, by=head.by, lease_ms=head.lease_us // 1000)


def _child_started(head: log.CallStarted, body: bytes, form: Form) -> events.ChildStarted | None:
    if not head.child:
        return None
    return events.ChildStarted(call_id=head.id, name=head.name, child_id=head.child, turn=head.turn)


def _child_ended(head: log.ChildEnded, body: bytes, form: Form) -> events.ChildEnded:
    return events.ChildEnded(
        call_id=head.id,
        name=head.name,
        child_id=head.child,
        status=head.status,
        turns=head.turns,
        usage=head.usage,
        cost_usd=_usd(head.cost_nusd),
    )


def _closed(head: log.CallClosed, body: bytes, form: Form) -> events.CallFinished:
    closed = bodies.decode_closed(body)
    text = joined_text(closed.parts)
    by_client = head.client is not None and head.how in ("returned", "failed", "timeout")
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
        by_client=by_client,
        args={} if by_client or closed.args is UNSET else form.args(closed.args),
        attachments=() if by_client else _attachments(closed.parts),
    )


def call_failure(head: log.CallClosed, stored: Failure | None, text: str) -> CallFailure | None:
    """Returns a failure as followers of a run see it. `stored` is what is known besides how the call was closed."""
    kind, recovery = failed_as(head), recovers_by(head)
    if kind is None or recovery is None:
        return None
    return CallFailure(kind, recovery, hint_of(head, tool=head.name, message=text, failure=stored))


def _attachments(parts: tuple[UserPart, ...]) -> tuple[events.Attachment, ...]:
    if len(parts) == 1 and type(parts[0]) is Text:
        return ()
    return tuple([_attachment(part) for part in parts if not isinstance(part, Text)])


def _attachment(part: Image | File) -> events.Attachment:
    if isinstance(part, Image):
        return events.Attachment("image", part.media_type)
    return events.Attachment("audio" if part.media_type.startswith("audio/") else "file", part.media_type)


def _asked(head: log.AwaitOpened, body: bytes, form: Form) -> events.AwaitOpened:
    asked = bodies.decode_await(body)
    return events.AwaitOpened(
        id=head.id,
        kind=head.kind,
        question=asked.prompt,
        name=asked.name,
        args=form.args(asked.args),
        call_id=asked.call,
        options=asked.options,
        clarification=asked.clarification,
        approvers=asked.approvers,
        multiple=asked.multiple,
        turn=head.turn,
        digest=head.digest,
        timeout_ms=None if head.timeout_us is None else head.timeout_us // 1000,
        called_at=asked.called_at or None,
        idempotency_key=asked.key,
    )


def _answered(head: log.AwaitClosed, body: bytes, form: Form) -> events.AwaitClosed:
    answer = bodies.decode_answer(body) if body else bodies.AnswerBody()
    remember = answer.remember
    return events.AwaitClosed(
        id=head.id,
        outcome=head.outcome,
        by=head.by,
        reason=answer.reason,
        args=None if answer.args is UNSET else form.args(answer.args),
        labels=answer.labels,
        digest=head.digest,
        remember=None if remember is None else form.value(Raw(bodies.encode(remember))),
    )


def _taken(head: log.MessagesTaken, body: bytes, form: Form) -> events.MessagesTaken:
    return events.MessagesTaken(texts=bodies.decode_taken(body).texts if body else ())


def _rejected(head: log.OutputRejected, body: bytes, form: Form) -> events.OutputRejected:
    return events.OutputRejected(turn=head.turn, message=bodies.decode_text(body).text if body else "")


def _looped(head: log.LoopDetected, body: bytes, form: Form) -> events.LoopDetected:
    return events.LoopDetected(count=head.count, hard=head.hard, tools=head.tools)


def _over_budget(head: log.BudgetExceeded, body: bytes, form: Form) -> events.BudgetExceeded:
    return events.BudgetExceeded(tool=head.tool, max_calls=head.max_calls, call_index=head.call_index)


def _policy(head: PolicyDecided, body: bytes, form: Form) -> events.PolicyDecided:
    decision = bodies.decode_policy(body) if body else bodies.PolicyBody()
    return events.PolicyDecided(
        turn=head.turn,
        allowed_tools=head.allowed,
        calls_left=head.calls_left,
        failures_left=head.failures_left,
        disable_tools=head.disable_tools,
        failed=head.failed,
        labels=decision.labels,
        metadata=None if decision.metadata is UNSET else form.value(decision.metadata),
    )


def _forced(head: log.FinalForced, body: bytes, form: Form) -> events.FinalForced:
    return events.FinalForced(reason=head.reason, level=head.level, unit=head.unit)


def _compacted(head: ContextCompacted, body: bytes, form: Form) -> events.ContextCompacted:
    summary = bodies.decode_summary(body)
    return events.ContextCompacted(
        summary=summary.text,
        tokens_before=head.before,
        tokens_after=head.after,
        model=summary.model,
        inherited=not head.number,
        usage=head.usage,
        cost_usd=_usd(head.cost_nusd),
    )


def _restored(head: ContextRestored, body: bytes, form: Form) -> events.ContextRestored:
    return events.ContextRestored(by=head.requested_by)


def _paused(head: log.RunPaused, body: bytes, form: Form) -> events.RunPaused:
    return events.RunPaused(reason=head.reason, by=head.requested_by, labels=_control(body).labels)


def _resumed(head: log.RunResumed, body: bytes, form: Form) -> events.RunResumed:
    control = _control(body)
    return events.RunResumed(
        notes=head.notes, by=head.requested_by, labels=control.labels, message_count=control.messages
    )


def _control(body: bytes) -> bodies.ControlBody:
    return bodies.decode_control(body) if body else bodies.ControlBody()


def _ended(head: log.RunEnded, body: bytes, form: Form) -> events.RunEnded:
    ended = bodies.decode_ended(body)
    finish = None
    if head.status == "succeeded":
        finish = head.finish
    elif ended.partial_text is not None:
        finish = failed_finish(head)
    model = head.model
    return events.RunEnded(  # with more than 15 keyword arguments, all of them would be put into a dictionary first
        head.status,
        ended.text or ended.partial_text or "",
        ended.error,
        head.code,
        retryable=head.code in RETRYABLE,
        reason=head.reason,
        turns=head.turns,
        usage=head.usage,
        cost_usd=_usd(head.cost_nusd),
        by=head.requested_by,
        labels=ended.labels,
        attempts=head.attempts,
        model=events.ModelUsed(model.id, model.provider, model.vendor_id, effort_name(model.reasoning)),
        finish_reason=finish,
        partial_text=ended.partial_text,
        provider_error=ended.provider,
        usage_estimated=head.estimated,
    )


def failed_finish(head: log.RunEnded) -> str | None:
    """Returns the finish reason of the answer that a failed run shows; None if it broke off."""
    if head.code == "truncation":
        # Some providers raise this as an error; then `head.finish` is from an earlier turn.
        return "max_tokens"
    return head.finish if head.code == "invalid_output" else None


_OfFact: TypeAlias = Callable[[Any, bytes, Form], AnyEvent | None]

OF_FACTS: dict[type[Fact], _OfFact] = {
    log.RunCreated: _started,
    log.AttemptStarted: _restarted,
    log.TurnCompleted: _finished,
    log.CallStarted: _child_started,
    log.ChildEnded: _child_ended,
    log.CallOpened: _opened,
    CallClaimed: _claimed,
    CallUnclaimed: _unclaimed,
    log.CallClosed: _closed,
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
"""All other facts are internal; a test lists them."""


def _provider_called(body: bytes) -> events.ProviderCalled:
    note = bodies.decode_note(body)
    call = note.call
    return events.ProviderCalled(
        name=call.name,
        status=call.status,
        result=bodies.provider_result(call),
        turn=note.turn,
        call_id=call.id,
        provider=call.provider,
        args={} if call.input is UNSET else _json_or_text(call.input),
    )


def _json_or_text(raw: Raw) -> Any:
    try:
        return _decode(raw)
    except (DecodeError, RecursionError):
        return bytes(raw).decode(errors="replace")


def _progress(body: bytes) -> events.CallProgress:
    note = bodies.decode_progress(body)
    return events.CallProgress(
        call_id=note.call, name=note.name, progress=note.progress, total=note.total, message=note.message
    )


def _note(body: bytes, form: Form = DECODED) -> events.Note:
    note = bodies.decode_tool_note(body)
    return events.Note(call_id=note.call, kind=note.kind, data=form.value(note.data), name=note.name)


OBSERVED: dict[str, Callable[[bytes], AnyEvent]] = {
    TEXT_DELTA: Decoder(events.TextDelta).decode,
    THINKING_DELTA: Decoder(events.ThinkingDelta).decode,
    PROVIDER_CALL: _provider_called,
    TOOL_PROGRESS: _progress,
    TOOL_NOTE: _note,
}
"""The same for observations, which have no head: deltas and notes. Without `run_id` and `seq`."""
OBSERVED_AS_STORED = OBSERVED | {TOOL_NOTE: partial(_note, form=STORED)}
