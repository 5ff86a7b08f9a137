"""The log as the protocol's clients see it: each entry is one event, or none.

A projection of the stored entry alone, so that a replay is byte for byte what a live reader saw. Frames are spliced:
the payload is encoded once and stands in the frame twice, flat and under `data`, because real clients need both.
"""

from __future__ import annotations

from typing import Any, assert_never

from msgspec import UNSET, DecodeError, Raw
from msgspec.json import decode, encode

from weftline.kernel import bodies
from weftline.kernel.entries import (
    PROVIDER_CALL,
    TEXT_DELTA,
    THINKING_DELTA,
    AttemptFailed,
    AttemptStarted,
    BudgetExceeded,
    CallClosed,
    CallOpened,
    CallStarted,
    CancelRequested,
    Fact,
    FinalForced,
    HistoryPinned,
    LoopDetected,
    MessageQueued,
    MessagesTaken,
    OutputRejected,
    RunAdopted,
    RunCreated,
    RunEnded,
    RunPaused,
    RunResumed,
    TimerFired,
    TurnCompleted,
)
from weftline.messages import Assistant, ProviderCall, Text, ToolCall, joined_text
from weftline.wire.responses import usage_triple

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

COPY_LIMIT = 100 * 1024
"""Bytes of a result that an informational event shows; the model always gets all of it."""
NESTED_LIMIT = 1_000_000
"""Bytes of a payload above which the nested copy is left out."""
SUMMARY_LIMIT = 140

_DELTA_TEMPLATES = {
    kind: b'id: %%d\nevent: %s\ndata: {"seq":%%d,"type":"%s",%%b,"data":%%b}\n\n' % (event, event)
    for kind, event in (
        (TEXT_DELTA, b"assistant_delta"),
        (THINKING_DELTA, b"thinking_delta"),
        (PROVIDER_CALL, b"tool_result"),
    )
}


def frame(seq: int, event: str, payload: bytes) -> bytes:
    """One SSE frame in the hybrid shape."""
    head = b'id: %d\nevent: %s\ndata: {"seq":%d,"type":"%s"' % (seq, event.encode(), seq, event.encode())
    if payload == b"{}":
        return head + b',"data":{}}\n\n'
    if len(payload) > NESTED_LIMIT:
        return head + b"," + payload[1:] + b"\n\n"
    return b"".join((head, b",", payload[1:-1], b',"data":', payload, b"}\n\n"))


def delta_frames(first_seq: int, kind: str, bodies_joined: bytes, *, after: int, upto: int) -> list[bytes]:
    """The frames of consecutive deltas of one kind, those of (after, upto]. Deltas are most of what is ever sent."""
    template = _DELTA_TEMPLATES[kind]
    split = bodies_joined.split(b"\n")
    if first_seq <= after:
        split, first_seq = split[after + 1 - first_seq :], after + 1
    if first_seq + len(split) - 1 > upto:
        split = split[: upto + 1 - first_seq]
    return [template % (seq, seq, body[1:-1], body) for seq, body in enumerate(split, first_seq)]


def project(head: Fact, body: bytes, *, run_id: str) -> tuple[str, bytes] | None:
    """The event of an entry and its payload, a JSON object; None for what clients do not see."""
    match head:
        case RunCreated():
            return "started", encode({"runId": run_id})
        case TurnCompleted():
            return "assistant_message", _assistant_message(head, body)
        case CallOpened():
            return None if head.blocked else _offer(head, body)
        case CallClosed():
            return _result(head, body)
        case RunEnded():
            return _terminal(head, body)
        case AttemptStarted():
            if head.attempt == 1:
                return None
            return "turn_restarted", encode({"turn": head.turn, "attempt": head.attempt, "reason": head.cause})
        case LoopDetected():
            return "loop_detected", encode(
                {"consecutiveCount": head.count, "hardCutoff": head.hard, "tools": head.tools}
            )
        case BudgetExceeded():
            return "tool_budget_exceeded", encode(
                {"tool": head.tool, "maxCalls": head.max_calls, "callIndex": head.call_index}
            )
        case RunPaused():
            return "run_paused", encode({"reason": head.reason, "requestedBy": head.requested_by})
        case RunResumed():
            return "run_resumed", encode({"notes": head.notes, "requestedBy": head.requested_by})
        case (
            HistoryPinned()
            | RunAdopted()
            | AttemptFailed()
            | OutputRejected()
            | CallStarted()
            | FinalForced()
            | MessageQueued()
            | MessagesTaken()
            | CancelRequested()
            | TimerFired()
        ):
            return None
        case _:
            assert_never(head)


def _assistant_message(head: TurnCompleted, body: bytes) -> bytes:
    message = bodies.decode_message(body)
    assert isinstance(message, Assistant)
    payload: dict[str, Any] = {"text": message.text, "turn": head.turn, "finishReason": head.finish}
    if head.metadata:
        payload["providerMetadata"] = head.metadata
    if head.calls:
        payload["toolCalls"] = [
            {"id": part.id, "name": part.name, "input": _input(part.args)}
            for part in message.parts
            if isinstance(part, ToolCall)
        ]
    return encode(payload)


