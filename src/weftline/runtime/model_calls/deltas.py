"""Streams the text of a model into the log.

Joined, the deltas of a turn are the text of its message: characters that a provider split in two are put together here
as they are there.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.json import Encoder

from weftline.kernel.notes import TEXT_DELTA, THINKING_DELTA
from weftline.providers.assemble import TextRun
from weftline.providers.base import Chunk, TextDelta, ThinkingDelta, UsageUpdate
from weftline.runtime.services import Sink
from weftline.text.surrogates import whole

_encode_lines = Encoder().encode_lines
_MAX_RUN = 512
"""More deltas of one read than this are merged into this many: each is a separate event for everyone who follows the
run.
"""


class Deltas:
    """The text deltas of one attempt."""

    __slots__ = ("_half", "_kind", "_sink", "_tail")

    def __init__(self, sink: Sink, *, turn: int, attempt: int) -> None:
        self._sink = sink
        self._tail = b',"turn":%d,"attempt":%d}' % (turn, attempt)
        self._half = ""
        """The high surrogate that the text so far ended in."""
        self._kind: type[TextDelta] | type[ThinkingDelta] = TextDelta
        """The kind of the latest text."""

    def take(self, chunks: Sequence[Chunk], runs: Sequence[TextRun]) -> None:
        """Appends the text of one read, of which `runs` are the texts; each of them becomes one append."""
        try:
            encoded = _encoded(runs, self._tail) if not self._half else None
        except UnicodeEncodeError:
            encoded = None
        for kind, lines, count in _encoded(self._joined(chunks), self._tail) if encoded is None else encoded:
            self._sink.emit(kind, lines, count)

    def _joined(self, chunks: Sequence[Chunk]) -> list[TextRun]:
        """The same text in whole characters. A high surrogate waits for the rest of its character while the text
        continues.
        """
        joined: list[TextRun] = []
        for chunk in chunks:
            if isinstance(chunk, UsageUpdate):
                continue
            if not isinstance(chunk, TextDelta | ThinkingDelta):
                self._give_up(joined)
                continue
            if type(chunk) is not self._kind:
                self._give_up(joined)
            self._kind = type(chunk)
            text = self._half + chunk.text
            self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
            self._add(whole(text.removesuffix(self._half)), joined)
        return joined

    def _give_up(self, joined: list[TextRun]) -> None:
        """Replaces a surrogate whose other half did not arrive."""
        half, self._half = whole(self._half), ""
        if half:
            self._add(half, joined)

    def _add(self, text: str, joined: list[TextRun]) -> None:
        if joined and joined[-1][0] is self._kind:
            joined[-1][1].append(text)
        else:
            joined.append((self._kind, [text]))


def _encoded(runs: Sequence[TextRun], tail: bytes) -> list[tuple[str, bytes, int]]:
    """The kind of each run, the bodies of its deltas as lines, and how many there are."""
    encoded: list[tuple[str, bytes, int]] = []
    for kind, run in runs:
        texts = [*filter(None, run)]
        if len(texts) > _MAX_RUN:
            step = -(-len(texts) // _MAX_RUN)
            texts = ["".join(texts[first : first + step]) for first in range(0, len(texts), step)]
        if texts:
            # All at once. Line breaks in a text are escaped, so each remaining one ends a delta.
            lines = b'{"text":' + _encode_lines(texts)[:-1].replace(b"\n", tail + b'\n{"text":') + tail
            encoded.append((TEXT_DELTA if kind is TextDelta else THINKING_DELTA, lines, len(texts)))
    return encoded
