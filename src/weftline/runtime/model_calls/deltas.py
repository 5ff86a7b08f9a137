"""The text and arguments that a model streams: written into the log, and read back from it after an interruption."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.json import Decoder, Encoder

from weftline.kernel import bodies
from weftline.kernel.entries import KIND, AttemptStarted
from weftline.kernel.notes import ARGS_DELTA, TEXT_DELTA, THINKING_DELTA, ArgsDelta
from weftline.providers.assemble import Assembler, TextRun
from weftline.providers.base import CallArgs, CallStart, Chunk, TextDelta, ThinkingDelta, UsageUpdate
from weftline.runtime.services import Sink
from weftline.store.base import LogReader
from weftline.store.rows import Item
from weftline.text.characters import whole
from weftline.work.heavy import in_turn

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


class ArgumentDeltas:
    """The argument deltas of one attempt."""

    def __init__(self, sink: Sink, *, turn: int, attempt: int) -> None:
        self._sink = sink
        self._turn = turn
        self._attempt = attempt
        self._calls: dict[str | int, tuple[str, str]] = {}

    def take(self, chunks: Sequence[Chunk]) -> None:
        """Appends the content of one read: one piece for each call."""
        pieces: dict[str | int, list[str]] = {}
        for chunk in chunks:
            if isinstance(chunk, CallStart):
                self._calls[chunk.key] = chunk.id or "", chunk.name
            elif isinstance(chunk, CallArgs):
                pieces.setdefault(chunk.key, []).append(chunk.json)
        deltas = [
            bodies.encode(ArgsDelta(*self._calls[key], whole("".join(texts)), self._turn, self._attempt))
            for key, texts in pieces.items()
            if key in self._calls and any(texts)
        ]
        if deltas:
            self._sink.emit(ARGS_DELTA, b"\n".join(deltas), len(deltas))


_PAGE_BYTES = 256 * 1024
_DECODE_ON_LOOP_BYTES = 64 * 1024
"""Starting a thread costs more than decoding this little."""


class _Delta(Struct):
    text: str


_decode = Decoder(_Delta).decode


async def streamed_answer(store: LogReader, key: int) -> Assembler | None:
    """The answer of the run's latest attempt as far as it is in the log; None if nothing of it was streamed."""
    started = await store.newest_facts(key, kinds=(KIND[AttemptStarted],), limit=1, max_bytes=_PAGE_BYTES)
    if not started:
        return None
    answer = Assembler("")
    after, begun = started[-1].seq, False
    while (page := await store.page(key, after=after, max_bytes=_PAGE_BYTES)) is not None and page.items:
        deltas = [item for item in page.items if item.kind in (TEXT_DELTA, THINKING_DELTA)]
        if sum([item.size for item in deltas]) <= _DECODE_ON_LOOP_BYTES:
            chunks = _chunks(deltas)
        else:
            chunks = await in_turn(_chunks, deltas)
        answer.feed(chunks)
        begun = begun or bool(chunks)
        after = page.last_seq
    return answer if begun else None


def _chunks(deltas: Sequence[Item]) -> list[Chunk]:
    chunks: list[Chunk] = []
    for item in deltas:
        text = "".join([_decode(body).text for body in item.body.split(b"\n")])
        chunks.append(TextDelta(text) if item.kind == TEXT_DELTA else ThinkingDelta(text))
    return chunks
