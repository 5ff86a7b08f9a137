"""Streams the text of a model into the log.

Joined, the deltas of a turn are the text of its message: characters that a provider split in two are put together here
as they are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from msgspec.json import Encoder

from weftline.kernel.entries import TEXT_DELTA, THINKING_DELTA
from weftline.providers.base import Chunk, TextDelta, ThinkingDelta, UsageUpdate
from weftline.runtime.services import Sink
from weftline.surrogates import whole

_encode_lines = Encoder().encode_lines
_text = attrgetter("text")
_MAX_RUN = 512
"""More deltas of one read than this are merged into this many: each is a separate event for everyone who follows the
run.
"""
_KINDS: dict[type[Chunk], str] = {TextDelta: TEXT_DELTA, ThinkingDelta: THINKING_DELTA}


class Deltas:
    """The text deltas of one attempt."""

    __slots__ = ("_half", "_kind", "_sink", "_tail")

    def __init__(self, sink: Sink, *, turn: int, attempt: int) -> None:
        self._sink = sink
        self._tail = b',"turn":%d,"attempt":%d}' % (turn, attempt)
        self._half = ""
        """The high surrogate that the text so far ended in."""
        self._kind = ""
        """The kind of the latest text."""

    def take(self, chunks: Sequence[Chunk]) -> None:
        """Appends the text of one read; consecutive deltas of one kind become one append."""
        if not self._half and _KINDS.keys().isdisjoint(map(type, chunks)):
            return
        try:
            runs = _encoded(chunks, self._tail) if not self._half else None
        except UnicodeEncodeError:
            runs = None
        for kind, lines, count in _encoded(self._joined(chunks), self._tail) if runs is None else runs:
            self._sink.emit(kind, lines, count)

    def _joined(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The same text in whole characters. A high surrogate waits for the rest of its character while the text
        continues.
        """
        joined: list[Chunk] = []
        for chunk in chunks:
            if isinstance(chunk, UsageUpdate):
                continue
            if not isinstance(chunk, TextDelta | ThinkingDelta):
                self._give_up(joined)
                continue
            kind = TEXT_DELTA if isinstance(chunk, TextDelta) else THINKING_DELTA
            if kind != self._kind:
                self._give_up(joined)
            self._kind = kind
            text = self._half + chunk.text
            self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
            text = whole(text.removesuffix(self._half))
            joined.append(TextDelta(text) if kind == TEXT_DELTA else ThinkingDelta(text))
        return joined

    def _give_up(self, joined: list[Chunk]) -> None:
        """Replaces a surrogate whose other half did not arrive."""
        half, self._half = whole(self._half), ""
        if half:
            joined.append(TextDelta(half) if self._kind == TEXT_DELTA else ThinkingDelta(half))


def _encoded(chunks: Sequence[Chunk], tail: bytes) -> list[tuple[str, bytes, int]]:
    """Runs of deltas of one kind: the kind, their bodies as lines, and how many there are."""
    runs: list[tuple[str, bytes, int]] = []
    for delta, run in groupby(chunks, type):
        kind = _KINDS.get(delta)
        if kind is not None:
            texts = [*filter(None, map(_text, run))]
            if len(texts) > _MAX_RUN:
                step = -(-len(texts) // _MAX_RUN)
                texts = ["".join(texts[first : first + step]) for first in range(0, len(texts), step)]
            if texts:
                # All at once. Line breaks in a text are escaped, so each remaining one ends a delta.
                lines = b'{"text":' + _encode_lines(texts)[:-1].replace(b"\n", tail + b'\n{"text":') + tail
                runs.append((kind, lines, len(texts)))
    return runs
