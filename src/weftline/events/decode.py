"""Reads payloads of the protocol as events, from servers of any version.

A type or a shape that this code does not know becomes an `UnknownEvent`. Fields that a server does not send have the
event's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import fields as fields_of

from weftline.events import classes as events
from weftline.events.classes import AnyEvent, Event, ModelUsed, Peer
from weftline.events.parts import WireBounds, WireClarification, WireFailure, WireLink, WireTelemetry
from weftline.events.wire import ENDS, ROWS, ROWS_OF, wire_name
from weftline.failure import ChildLink, ProviderFailure, Telemetry
from weftline.messages import Usage

S = TypeVar("S", bound=Struct)
T = TypeVar("T")

_KINDS: dict[str, type[AnyEvent]] = {row.type: row.event for row in ROWS if row.event is not events.ProviderCalled}
"""By wire type. The ends of a run and the provider's tools are parsed separately."""
_READ_ALSO: dict[str, tuple[str, ...]] = {
    "args": ("args", "input"),
    "by": ("requestedBy", "by"),
    "id": ("awaitId", "id"),
}
"""Fields that servers name in one of several ways."""
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
_BESIDES = frozenset(
    {"provider_metadata", "multiple", "digest", "timeout_ms", "idempotency_key", "remember", "level", "unit"}
    | {"message_count"}
)
"""Fields that are rather left out than make an event unknown."""
_CODES = {"error_max_tool_turns": "max_tool_turns", "error_local_tool_timeout": "local_timeout"}
"""The codes of failures that end in a `result`."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Counts(Struct, frozen=True, rename="camel"):
    input_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0


def decode_event(kind: str, payload: dict[str, Any], *, run_id: str, seq: int) -> AnyEvent:
    """Returns the event with this wire type and payload."""
    if kind in ENDS:
        return _ended(kind, payload, run_id=run_id, seq=seq)
    shape = _KINDS.get(kind)
    if shape is events.CallFinished and "provider" in payload:
        shape = events.ProviderCalled
    if shape is not None:
        found = _read(_FIELDS[shape], payload) | {"run_id": run_id, "seq": seq} | _special(shape, kind, payload)
        event = _converted(found, shape)
        if event is None and not _BESIDES.isdisjoint(found):
            event = _converted({name: value for name, value in found.items() if name not in _BESIDES}, shape)
        if event is not None:
            return event
    return events.UnknownEvent(run_id=run_id, seq=seq, type=kind, data=payload)


def _converted(found: dict[str, Any], shape: type[T]) -> T | None:
    try:
        return msgspec.convert(found, shape, strict=False)
    except msgspec.ValidationError:
        return None


_Names = list[tuple[str, tuple[str, ...], bool]]


def _read(names: _Names, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an event's fields from a payload."""
    found: dict[str, Any] = {}
    for name, wire_names, required in names:
        value = next((payload[wire] for wire in wire_names if payload.get(wire) is not None), None)
        if value is not None:
            found[name] = value
        elif required:
            found[name] = _MISSING.get(name, "")
    return found


def _names_of(shape: type[Event]) -> _Names:
    names: dict[str, str] = {}
    for row in ROWS_OF[cast("type[AnyEvent]", shape)]:
        names = row.names | names
    return [
        (one.name, _READ_ALSO.get(one.name, (names[one.name],)), one.required)
        for one in fields_of(shape)
        if one.name in names and one.name not in Event.__struct_fields__
    ]


_FIELDS: dict[type[Event], _Names] = {shape: _names_of(shape) for shape in ROWS_OF if ROWS_OF[shape]}
_CALL: _Names = [
    (one.name, _READ_ALSO.get(one.name, (wire_name(one.name),)), one.required)
    for one in fields_of(events.RequestedCall)
]


