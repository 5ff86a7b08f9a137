"""The newest runs' frames in memory, so that a client that opens the stream right after creating a run reads no disk.

A cache of what is in the log, bounded, and never the only place of anything: a run that is long, parked or old has no
tail, and its readers go by the log.
"""

from __future__ import annotations

from collections import OrderedDict

MOST_BYTES = 8 * 1024 * 1024
MOST_EACH = 64 * 1024


class Tail:
    """Frames from seq 1 on, a piece per flush."""

    __slots__ = ("ended", "last_seq", "pieces", "size")

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.last_seq = 0
        self.size = 0
        self.ended = False

    def after(self, seq: int) -> bytes | None:
        """All frames behind `seq`; None when that lies inside a piece."""
        if seq == 0:
            return self.pieces[0][1] if len(self.pieces) == 1 else b"".join([piece for _, piece in self.pieces])
        if seq >= self.last_seq:
            return b""
        for index, (last, _) in enumerate(self.pieces):
            if last == seq:
                return b"".join([piece for _, piece in self.pieces[index + 1 :]])
        return None


class Tails:
    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._tails: OrderedDict[int, Tail] = OrderedDict()
        self._size = 0

    def get(self, run: int) -> Tail | None:
        return self._tails.get(run)

    def begin(self, run: int) -> Tail:
        tail = self._tails[run] = Tail()
        return tail

    def add(self, run: int, tail: Tail, frames: bytes, last_seq: int, *, ended: bool) -> None:
        tail.pieces.append((last_seq, frames))
        tail.last_seq, tail.ended = last_seq, ended
        tail.size += len(frames)
        self._size += len(frames)
        if tail.size > MOST_EACH:
            self.drop(run)
        while self._size > self._most_bytes:
            oldest = next(iter(self._tails))
            self.drop(oldest)

    def drop(self, run: int) -> None:
        tail = self._tails.pop(run, None)
        if tail is not None:
            self._size -= tail.size
