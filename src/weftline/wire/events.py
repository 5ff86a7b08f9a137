"""Projects the log to the protocol's events: each entry is one event, or none.

An event depends on the stored entry alone, so that a replay is byte for byte what a live reader saw. Frames are
spliced: the payload is encoded once and appears twice in the frame, flat and under `data`, because real clients need
both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import UNSET, DecodeError, Raw, ValidationError
from msgspec.json import decode, encode
from msgspec.structs import asdict

from weftline.kernel import bodies
from weftline.kernel.context import (
    CompactionFailed,
    CompactionStarted,
    ContextCompacted,
    ContextMeasured,
    ContextRestored,
)
from weftline.kernel.control import CallClaimed, CallUnclaimed, DeployAdopted
from weftline.kernel.entries import (
    AttemptFailed,
    AttemptStarted,
    AwaitClosed,
    AwaitOpened,
    AwaitPassed,
    BudgetExceeded,
    CallAsked,
    CallClosed,
    CallGated,
    CallOpened,
    CallStarted,
    CancelRequested,
    ChildEnded,
    ChildWaits,
    Fact,
    FinalForced,
    HistoryPinned,
    InstructionsRendered,
    LoopDetected,
    MessageQueued,
    MessagesTaken,
    OutputAccepted,
    OutputRejected,
    ResultsOverBudget,
    RunAdopted,
    RunCreated,
    RunEnded,
    RunPaused,
    RunResumed,
    StateChanged,
    TimerFired,
    TurnCompleted,
    decode_fact,
)
from weftline.kernel.policy import BudgetRefused, CapReached, PolicyDecided, RunUnattended
from weftline.messages import File, Image, Text, joined_text
from weftline.outcome import for_timeline, preview_of
from weftline.text.display import titled
from weftline.wire.failures import to_wire_failure, to_wire_telemetry
from weftline.wire.hints import WireBounds, WireLink, to_wire_clarification
from weftline.wire.observed import excerpt
from weftline.wire.responses import iso
from weftline.wire.run_responses import tokens, usage_triple
from weftline.wire.started import started_event

ERROR_CLASSES = frozenset(
    {
        "rate_limit",
        "overloaded",
        "server",
        "context_window",
        "truncation",
        "invalid_request",
        "auth",
        "timeout",
        "local_timeout",
        "upstream_deadline",
        "unknown",
    }
)
RETRYABLE_CLASSES = frozenset({"rate_limit", "overloaded", "server", "timeout", "upstream_deadline"})
RESULT_SUBTYPES = {"max_tool_turns": "error_max_tool_turns", "local_timeout": "error_local_tool_timeout"}
"""Failures that end in a `result` event; all others end in an `error` event."""
TERMINAL_EVENTS = frozenset({"result", "error", "cancelled"})


def project(head: Fact, body: bytes, *, run_id: str) -> tuple[str, bytes] | None:
    """Returns the event of an entry and its payload, a JSON object; None for entries that clients do not see."""
    projection = PROJECTIONS.get(type(head))
    if projection is not None:
        return projection(head, body)
    if isinstance(head, RunCreated):
        return "started", started_event(body, run_id=run_id)
    return None


def project_stored(head: bytes, body: bytes, *, run_id: str) -> tuple[str, bytes] | None:
    """Like `project`, for a stored head. An unknown entry from newer code is left out."""
    try:
        fact = decode_fact.decode(head)
    except ValidationError:
        return None
    return project(fact, body, run_id=run_id)


def _turn_restarted(head: AttemptStarted, body: bytes) -> tuple[str, bytes] | None:
    if head.attempt == 1:
        return None
    return "turn_restarted", encode({"turn": head.turn, "attempt": head.attempt, "reason": head.cause})


def _child_started(head: CallStarted, body: bytes) -> tuple[str, bytes] | None:
    if not head.child:
        return None
    payload = {"toolUseId": head.id, "name": head.name, "childRunId": head.child, "turn": head.turn}
    return "child_started", encode(payload)


def _child_ended(head: ChildEnded, body: bytes) -> tuple[str, bytes]:
    payload: dict[str, Any] = {
        "toolUseId": head.id,
        "name": head.name,
        "childRunId": head.child,
        "status": head.status,
        "turns": head.turns,
        "tokens": tokens(head.usage),
    }
    if head.cost_nusd is not None:
        payload["costUsd"] = head.cost_nusd / 1_000_000_000
    return "child_ended", encode(payload)


def _await_opened(head: AwaitOpened, body: bytes) -> tuple[str, bytes]:
    asked = bodies.decode_await(body)
    payload: dict[str, Any] = {
        "awaitId": head.id,
        "kind": head.kind,
        "question": asked.prompt,
        "name": asked.name,
        "args": asked.args,
        "toolUseId": asked.call,
        "options": asked.options,
        "multiple": asked.multiple,
        "digest": head.digest,
        "turn": head.turn,
    }
    if asked.key:
        payload["idempotencyKey"] = asked.key
    if asked.called_at:
        payload["calledAt"] = iso(asked.called_at)
    if head.timeout_us is not None:
        payload["timeoutMs"] = head.timeout_us // 1000
    if asked.approvers:
        payload["approvers"] = asked.approvers
    if asked.clarification is not None:
        payload["clarification"] = to_wire_clarification(asked.clarification)
    return "await_opened", encode(payload)


def _await_closed(head: AwaitClosed, body: bytes) -> tuple[str, bytes]:
    answer = bodies.decode_answer(body) if body else bodies.AnswerBody()
    payload: dict[str, Any] = {"awaitId": head.id, "outcome": head.outcome, "by": head.by, "reason": answer.reason}
    if head.digest:
        payload["digest"] = head.digest
    if answer.args is not UNSET:
        payload["args"] = answer.args
    if answer.remember is not None:
        payload["remember"] = answer.remember
    if answer.labels:
        payload["labels"] = answer.labels
    return "await_closed", encode(payload)


def _messages_taken(head: MessagesTaken, body: bytes) -> tuple[str, bytes]:
    return "messages_taken", encode({"texts": bodies.decode_taken(body).texts if body else ()})


def _output_rejected(head: OutputRejected, body: bytes) -> tuple[str, bytes]:
    message = bodies.decode_text(body).text if body else ""
    return "output_rejected", encode({"turn": head.turn, "message": message})


def _policy_decided(head: PolicyDecided, body: bytes) -> tuple[str, bytes]:
    decision = bodies.decode_policy(body) if body else bodies.PolicyBody()
    payload: dict[str, Any] = {
        "turn": head.turn,
        "allowedTools": head.allowed,
        "callsLeft": head.calls_left,
        "failuresLeft": head.failures_left,
        "disableTools": head.disable_tools,
        "failed": head.failed,
        "labels": decision.labels,
    }
    if decision.metadata is not UNSET:
        payload["metadata"] = decision.metadata
    return "policy_decision", encode(payload)


def _final_forced(head: FinalForced, body: bytes) -> tuple[str, bytes]:
    payload: dict[str, Any] = {"reason": head.reason}
    if head.level is not None:
        payload |= {"level": head.level, "unit": head.unit}
    return "final_forced", encode(payload)


def _context_compacted(head: ContextCompacted, body: bytes) -> tuple[str, bytes]:
    summary = bodies.decode_summary(body)
    payload: dict[str, Any] = {
        "summary": summary.text,
        "tokensBefore": head.before,
        "tokensAfter": head.after,
        "model": summary.model,
        "inherited": not head.number,
        "tokens": tokens(head.usage),
    }
    if head.cost_nusd is not None:
        payload["costUsd"] = head.cost_nusd / 1_000_000_000
    return "context_compacted", encode(payload)


def _context_restored(head: ContextRestored, body: bytes) -> tuple[str, bytes]:
    return "context_restored", encode({"requestedBy": head.requested_by})


def _loop_detected(head: LoopDetected, body: bytes) -> tuple[str, bytes]:
    return "loop_detected", encode({"consecutiveCount": head.count, "hardCutoff": head.hard, "tools": head.tools})


def _budget_exceeded(head: BudgetExceeded, body: bytes) -> tuple[str, bytes]:
    payload = {"tool": head.tool, "maxCalls": head.max_calls, "callIndex": head.call_index}
    return "tool_budget_exceeded", encode(payload)


def _run_paused(head: RunPaused, body: bytes) -> tuple[str, bytes]:
    return "run_paused", encode({"reason": head.reason, "requestedBy": head.requested_by} | _control(body))


def _run_resumed(head: RunResumed, body: bytes) -> tuple[str, bytes]:
    return "run_resumed", encode({"notes": head.notes, "requestedBy": head.requested_by} | _control(body))


def _control(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    control = bodies.decode_control(body)
    payload: dict[str, Any] = {"labels": control.labels} if control.labels else {}
    return payload | {"messageCount": control.messages} if control.messages else payload


def _assistant_message(head: TurnCompleted, body: bytes) -> tuple[str, bytes]:
    message = bodies.decode_turn(body).message
    payload: dict[str, Any] = {"text": message.text, "turn": head.turn, "finishReason": head.finish}
    if head.metadata:
        payload["providerMetadata"] = head.metadata
    if head.calls:
        payload["toolCalls"] = [
            {"id": part.id, "name": part.name, "input": _input(part.args)} for part in message.calls
        ]
    return "assistant_message", encode(payload)


def _input(args: str) -> Raw:
    """Returns a call's arguments as the model wrote them, or an empty object if they are not a JSON object."""
    try:
        return Raw(args.encode()) if isinstance(decode(args), dict) else Raw(b"{}")
    except (DecodeError, UnicodeEncodeError, RecursionError):
        return Raw(b"{}")


