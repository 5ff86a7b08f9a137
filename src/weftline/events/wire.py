"""The events as the protocol has them: the only table of wire names.

A row is one type of event there. Its fields are in the order of the payload's bytes, which recorded streams and other
readers depend on: `field`, `field=nameOnTheWire`, and `field?` for one that is left out at its default. Names that are
not given are in camel case. `decode.py` reads payloads by the same rows.

Another dialect of the same events is a table beside this one, with an `encode_event` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypeVar, get_args

from msgspec import NODEFAULT, UNSET, Struct, defstruct, field
from msgspec.json import Encoder as JsonEncoder
from msgspec.structs import fields as fields_of

from weftline.events import classes as events
from weftline.events.classes import AnyEvent, CallFinished, Event, RunEnded
from weftline.events.details import AnyDetail
from weftline.events.parts import (
    ModelUsed,
    UsageTriple,
    iso,
    to_wire_bounds,
    to_wire_clarification,
    to_wire_failure,
    to_wire_link,
    to_wire_telemetry,
    tokens,
)
from weftline.failure import preview_of

E = TypeVar("E", bound=Event)

COPY_LIMIT = 100 * 1024
"""How many bytes of a result an event shows; the model always gets the whole."""
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
RESULT_SUBTYPES = {"max_tool_turns": "error_max_tool_turns", "local_timeout": "error_local_tool_timeout"}
"""Failures that end in a `result` event; all others end in an `error` event."""
ENDS = frozenset({"result", "error", "cancelled"})
"""The types of the end of a run, which `_encode_end` encodes."""

_WORDS = {
    "call_id": "toolUseId",
    "parent_call": "parentToolUseId",
    "child_id": "childRunId",
    "thread": "sessionId",
    "id": "awaitId",
}
"""Fields with another name wherever they are."""
_encode = JsonEncoder().encode
_REQUIRED = object()


def wire_name(name: str) -> str:
    """Returns the wire name of a field that no row names otherwise."""
    if name in _WORDS:
        return _WORDS[name]
    first, *more = name.split("_")
    return first + "".join([word.capitalize() for word in more])


Encoder: TypeAlias = Callable[[Any], tuple[str, bytes]]


class Row(Generic[E]):
    """One type of event on the wire.

    `forms` has functions for values with another form on the wire, by name there. `when` says which events of the
    class have this type, if there are several types. The fields of the struct in `flat` are added to the payload's.
    """

    def __init__(
        self,
        type: str,
        event: type[E],
        order: str,
        *,
        forms: Mapping[str, Callable[[Any], Any]] | None = None,
        when: Callable[[E], bool] | None = None,
        flat: Callable[[E], Struct | None] | None = None,
    ) -> None:
        self.type, self.event, self.when, self.flat = type, event, when, flat
        self.names: dict[str, str] = {}
        """The event's fields, with their wire names."""
        known, forms = {one.name: one for one in fields_of(event)}, forms or {}
        shape: list[tuple[str, Any, Any]] = []
        self._read: list[str] = []
        self._forms: list[tuple[int, Callable[[Any], Any]]] = []
        for token in order.split():
            name, _, wire = token.removesuffix("?").partition("=")
            wire = wire or wire_name(name)
            if name not in self.names or wire == wire_name(name):
                self.names[name] = wire
            if wire in forms:
                self._forms.append((len(shape), forms[wire]))
            default = None if wire in forms else _default_of(known[name])
            shape.append((wire, Any, default if token.endswith("?") else _REQUIRED))
            self._read.append(name)
        self._payload = defstruct(type, shape, omit_defaults=True, gc=False)

    def encoder(self) -> Encoder:
        """Returns the function that returns the type and the payload, a JSON object, of an event."""
        type, forms, payload, flat = self.type, self._forms, self._payload, self.flat
        get: Callable[[E], Any] = attrgetter(*self._read)
        if len(self._read) == 1:
            return lambda event: (type, _encode(payload(get(event))))
        if not forms and flat is None:
            return lambda event: (type, _encode(payload(*get(event))))

        def encode(event: E) -> tuple[str, bytes]:
            values = list(get(event))
            for place, form in forms:
                if (value := values[place]) is not None:
                    values[place] = form(value)
            encoded = _encode(payload(*values))
            if flat is not None and (more := flat(event)) is not None:
                encoded = encoded[:-1] + b"," + _encode(more)[1:]
            return type, encoded

        return encode


def _default_of(one: Any) -> Any:
    if one.default_factory is not NODEFAULT:
        return field(default_factory=one.default_factory)
    return one.default


