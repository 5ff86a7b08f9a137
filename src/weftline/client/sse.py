"""The lines of an event stream, in whatever pieces they come."""

from __future__ import annotations

from typing import NamedTuple


class Frame(NamedTuple):
    """One complete event. `event` and `id` are empty when the stream gave none."""

    event: str
    id: str
    data: bytes


class FrameParser:
    """Takes bytes and gives the frames that became complete; what no empty line has ended is never given."""

    __slots__ = ("_data", "_event", "_id", "_line", "_skip_lf")

    def __init__(self) -> None:
        self._line = bytearray()
        self._skip_lf = False
        self._event = ""
        self._id = ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Frame]:
        if self._skip_lf and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        if chunk:
            self._skip_lf = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._line += chunk
            return []
        *lines, rest = chunk.split(b"\n")
        lines[0] = bytes(self._line) + lines[0]
        self._line = bytearray(rest)
        return [frame for line in lines if (frame := self._take(line))]

    def _take(self, line: bytes) -> Frame | None:
        if not line:
            frame = Frame(self._event, self._id, b"\n".join(self._data)) if self._data else None
            self._event, self._id, self._data = "", "", []
            return frame
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            self._id = value.decode("utf-8", "replace")
        return None
