"""Rejoins characters that a model API split between two events.

Some APIs cut their deltas by UTF-16 units, so that an emoji may come as `"\\ud83d"` and `"\\ude00"`. Neither is text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Protocol, cast

import msgspec
from msgspec.structs import replace

from weftline.net.sse import SseEvent
from weftline.text.characters import lone_halves, may_have_halves, may_have_nul, whole_json, without_nul

_data = attrgetter("data")
_NOTHING_BYTES = 4096
"""An event without content is shorter than this."""


class EventParser(Protocol):
    """Parses the bytes of an answer, in pieces of any size, and returns completed events."""

    def feed(self, data: bytes) -> Sequence[SseEvent]: ...


class WholePairs:
    """Wraps another parser. An event whose text ends in an unpaired surrogate waits for the next event with text."""

    __slots__ = ("_held", "_parser")

    def __init__(self, parser: EventParser) -> None:
        self._parser = parser
        self._held: SseEvent | None = None

    def feed(self, data: bytes) -> Sequence[SseEvent]:
        events = self._parser.feed(data)
        joined = b"\n".join(map(_data, events))
        if may_have_nul(joined):
            events = [replace(one, data=without_nul(one.data)) for one in events]
        if self._held is None and not may_have_halves(joined):
            return events
        ready: list[SseEvent] = []
        for event in events:
            self._take(event, ready)
        return ready

    def end(self) -> Sequence[SseEvent]:
        """Returns the event that is still waiting, if any, once no other will come."""
        held, self._held = self._held, None
        return () if held is None else (replace(held, data=whole_json(held.data)),)

    def _take(self, event: SseEvent, ready: list[SseEvent]) -> None:
        if self._held is not None and _carries_nothing(event.data):
            return
        held, self._held = self._held, None
        data = event.data
        halves = lone_halves(data)
        if held is not None:
            low = next((half for half in halves if _is_low(half) and _begins_text(data, half)), None)
            if low is not None:
                high = _last_high(held.data)
                assert high is not None
                held = replace(held, data=held.data[: high.end()] + low[0] + held.data[high.end() :])
                data = data[: low.start()] + data[low.end() :]
            ready.append(replace(held, data=whole_json(held.data)))
        event = replace(event, data=data)
        if _last_high(data) is not None:
            self._held = event
        else:
            ready.append(replace(event, data=whole_json(data)))


def _carries_nothing(data: bytes) -> bool:
    """Returns True for a ping or an empty delta of any of the APIs."""
    if len(data) > _NOTHING_BYTES:
        return False
    try:
        event = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    kind, delta = event.get("type"), event.get("delta")
    if kind is not None:
        return kind == "ping" or (str(kind).endswith("delta") and not event.get("usage") and _is_empty(delta))
    choices = event.get("choices")
    if not isinstance(choices, list) or event.get("usage") or event.get("error"):
        return False
    return all(
        _is_empty(choice, "index", "delta") and _is_empty(_delta(choice), "role")
        for choice in cast("list[Any]", choices)
    )


def _delta(choice: Any) -> Any:
    return cast("dict[str, Any]", choice).get("delta") if isinstance(choice, dict) else None


def _is_empty(value: Any, *but: str) -> bool:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return not any(inner for name, inner in fields.items() if name != "type" and name not in but)
    return not value


def _last_high(data: bytes) -> re.Match[bytes] | None:
    """Finds an unpaired high surrogate at the end of a string."""
    return next((half for half in lone_halves(data) if not _is_low(half) and data[half.end() :][:1] == b'"'), None)


def _is_low(half: re.Match[bytes]) -> bool:
    return half[0][3:4] in b"cdefCDEF"


def _begins_text(data: bytes, half: re.Match[bytes]) -> bool:
    at = half.start()
    return data[at - 1 : at] == b'"' and data[at - 2 : at - 1] != b"\\"
