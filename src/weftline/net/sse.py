"""Parses server-sent events: the streams of model APIs, and in the client those of a Weftline server."""

from __future__ import annotations

from msgspec import Struct

from weftline.net.errors import RequestFailed
from weftline.text.json_size import SMALL_BYTES, excess

MAX_IDLE_LINES = 500_000
"""How many comments, empty events and lines of an unfinished event may follow each other in a useful stream."""


class SseEvent(Struct, frozen=True):
    """One event. `event` and `id` are empty if the event has none; the lines of `data` are joined by newlines."""

    event: str
    data: bytes
    id: str = ""


class SseParser:
    """Parses the bytes of a stream, in pieces of any size, and returns completed events.

    Lines end in CR, LF or CRLF. Comments, `retry` and events without data are left out. An event
    without a final empty line is never returned: the stream was cut. An event whose JSON costs too much to read raises
    `RequestFailed`, and so do endless lines without content.
    """

    __slots__ = ("_begun", "_data", "_event", "_held", "_id", "_idle_lines", "_skip_lf")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        """The pieces of an incomplete line."""
        self._skip_lf = False
        """Whether the last piece ended in CR, so that an LF at the start of the next belongs to it."""
        self._begun = False
        self._event = ""
        self._id = ""
        self._data: list[bytes] = []
        self._idle_lines = 0

    def feed(self, data: bytes) -> list[SseEvent]:
        if self._skip_lf and data:
            self._skip_lf = False
            if data[0] == 0x0A:
                data = data[1:]
        if b"\r" in data:
            self._skip_lf = data[-1] == 0x0D
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in data:
            if data:
                self._held.append(data)
            return []
        if self._held:
            self._held.append(data)
            data = b"".join(self._held)
        lines = data.split(b"\n")
        rest = lines.pop()
        self._held = [rest] if rest else []
        if not self._begun:
            self._begun = True
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        events = self._events(lines)
        if any(event.data for event in events):
            self._idle_lines = 0
        else:
            self._idle_lines += len(lines)
            if self._idle_lines > MAX_IDLE_LINES:
                raise RequestFailed("too_large", "The stream has too many lines without content.", sent=True)
        return events

    def _events(self, lines: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        parts, event, id = self._data, self._event, self._id
        for line in lines:
            if not line:
                if parts:
                    data = b"\n".join(parts)
                    if len(data) >= SMALL_BYTES and (too_much := excess(data)):
                        raise RequestFailed("too_large", f"An event of the stream has {too_much}.", sent=True)
                    events.append(SseEvent(event, data, id))
                    parts = []
                event = id = ""
            elif line.startswith(b"data: "):
                parts.append(line[6:])
            elif line.startswith(b"data:"):
                parts.append(line[5:])
            elif line.startswith(b"event:"):
                event = line[6:].removeprefix(b" ").decode("utf-8", "replace")
            elif line.startswith(b"id:"):
                id = line[3:].removeprefix(b" ").decode("utf-8", "replace")
            elif line == b"data":
                parts.append(b"")
        self._data, self._event, self._id = parts, event, id
        return events
