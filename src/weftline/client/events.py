"""The events of a run, one struct per type. A type that this client does not know becomes an `UnknownEvent`."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Struct

from weftline.client.errors import NetworkError, ToolDeliveryError
from weftline.client.usage import ModelUsed, Tokens, lenient
from weftline.net.sse import SseEvent


class Event(Struct, frozen=True, kw_only=True, rename="camel"):
    """`seq` is the place in the run's log (a cursor for `attach`), `data` the payload as it came."""

    run_id: str = ""
    seq: int = 0
    type: str = ""
    data: dict[str, Any] = {}


class Started(Event, frozen=True):
    pass


class AssistantDelta(Event, frozen=True):
    """A piece of the model's text. `turn` and `attempt` tell which deltas a `TurnRestarted` makes void."""

    text: str = ""
    turn: int | None = None
    attempt: int | None = None


class ThinkingDelta(Event, frozen=True):
    text: str = ""
    turn: int | None = None
    attempt: int | None = None


class RequestedCall(Struct, frozen=True):
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}


class AssistantMessage(Event, frozen=True):
    """One model turn is complete; `text` is that turn's deltas in one piece."""

    text: str = ""
    turn: int | None = None
    finish_reason: str | None = None
    tool_calls: tuple[RequestedCall, ...] = ()


class ToolCall(Event, frozen=True):
    """A server-side tool was called."""

    tool_use_id: str = ""
    name: str = ""
    args: dict[str, Any] = {}


class ToolProgress(Event, frozen=True):
    """The progress of a server-side call, in the tool's own units; `total` is None if the tool does not know."""

    tool_use_id: str = ""
    name: str = ""
    progress: float | None = None
    total: float | None = None
    message: str = ""


class ToolResult(Event, frozen=True):
    """`in_doubt` is True if a crash or a cancel cut the call off: it may or may not have happened."""

    tool_use_id: str = ""
    name: str = ""
    ok: bool | None = None
    summary: str | None = None
    result: Any = None
    in_doubt: bool = False


class LocalToolCall(Event, frozen=True):
    """A call that the client has to answer."""

    tool_use_id: str = ""
    name: str = ""
    args: dict[str, Any] = {}
    kind: str = "local"
    mcp_server: str | None = None
    mcp_tool_name: str | None = None
    mcp_server_info: dict[str, Any] | None = None
    agent_card: dict[str, Any] | None = None


class LocalToolResultIn(Event, frozen=True):
    """The server has the answer to a client-side call."""

    tool_use_id: str = ""
    output: Any = None
    error: str | None = None


class LoopDetected(Event, frozen=True):
    consecutive_count: int = 0
    hard_cutoff: bool = False
    tools: tuple[str, ...] = ()


class ToolBudgetExceeded(Event, frozen=True):
    tool: str = ""
    max_calls: int = 0
    call_index: int = 0


class TurnRestarted(Event, frozen=True):
    """A model call is repeated: the deltas of this turn so far are void."""

    turn: int = 0
    attempt: int = 0
    reason: str | None = None


class RunPaused(Event, frozen=True):
    reason: str | None = None


class RunResumed(Event, frozen=True):
    notes: str | None = None


class Terminal(Event, frozen=True):
    """The last event of a run. `cost_usd` is None when the price of some model call is not known.

    `usage_estimated` is True if some call did not report what it used: `tokens` and `cost_usd` contain an estimate.
    """

    tokens: Tokens | None = None
    turns: int = 0
    model: ModelUsed | None = None
    attempts: int = 0
    cost_usd: float | None = None
    usage_estimated: bool = False


class Result(Terminal, frozen=True):
    """The run succeeded, or ended in a failure that has its own `subtype`."""

    ok: bool = False
    subtype: str = ""
    text: str = ""
    error: str | None = None
    finish_reason: str | None = None


class Failed(Terminal, frozen=True):
    error: str = ""
    code: str | None = None


class Cancelled(Terminal, frozen=True):
    reason: str = "user"


class UnknownEvent(Event, frozen=True):
    """An event whose type or shape is newer than this client."""


class ToolDeliveryFailed(Event, frozen=True):
    """Made by the client itself: the answer to a call could not be delivered."""

    tool_use_id: str = ""
    error: ToolDeliveryError | None = None