def _special(shape: type[Event], kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields with a form of their own on the wire."""
    if shape is events.CallFinished:
        return _outcome(kind, payload)
    if shape is events.CallOpened:
        client = (text_of(payload, "kind") or "local") if kind == "local_tool_call" else None
        return {"client": client, "peer": _peer(payload) if client else None}
    if shape is events.TurnFinished:
        calls: object = payload.get("toolCalls")
        return {"calls": [_read(_CALL, call) for call in _objects(calls)]}
    if shape is events.AwaitOpened:
        about = _known(payload, "clarification", WireClarification)
        return {"clarification": None if about is None else about.clarification, "called_at": _time(payload)}
    if shape is events.ChildEnded or shape is events.ContextCompacted:
        return {"usage": _usage(payload)}
    return {}


def _objects(values: object) -> list[dict[str, Any]]:
    if not isinstance(values, list):
        return []
    return [cast("dict[str, Any]", value) for value in cast("list[object]", values) if isinstance(value, dict)]


_PEER = tuple([one.encode_name for one in fields_of(Peer)])


def _peer(payload: dict[str, Any]) -> Peer | None:
    named = {name: payload[name] for name in _PEER if payload.get(name) is not None}
    return _converted(named, Peer) if named else None


def _time(payload: dict[str, Any]) -> int | None:
    try:
        return (datetime.fromisoformat(payload["calledAt"]) - _EPOCH) // timedelta(microseconds=1)
    except (KeyError, TypeError, ValueError):
        return None


def _outcome(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Returns how a call ended, also from servers that use other words."""
    error = payload.get("error")
    ok = error is None if payload.get("ok") is None else payload["ok"] is True
    candidates = [payload.get(name) for name in ("result", "output", "error", "summary")]
    result = next((one for one in candidates if one is not None), "")
    closed = "in_doubt" if payload.get("inDoubt") is True else "returned" if ok else "failed"
    attached = payload.get("attachments")
    return {
        "ok": ok,
        "result": result if isinstance(result, str) else msgspec.json.encode(result).decode(),
        "how": text_of(payload, "how") or closed,
        "failure": None if (failure := _known(payload, "failure", WireFailure)) is None else failure.failure,
        "bounds": None if (bounds := _known(payload, "bounds", WireBounds)) is None else bounds.bounds,
        "server_data": payload.get("serverData") or (),
        "child": _child(payload),
        "telemetry": Telemetry(0) if (took := _known(payload, "telemetry", WireTelemetry)) is None else took.telemetry,
        "by_client": kind == "local_tool_result_in",
        "args": args if isinstance(args := payload.get("args"), dict) else {},
        "attachments": _converted(attached, tuple[events.Attachment, ...]) or () if attached else (),
    }


def _child(payload: dict[str, Any]) -> ChildLink | None:
    link, calls = _known(payload, "runLink", WireLink), payload.get("childrenCount")
    if link is None:
        return None
    made = calls if isinstance(calls, int) else 0
    return ChildLink(link.run_id, link.agent_id, link.parent_run_id, link.parent_tool_use_id, made)


def _known(payload: dict[str, Any], name: str, shape: type[S]) -> S | None:
    """Returns a part of a payload; None if it is missing, or unknown to this code."""
    try:
        return None if payload.get(name) is None else msgspec.convert(payload[name], shape)
    except msgspec.ValidationError:
        return None


def _usage(payload: dict[str, Any]) -> Usage:
    used = lenient(payload.get("tokens"), _Counts) or _Counts()
    return Usage(
        used.input_tokens, used.cached_tokens, used.reasoning_tokens, used.output_tokens, used.cache_write_tokens
    )


def _ended(kind: str, payload: dict[str, Any], *, run_id: str, seq: int) -> events.RunEnded:
    """Parses the end of a run field by field: whatever else is odd about it, the run has ended."""
    turns, attempts, cost = payload.get("turns"), payload.get("attempts"), payload.get("costUsd")
    end = events.RunEnded(
        run_id=run_id,
        seq=seq,
        status="cancelled",
        turns=turns if isinstance(turns, int) else 0,
        usage=_usage(payload),
        cost_usd=float(cost) if isinstance(cost, int | float) else None,
        labels=_words(payload.get("labels")),
        attempts=attempts if isinstance(attempts, int) else 0,
        model=lenient(payload.get("model"), ModelUsed) or ModelUsed(),
        finish_reason=text_of(payload, "finishReason"),
        partial_text=text_of(payload, "partialText"),
        provider_error=lenient(payload.get("providerError"), ProviderFailure),
        usage_estimated=payload.get("usageEstimated") is True,
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
        text=end.partial_text or "",
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


def lenient(value: object, kind: type[T]) -> T | None:
    """Returns a part of an event as `kind`, or None if it has another shape."""
    if not isinstance(value, dict):
        return None
    return _converted({name: item for name, item in cast("dict[str, Any]", value).items() if item is not None}, kind)