def encode_event(event: AnyEvent) -> tuple[str, bytes]:
    """Returns the type of an event, and its payload, a JSON object."""
    return _ENCODERS[type(event)](event)


def encode_detail(detail: AnyDetail) -> tuple[str, bytes]:
    """Returns the type of a detail, and its payload."""
    return _DETAIL_ENCODERS[type(detail)](detail)


def excerpt(text: str) -> str:
    """Returns the part of a result that an event shows."""
    if len(text) * 4 <= COPY_LIMIT:
        return text
    data = text.encode()
    return text if len(data) <= COPY_LIMIT else data[:COPY_LIMIT].decode(errors="ignore")


class _WireCall(Struct):
    id: str
    name: str
    input: Any


def _calls(calls: tuple[events.RequestedCall, ...]) -> list[_WireCall] | None:
    return [_WireCall(call.id, call.name, call.args) for call in calls] if calls else None


_RESULT: dict[str, Callable[[Any], Any]] = {
    "summary": preview_of,
    "result": excerpt,
    "output": excerpt,
    "error": excerpt,
    "phase": lambda how: "end",
    "telemetry": to_wire_telemetry,
    "failure": to_wire_failure,
    "bounds": to_wire_bounds,
    "childrenCount": lambda child: child.calls,
    "runLink": to_wire_link,
    "inDoubt": lambda how: True if how == "in_doubt" else None,
}
_BESIDES = "telemetry failure? bounds? server_data? child=childrenCount? child=runLink?"

ROWS: tuple[Row[Any], ...] = (
    Row("started", events.RunStarted, "run_id agent?"),
    Row("assistant_delta", events.TextDelta, "text turn attempt"),
    Row("thinking_delta", events.ThinkingDelta, "text turn attempt"),
    Row("turn_restarted", events.TurnRestarted, "turn attempt reason"),
    Row(
        "assistant_message",
        events.TurnFinished,
        "text turn finish_reason provider_metadata? calls=toolCalls?",
        forms={"toolCalls": _calls},
    ),
    Row(
        "tool_call",
        events.CallOpened,
        "call_id name args=input args turn display_hint parent_call?",
        when=lambda event: event.client is None,
    ),
    Row(
        "local_tool_call",
        events.CallOpened,
        "call_id name args client=kind turn display_hint attempt? parent_call?",
        when=lambda event: event.client is not None,
        flat=lambda event: event.peer,
    ),
    Row("local_tool_claimed", events.CallClaimed, "call_id name by lease_ms"),
    Row("local_tool_fallback", events.CallFellBack, "call_id name fallback turn"),
    Row(
        "tool_result",
        CallFinished,
        f"call_id name ok result=summary result args how=phase how parent_call? {_BESIDES} how=inDoubt? attachments?",
        when=lambda event: not event.by_client,
        forms=_RESULT,
    ),
    Row(
        "local_tool_result_in",
        CallFinished,
        f"call_id name result=output result how {_BESIDES} parent_call?",
        when=lambda event: event.ok,
        forms=_RESULT,
    ),
    Row(
        "local_tool_result_in",
        CallFinished,
        f"call_id name result=error how {_BESIDES} parent_call?",
        forms=_RESULT,
    ),
    Row("child_started", events.ChildStarted, "call_id name child_id turn"),
    Row(
        "child_ended",
        events.ChildEnded,
        "call_id name child_id status turns usage=tokens cost_usd?",
        forms={"tokens": tokens},
    ),
    Row("tool_progress", events.CallProgress, "call_id name progress total? message?"),
    Row(
        "tool_result",
        events.ProviderCalled,
        "call_id name name=toolType provider status status=ok result=summary result args status=phase turn",
        forms=_RESULT | {"ok": "failed".__ne__},
    ),
    Row("note", events.Note, "call_id name kind data=note"),
    Row(
        "await_opened",
        events.AwaitOpened,
        "id kind question name args call_id options multiple digest turn idempotency_key? called_at? timeout_ms? "
        "approvers? clarification?",
        forms={"calledAt": iso, "clarification": to_wire_clarification},
    ),
    Row("await_closed", events.AwaitClosed, "id outcome by reason digest? args? remember? labels?"),
    Row("messages_taken", events.MessagesTaken, "texts"),
    Row("output_rejected", events.OutputRejected, "turn message"),
    Row("loop_detected", events.LoopDetected, "count=consecutiveCount hard=hardCutoff tools"),
    Row("tool_budget_exceeded", events.BudgetExceeded, "tool max_calls call_index"),
    Row(
        "policy_decision",
        events.PolicyDecided,
        "turn allowed_tools calls_left failures_left disable_tools failed labels metadata?",
    ),
    Row("final_forced", events.FinalForced, "reason level? unit?"),
    Row(
        "context_compacted",
        events.ContextCompacted,
        "summary tokens_before tokens_after model inherited usage=tokens cost_usd?",
        forms={"tokens": tokens},
    ),
    Row("context_restored", events.ContextRestored, "by=requestedBy"),
    Row("run_paused", events.RunPaused, "reason by=requestedBy labels?"),
    Row("run_resumed", events.RunResumed, "notes by=requestedBy labels? message_count?"),
)
"""All but the ends of a run. Of several rows for a class, the first that fits counts."""
ROWS_OF: dict[type[Event], tuple[Row[Any], ...]] = {
    one: tuple([row for row in ROWS if row.event is one]) for one in get_args(AnyEvent)
}