_KINDS: dict[str, type[Event]] = {
    "started": Started,
    "assistant_delta": AssistantDelta,
    "thinking_delta": ThinkingDelta,
    "assistant_message": AssistantMessage,
    "tool_call": ToolCall,
    "tool_progress": ToolProgress,
    "tool_result": ToolResult,
    "local_tool_call": LocalToolCall,
    "local_tool_result_in": LocalToolResultIn,
    "loop_detected": LoopDetected,
    "tool_budget_exceeded": ToolBudgetExceeded,
    "turn_restarted": TurnRestarted,
    "run_paused": RunPaused,
    "run_resumed": RunResumed,
}
_ENVELOPE = ("seq", "type", "data")


def parse_event(frame: SseEvent, *, run_id: str, last_seq: int = 0) -> Event:
    """The event of a frame, whether its body is flat, nested under `data`, or both.

    Raises:
        NetworkError: if the frame has no JSON object; the stream is then reopened.
    """
    try:
        body: object = msgspec.json.decode(frame.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NetworkError(f"the stream of {run_id} has a frame that is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise NetworkError(f"the stream of {run_id} has a frame that is not a JSON object")
    fields = cast("dict[str, Any]", body)
    nested = fields.get("data")
    payload = {name: value for name, value in fields.items() if name not in _ENVELOPE}
    if isinstance(nested, dict):
        payload |= cast("dict[str, Any]", nested)
    kind = frame.event or str(fields.get("type") or "")
    return event_of(kind, payload, run_id=run_id, seq=_seq(fields.get("seq"), frame.id, last_seq))


def event_of(kind: str, payload: dict[str, Any], *, run_id: str, seq: int) -> Event:
    if kind in ("result", "error", "cancelled"):
        return _terminal(kind, payload, run_id=run_id, seq=seq)
    shape = _KINDS.get(kind)
    if shape is not None:
        fields = {name: value for name, value in payload.items() if value is not None}
        if shape is LocalToolCall and "args" not in fields:
            fields["args"] = fields.get("input", {})
        elif shape is ToolCall and "args" not in fields and "input" in fields:
            fields["args"] = fields["input"]
        elif shape is LocalToolResultIn and "output" not in fields and "result" in fields:
            fields["output"] = fields["result"]
        try:
            return msgspec.convert(
                fields | {"runId": run_id, "seq": seq, "type": kind, "data": payload}, shape, strict=False
            )
        except msgspec.ValidationError:
            pass
    return UnknownEvent(run_id=run_id, seq=seq, type=kind, data=payload)


def _terminal(kind: str, payload: dict[str, Any], *, run_id: str, seq: int) -> Terminal:
    """Terminals are read field by field: whatever else is odd about one, the run has ended."""
    turns, attempts, cost = payload.get("turns"), payload.get("attempts"), payload.get("costUsd")
    model = lenient(payload.get("model"), ModelUsed)
    has_model = model is not None and bool(model.provider)
    common: dict[str, Any] = {
        "run_id": run_id,
        "seq": seq,
        "type": kind,
        "data": payload,
        "tokens": lenient(payload.get("tokens"), Tokens) if has_model or model is None else None,
        "turns": turns if isinstance(turns, int) else 0,
        "model": model if has_model else None,
        "attempts": attempts if isinstance(attempts, int) else 0,
        "cost_usd": float(cost) if isinstance(cost, int | float) else None,
        "usage_estimated": payload.get("usageEstimated") is True,
    }
    error = text_of(payload, "error") or text_of(payload, "message")
    if kind == "cancelled":
        return Cancelled(**common, reason=text_of(payload, "reason") or "user")
    if kind == "error":
        return Failed(**common, error=error or "the run failed", code=text_of(payload, "code"))
    subtype = text_of(payload, "subtype") or ("success" if payload.get("ok") is True else "error")
    return Result(
        **common,
        ok=subtype == "success",
        subtype=subtype,
        text=text_of(payload, "text") or "",
        error=error,
        finish_reason=text_of(payload, "finishReason"),
    )


def text_of(payload: dict[str, Any], name: str) -> str | None:
    value = payload.get(name)
    return value if isinstance(value, str) else None


def _seq(inside: object, line: str, last_seq: int) -> int:
    if isinstance(inside, int) and not isinstance(inside, bool):
        return inside
    # Events of a stream without numbers are counted here: the first event of a run is 1 and there are no gaps.
    return int(line) if line.isascii() and line.isdigit() and len(line) < 19 else last_seq + 1
