"""The events of a run from a stream: each frame is one of `weftline.events`, with its payload.

A type or a shape that this client does not know becomes an `UnknownEvent`. Servers of any version are supported: fields
that one does not send have the event's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import fields as fields_of

from weftline import events
from weftline.client.errors import NetworkError, ToolDeliveryError
from weftline.client.usage import spent_of, usage_of
from weftline.events import AnyEvent, Event
from weftline.net.sse import SseEvent
from weftline.outcome import ChildLink, Telemetry
from weftline.wire.hints import WireBounds, WireClarification, WireFailure, WireLink, WireTelemetry

S = TypeVar("S", bound=Struct)


class ToolDeliveryFailed(Event, frozen=True):
    """The answer to a call could not be delivered. Created by the client itself; no log has it."""

    call_id: str = ""
    error: ToolDeliveryError | None = None


ClientEvent: TypeAlias = AnyEvent | ToolDeliveryFailed


class Frame(Struct, frozen=True, kw_only=True):
    """An event and its wire format: its type there, and in `data` its whole payload."""

    event: ClientEvent
    type: str
    data: dict[str, Any]

    @property
    def seq(self) -> int:
        return self.event.seq


class OfferedCall(Struct, frozen=True, rename="camel"):
    """A call that the client has to answer. `kind` is the sort of tool; for an MCP tool, the names are the server's."""

    tool_use_id: str = ""
    name: str = ""
    args: dict[str, Any] = {}
    kind: str = "local"
    mcp_server: str | None = None
    mcp_tool_name: str | None = None
    attempt: int = 1
    """How often it was offered, including this time."""


def offered(frame: Frame) -> OfferedCall | None:
    """Returns the call that a frame offers to this client, if it does."""
    event = frame.event
    if not isinstance(event, events.CallOpened) or event.client is None:
        return None
    return OfferedCall(
        event.call_id,
        event.name,
        event.args,
        event.client,
        text_of(frame.data, "mcpServer"),
        text_of(frame.data, "mcpToolName"),
        event.attempt,
    )


_KINDS: dict[str, type[AnyEvent]] = {
    "started": events.RunStarted,
    "assistant_delta": events.TextDelta,
    "thinking_delta": events.ThinkingDelta,
    "turn_restarted": events.TurnRestarted,
    "assistant_message": events.TurnFinished,
    "tool_call": events.CallOpened,
    "local_tool_call": events.CallOpened,
    "local_tool_claimed": events.CallClaimed,
    "local_tool_fallback": events.CallFellBack,
    "child_started": events.ChildStarted,
    "child_ended": events.ChildEnded,
    "tool_progress": events.CallProgress,
    "tool_result": events.CallFinished,
    "local_tool_result_in": events.CallFinished,
    "note": events.Note,
    "await_opened": events.AwaitOpened,
    "await_closed": events.AwaitClosed,
    "messages_taken": events.MessagesTaken,
    "output_rejected": events.OutputRejected,
    "loop_detected": events.LoopDetected,
    "tool_budget_exceeded": events.BudgetExceeded,
    "policy_decision": events.PolicyDecided,
    "final_forced": events.FinalForced,
    "context_compacted": events.ContextCompacted,
    "context_restored": events.ContextRestored,
    "run_paused": events.RunPaused,
    "run_resumed": events.RunResumed,
}
"""By wire type. The ends of a run and the provider's tools are parsed separately."""
_TERMINAL = frozenset({"result", "error", "cancelled"})
_WIRE_NAMES: dict[str, tuple[str, ...]] = {
    "finish_reason": ("finishReason",),
    "max_calls": ("maxCalls",),
    "call_index": ("callIndex",),
    "call_id": ("toolUseId",),
    "parent_call": ("parentToolUseId",),
    "child_id": ("childRunId",),
    "lease_ms": ("leaseMs",),
    "cost_usd": ("costUsd",),
    "args": ("args", "input"),
    "calls": ("toolCalls",),
    "client": ("kind",),
    "message_count": ("messageCount",),
    "allowed_tools": ("allowedTools",),
    "calls_left": ("callsLeft",),
    "failures_left": ("failuresLeft",),
    "disable_tools": ("disableTools",),
    "count": ("consecutiveCount",),
    "hard": ("hardCutoff",),
    "by": ("requestedBy", "by"),
    "id": ("awaitId", "id"),
    "tokens_before": ("tokensBefore",),
    "tokens_after": ("tokensAfter",),
    "data": ("note",),
    "display_hint": ("displayHint",),
}
"""Fields of events with another name on the wire, or one of two."""
_MISSING: dict[str, Any] = {
    "turn": 0,
    "attempt": 1,
    "count": 0,
    "hard": False,
    "max_calls": 0,
    "call_index": 0,
    "progress": 0.0,
    "ok": True,
    "texts": (),
}
"""Defaults for fields that all our events have but a server did not send; others are empty strings."""
_CODES = {"error_max_tool_turns": "max_tool_turns", "error_local_tool_timeout": "local_timeout"}
"""The codes of failures that end in a `result`."""
_ENVELOPE = ("seq", "type", "data")