def type_of(detail: type[AnyDetail]) -> str:
    """The name of a type of detail, such as `run_phase_changed`."""
    return str(detail.__struct_config__.tag)


def _items(items: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    return [{_WORDS.get(name, name): value for name, value in item.items()} for item in items]


def _detail_row(detail: type[AnyDetail]) -> Row[Any]:
    order = [name for name in detail.__struct_fields__ if name != "seq"]
    return Row(type_of(detail), detail, " ".join(order), forms={"at": iso, "items": _items})


DETAILS: dict[str, Row[Any]] = {type_of(one): _detail_row(one) for one in get_args(AnyDetail)}
"""The details, by type: their fields in the order of their classes."""
TYPES = frozenset({row.type for row in ROWS}) | ENDS | DETAILS.keys()
"""All types of events."""


def _encode_end(end: RunEnded) -> tuple[str, bytes]:
    payload: dict[str, Any]
    if end.status == "succeeded":
        kind = "result"
        payload = {"subtype": "success", "ok": True, "text": end.text}
        if end.finish_reason is not None:
            payload["finishReason"] = end.finish_reason
    elif end.status == "cancelled":
        kind = "cancelled"
        payload = {"reason": "session_ended" if end.reason == "thread_ended" else end.reason or "user"}
        if end.by:
            payload["requestedBy"] = end.by
    elif end.code in RESULT_SUBTYPES:
        kind = "result"
        payload = {"subtype": RESULT_SUBTYPES[end.code], "ok": False, "error": end.error}
        if end.code in ERROR_CLASSES:
            payload |= {"code": end.code, "errorClass": end.code}
        if end.partial_text is not None:
            payload["partialText"] = end.partial_text
    else:
        kind = "error"
        payload = {"error": end.error, "code": end.code or "error"}
        if end.code in ERROR_CLASSES:
            payload |= {"errorClass": end.code, "retryable": end.retryable}
        elif end.code == "worker_error":
            payload |= {"errorClass": "unknown", "retryable": False}
        if end.provider_error is not None:
            payload["providerError"] = end.provider_error
        if end.partial_text is not None:
            payload["partialText"] = end.partial_text
            if end.finish_reason is not None:
                payload["finishReason"] = end.finish_reason
    if end.reason and end.status != "cancelled":
        payload["terminationReason"] = end.reason
    if end.cost_usd is not None:
        payload["costUsd"] = end.cost_usd
    if end.labels:
        payload["labels"] = end.labels
    return kind, _encode(payload)[:-1] + b"," + _encode(_used(end))[1:]


def _used(end: RunEnded) -> UsageTriple:
    model = end.model
    effort = UNSET if model.reasoning_effort is None else model.reasoning_effort
    used = ModelUsed(model.id, model.provider, model.vendor_model_id, effort)
    return UsageTriple(tokens(end.usage), end.turns, end.attempts, used, True if end.usage_estimated else UNSET)


def _encode_unknown(event: events.UnknownEvent) -> tuple[str, bytes]:
    return event.type, _encode({} if event.data is None else event.data)


def _encoder_of(rows: tuple[Row[Any], ...]) -> Encoder:
    first = rows[0].encoder()
    if len(rows) == 1:
        return first
    is_first, others = rows[0].when, _encoder_of(rows[1:])
    assert is_first is not None

    def encode(event: Any) -> tuple[str, bytes]:
        return first(event) if is_first(event) else others(event)

    return encode


_ENCODERS: dict[type[Event], Encoder] = {
    **{kind: _encoder_of(rows) for kind, rows in ROWS_OF.items() if rows},
    RunEnded: _encode_end,
    events.UnknownEvent: _encode_unknown,
}
_DETAIL_ENCODERS: dict[type[Event], Encoder] = {row.event: row.encoder() for row in DETAILS.values()}