def _offer(head: CallOpened, body: bytes) -> tuple[str, bytes] | None:
    if head.blocked:
        return None
    content = bodies.decode_opened(body)
    if head.client is None:
        payload = {
            "toolUseId": head.id,
            "name": head.name,
            "input": content.args,
            "args": content.args,
            "turn": head.turn,
            "displayHint": content.hint or titled(head.name),
            **_parent(head),
        }
        return "tool_call", encode(payload)
    return "local_tool_call", _offered(head, content)


def _offered(head: CallOpened | CallUnclaimed, content: bodies.OpenedBody) -> bytes:
    payload: dict[str, Any] = {
        "toolUseId": head.id,
        "name": head.name,
        "args": content.args,
        "kind": head.client,
        "turn": head.turn,
        "displayHint": content.hint or titled(head.name),
    }
    if isinstance(head, CallUnclaimed):
        payload["attempt"] = head.attempt
    else:
        payload |= _parent(head)
    if content.peer is not None:
        payload |= _peer(content.peer)
    elif content.echo is not UNSET:
        payload |= decode(content.echo, type=dict[str, Raw])
    return encode(payload)


def _peer(peer: bodies.Peer) -> dict[str, Any]:
    match peer:
        case bodies.McpPeer():
            named = {"mcpServer": peer.server, "mcpToolName": peer.tool, "mcpServerInfo": peer.info}
            named["annotations"] = peer.annotations
            return {name: value for name, value in named.items() if value is not UNSET}
        case bodies.A2APeer():
            return {"agentCard": peer.card}