def parse_frame(sent: SseEvent, *, run_id: str, last_seq: int = 0) -> Frame:
    """Parses a frame of a stream, whether its body is flat, nested under `data`, or both.

    Raises:
        NetworkError: if the frame has no JSON object; the stream is then reopened.
    """
    try:
        body: object = msgspec.json.decode(sent.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NetworkError(f"the stream of {run_id} has a frame that is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise NetworkError(f"the stream of {run_id} has a frame that is not a JSON object")
    fields = cast("dict[str, Any]", body)
    nested = fields.get("data")
    payload = {name: value for name, value in fields.items() if name not in _ENVELOPE}
    if isinstance(nested, dict):
        payload |= cast("dict[str, Any]", nested)
    kind = sent.event or str(fields.get("type") or "")
    return frame_of(kind, payload, run_id=run_id, seq=_seq(fields.get("seq"), sent.id, last_seq))


def frame_of(kind: str, payload: dict[str, Any], *, run_id: str, seq: int) -> Frame:
    event = _event(kind, payload, run_id=run_id, seq=seq)
    return Frame(event=event, type=kind, data=payload)


def _event(kind: str, payload: dict[str, Any], *, run_id: str, seq: int) -> AnyEvent:
    if kind in _TERMINAL:
        return _ended(kind, payload, run_id=run_id, seq=seq)
    shape = _KINDS.get(kind)
    if shape is events.CallFinished and "provider" in payload:
        shape = events.ProviderCalled
    if shape is not None:
        fields = _read(shape, payload) | {"run_id": run_id, "seq": seq}
        if shape is events.CallFinished:
            fields |= _outcome(payload)
        elif shape is events.AwaitOpened:
            about = _known(payload, "clarification", WireClarification)
            fields["clarification"] = None if about is None else about.clarification
        elif shape is events.ChildEnded or shape is events.ContextCompacted:
            fields["usage"] = usage_of(payload)
        elif kind == "local_tool_call":
            fields.setdefault("client", "local")
        elif kind == "tool_call":
            fields.pop("client", None)
        try:
            return msgspec.convert(fields, shape, strict=False)
        except msgspec.ValidationError:
            pass
    return events.UnknownEvent(run_id=run_id, seq=seq, type=kind, data=payload)


def _read(shape: type[Struct], payload: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an event's fields from a payload."""
    found: dict[str, Any] = {}
    for name, wire_names, required in _FIELDS[shape]:
        value = next((payload[wire] for wire in wire_names if payload.get(wire) is not None), None)
        if name == "calls" and isinstance(value, list):
            value = [_read(events.RequestedCall, call) for call in _objects(cast("list[object]", value))]
        if value is not None:
            found[name] = value
        elif required:
            found[name] = _MISSING.get(name, "")
    return found


def _objects(values: list[object]) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", value) for value in values if isinstance(value, dict)]


_FIELDS: dict[type[Struct], list[tuple[str, tuple[str, ...], bool]]] = {
    shape: [(one.name, _WIRE_NAMES.get(one.name, (one.name,)), one.required) for one in fields_of(shape)]
    for shape in {*_KINDS.values(), events.ProviderCalled, events.RequestedCall}
}


def _outcome(payload: dict[str, Any]) -> dict[str, Any]:
    """Returns `ok`, `result` and `how` of a call, also from servers that use other words."""
    error = payload.get("error")
    ok = error is None if payload.get("ok") is None else payload["ok"] is True
    candidates = [payload.get(name) for name in ("result", "output", "error", "summary")]
    result = next((one for one in candidates if one is not None), "")
    closed = "in_doubt" if payload.get("inDoubt") is True else "returned" if ok else "failed"
    return {
        "ok": ok,
        "result": result if isinstance(result, str) else msgspec.json.encode(result).decode(),
        "how": text_of(payload, "how") or closed,
        "failure": None if (failure := _known(payload, "failure", WireFailure)) is None else failure.failure,
        "bounds": None if (bounds := _known(payload, "bounds", WireBounds)) is None else bounds.bounds,
        "server_data": payload.get("serverData") or (),
        "child": _child(payload),
        "telemetry": Telemetry(0) if (took := _known(payload, "telemetry", WireTelemetry)) is None else took.telemetry,
    }


def _child(payload: dict[str, Any]) -> ChildLink | None:
    link, calls = _known(payload, "runLink", WireLink), payload.get("childrenCount")
    if link is None:
        return None
    made = calls if isinstance(calls, int) else 0
    return ChildLink(link.run_id, link.agent_id, link.parent_run_id, link.parent_tool_use_id, made)


def _known(payload: dict[str, Any], name: str, shape: type[S]) -> S | None:
    """Returns a part of a payload; None if it is missing, or unknown to this client."""
    try:
        return None if payload.get(name) is None else msgspec.convert(payload[name], shape)
    except msgspec.ValidationError:
        return None


def _ended(kind: str, payload: dict[str, Any], *, run_id: str, seq: int) -> events.RunEnded:
    """Parses the end of a run field by field: whatever else is odd about it, the run has ended."""
    spent = spent_of(payload)
    end = events.RunEnded(
        run_id=run_id,
        seq=seq,
        status="cancelled",
        turns=spent.turns,
        usage=usage_of(payload),
        cost_usd=spent.cost_usd,
        labels=_words(payload.get("labels")),
    )
    if kind == "cancelled":
        reason = text_of(payload, "reason") or "user"
        reason = "thread_ended" if reason == "session_ended" else reason
        return msgspec.structs.replace(end, reason=reason, by=text_of(payload, "requestedBy") or "")
    reason = text_of(payload, "terminationReason") or ""
    subtype = subtype_of(kind, payload)
    if subtype == "success":
        return msgspec.structs.replace(end, status="succeeded", text=text_of(payload, "text") or "", reason=reason)
    return msgspec.structs.replace(
        end,
        status="failed",
        text=text_of(payload, "partialText") or "",
        error=text_of(payload, "error") or text_of(payload, "message") or "",
        code=text_of(payload, "code") or _CODES.get(subtype, ""),
        retryable=payload.get("retryable") is True,
        reason=reason,
    )


def _words(value: object) -> dict[str, str]:
    try:
        return msgspec.convert(value, dict[str, str]) if value else {}
    except msgspec.ValidationError:
        return {}


def subtype_of(kind: str, payload: dict[str, Any]) -> str:
    """Returns how a run ended, as in a `result`: `success`, a named failure, or `error`."""
    if kind != "result":
        return "error"
    return text_of(payload, "subtype") or ("success" if payload.get("ok") is True else "error")


def text_of(payload: dict[str, Any], name: str) -> str | None:
    value = payload.get(name)
    return value if isinstance(value, str) else None


def _seq(inside: object, line: str, last_seq: int) -> int:
    if isinstance(inside, int) and not isinstance(inside, bool):
        return inside
    # Events without numbers are counted here: the first event of a run is 1, and there are no gaps.
    return int(line) if line.isascii() and line.isdigit() and len(line) < 19 else last_seq + 1