def provider_call(part: ProviderCall, *, turn: int) -> bytes:
    """The payload of the `tool_result` that tells of a tool which the provider ran by itself.

    One line, whatever the provider sent. `toolType` repeats the name: `type` is the event's own.
    """
    result = "" if part.result is UNSET else encode(_json(part.result)).decode()
    return encode(
        {
            "toolUseId": part.id,
            "name": part.name,
            "toolType": part.name,
            "provider": part.provider,
            "status": part.status,
            "ok": part.status != "failed",
            "summary": _summary(result),
            "result": _copy(result),
            "args": {} if part.input is UNSET else _json(part.input),
            "phase": "end",
            "turn": turn,
        }
    )


def _json(raw: Raw) -> Any:
    try:
        return decode(raw)
    except (DecodeError, RecursionError):
        return bytes(raw).decode(errors="replace")


def _input(args: str) -> Raw:
    """A call's arguments as the model wrote them, or an empty object when they are no JSON object."""
    try:
        return Raw(args.encode()) if isinstance(decode(args), dict) else Raw(b"{}")
    except (DecodeError, UnicodeEncodeError, RecursionError):
        return Raw(b"{}")


def _offer(head: CallOpened, body: bytes) -> tuple[str, bytes]:
    content = bodies.decode_opened(body)
    if head.client is None:
        return "tool_call", encode(
            {"toolUseId": head.id, "name": head.name, "input": content.args, "args": content.args}
        )
    payload = encode({"toolUseId": head.id, "name": head.name, "args": content.args, "kind": head.client})
    if content.echo is not UNSET and bytes(content.echo) != b"{}":
        payload = payload[:-1] + b"," + bytes(content.echo)[1:]
    return "local_tool_call", payload


def _result(head: CallClosed, body: bytes) -> tuple[str, bytes] | None:
    if head.client is not None and head.how in ("cancelled", "not_run"):
        return None
    content = bodies.decode_closed(body)
    text = joined_text(content.parts)
    shown = _copy(text)
    if head.client is not None and head.how in ("returned", "failed", "timeout"):
        if head.is_error:
            return "local_tool_result_in", encode({"toolUseId": head.id, "error": shown})
        return "local_tool_result_in", encode({"toolUseId": head.id, "output": shown, "result": shown})
    payload: dict[str, Any] = {
        "toolUseId": head.id,
        "name": head.name,
        "ok": not head.is_error,
        "summary": _summary(text),
        "result": shown,
        "args": content.args if content.args is not UNSET else {},
        "phase": "end",
    }
    images = [part for part in content.parts if not isinstance(part, Text)]
    if images:
        payload["attachments"] = [{"type": "image", "mediaType": part.media_type} for part in images]
    return "tool_result", encode(payload)


def _copy(text: str) -> str:
    """As much of a result as an event shows."""
    if len(text) * 4 <= COPY_LIMIT:
        return text
    data = text.encode()
    return text if len(data) <= COPY_LIMIT else data[:COPY_LIMIT].decode(errors="ignore")


def _summary(text: str) -> str:
    line = " ".join(text[: 4 * SUMMARY_LIMIT].split())
    return line if len(line) <= SUMMARY_LIMIT else line[: SUMMARY_LIMIT - 1] + "…"


def _terminal(head: RunEnded, body: bytes) -> tuple[str, bytes]:
    content = bodies.decode_ended(body)
    payload: dict[str, Any] = {}
    if head.status == "succeeded":
        event = "result"
        payload |= {"subtype": "success", "ok": True, "text": content.text}
    elif head.status == "cancelled":
        event = "cancelled"
        payload["reason"] = head.reason or "user"
    elif head.code in RESULT_SUBTYPES:
        event = "result"
        payload |= {"subtype": RESULT_SUBTYPES[head.code], "ok": False, "error": content.error}
        if head.code in ERROR_CLASSES:
            payload |= {"code": head.code, "errorClass": head.code}
    else:
        event = "error"
        payload |= {"error": content.error, "code": head.code or "error"}
        if head.code in ERROR_CLASSES:
            payload |= {"errorClass": head.code, "retryable": head.code in RETRYABLE_CLASSES}
        elif head.code == "worker_error":
            payload |= {"errorClass": "unknown", "retryable": False}
        if content.partial_text is not None:
            payload["partialText"] = content.partial_text
            if head.finish is not None:
                payload["finishReason"] = head.finish
    if head.reason and head.status != "cancelled":
        payload["terminationReason"] = head.reason
    if head.cost_nusd is not None:
        payload["costUsd"] = head.cost_nusd / 1_000_000_000
    return event, encode(payload)[:-1] + b"," + encode(usage_triple(head.usage, head.turns, head.model))[1:]