def _claimed(head: CallClaimed, body: bytes) -> tuple[str, bytes] | None:
    if head.renewed:
        return None
    payload = {"toolUseId": head.id, "name": head.name, "by": head.by, "leaseMs": head.lease_us // 1000}
    return "local_tool_claimed", encode(payload)


def _unclaimed(head: CallUnclaimed, body: bytes) -> tuple[str, bytes]:
    content = bodies.decode_opened(body)
    if head.client is not None:
        return "local_tool_call", _offered(head, content)
    payload = {"toolUseId": head.id, "name": head.name, "fallback": head.fallback, "turn": head.turn}
    return "local_tool_fallback", encode(payload)


def _parent(head: CallOpened | CallClosed) -> dict[str, Any]:
    """Returns the call that made this one, if it was not the model."""
    return {"parentToolUseId": head.parent} if head.parent else {}


def _result(head: CallClosed, body: bytes) -> tuple[str, bytes]:
    content = bodies.decode_closed(body)
    text = joined_text(content.parts)
    preview = excerpt(text)
    if head.client is not None and head.how in ("returned", "failed", "timeout"):
        answer: dict[str, Any] = {"error": preview} if head.is_error else {"output": preview, "result": preview}
        answer = {"toolUseId": head.id, "name": head.name, **answer, "how": head.how}
        return "local_tool_result_in", encode(answer | _about(head, content, text) | _parent(head))
    payload: dict[str, Any] = {
        "toolUseId": head.id,
        "name": head.name,
        "ok": not head.is_error,
        "summary": preview_of(text),
        "result": preview,
        "args": content.args if content.args is not UNSET else {},
        "phase": "end",
        "how": head.how,
        **_parent(head),
    }
    payload |= _about(head, content, text)
    if head.how == "in_doubt":
        payload["inDoubt"] = True
    attached = [part for part in content.parts if not isinstance(part, Text)]
    if attached:
        payload["attachments"] = [{"type": _attached_as(part), "mediaType": part.media_type} for part in attached]
    return "tool_result", encode(payload)


def _about(head: CallClosed, content: bodies.ClosedBody, text: str) -> dict[str, Any]:
    """Returns the fields of a result besides what the model reads."""
    about: dict[str, Any] = {"telemetry": to_wire_telemetry(head, content)}
    if head.is_error:
        about["failure"] = to_wire_failure(head, content, text)
    if content.bounds is not None:
        about["bounds"] = WireBounds(**asdict(content.bounds))
    if data := for_timeline(content.server_data):
        about["serverData"] = data
    if (child := content.child) is not None:
        about["childrenCount"] = child.calls
        about["runLink"] = WireLink(child.run_id, child.agent, child.parent_run_id, child.parent_call_id)
    return about


def _attached_as(part: Image | File) -> str:
    return "image" if isinstance(part, Image) else "audio" if part.media_type.startswith("audio/") else "file"


def failed_finish(head: RunEnded) -> str | None:
    """Returns the finish reason of the answer that a failed run shows; None if it broke off."""
    if head.code == "truncation":
        # Some providers raise this as an error; then `head.finish` is from an earlier turn.
        return "max_tokens"
    return head.finish if head.code == "invalid_output" else None


def _terminal(head: RunEnded, body: bytes) -> tuple[str, bytes]:
    content = bodies.decode_ended(body)
    payload: dict[str, Any] = {}
    if head.status == "succeeded":
        event = "result"
        payload |= {"subtype": "success", "ok": True, "text": content.text}
        if head.finish is not None:
            payload["finishReason"] = head.finish
    elif head.status == "cancelled":
        event = "cancelled"
        payload["reason"] = "session_ended" if head.reason == "thread_ended" else head.reason or "user"
        if head.requested_by:
            payload["requestedBy"] = head.requested_by
    elif head.code in RESULT_SUBTYPES:
        event = "result"
        payload |= {"subtype": RESULT_SUBTYPES[head.code], "ok": False, "error": content.error}
        if head.code in ERROR_CLASSES:
            payload |= {"code": head.code, "errorClass": head.code}
        if content.partial_text is not None:
            payload["partialText"] = content.partial_text
    else:
        event = "error"
        payload |= {"error": content.error, "code": head.code or "error"}
        if head.code in ERROR_CLASSES:
            payload |= {"errorClass": head.code, "retryable": head.code in RETRYABLE_CLASSES}
        elif head.code == "worker_error":
            payload |= {"errorClass": "unknown", "retryable": False}
        if content.provider is not None:
            payload["providerError"] = content.provider
        if content.partial_text is not None:
            payload["partialText"] = content.partial_text
            if (finish := failed_finish(head)) is not None:
                payload["finishReason"] = finish
    if head.reason and head.status != "cancelled":
        payload["terminationReason"] = head.reason
    if head.cost_nusd is not None:
        payload["costUsd"] = head.cost_nusd / 1_000_000_000
    if content.labels:
        payload["labels"] = content.labels
    used = usage_triple(head.usage, head.turns, head.model, attempts=head.attempts, estimated=head.estimated)
    return event, encode(payload)[:-1] + b"," + encode(used)[1:]


Projection: TypeAlias = Callable[[Any, bytes], tuple[str, bytes] | None]

PROJECTIONS: dict[type[Fact], Projection] = {
    TurnCompleted: _assistant_message,
    CallOpened: _offer,
    CallClosed: _result,
    RunEnded: _terminal,
    AttemptStarted: _turn_restarted,
    LoopDetected: _loop_detected,
    BudgetExceeded: _budget_exceeded,
    RunPaused: _run_paused,
    RunResumed: _run_resumed,
    CallClaimed: _claimed,
    CallUnclaimed: _unclaimed,
    CallStarted: _child_started,
    ChildEnded: _child_ended,
    AwaitOpened: _await_opened,
    AwaitClosed: _await_closed,
    MessagesTaken: _messages_taken,
    OutputRejected: _output_rejected,
    PolicyDecided: _policy_decided,
    FinalForced: _final_forced,
    ContextCompacted: _context_compacted,
    ContextRestored: _context_restored,
}
"""Except `run.created`, which needs the run's id."""
INTERNAL: frozenset[type[Fact]] = frozenset(
    {
        HistoryPinned,
        InstructionsRendered,
        StateChanged,
        RunAdopted,
        AttemptFailed,
        OutputAccepted,
        ResultsOverBudget,
        CallAsked,
        CallGated,
        ChildWaits,
        AwaitPassed,
        MessageQueued,
        CancelRequested,
        TimerFired,
        ContextMeasured,
        CompactionStarted,
        CompactionFailed,
        BudgetRefused,
        CapReached,
        RunUnattended,
        DeployAdopted,
    }
)
"""Entries that clients do not see. A test checks that these two cover all facts."""
