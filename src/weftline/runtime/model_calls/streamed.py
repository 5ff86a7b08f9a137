"""The streamed part of an interrupted model call, read from the log: the basis for an estimate of its cost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct
from msgspec.json import Decoder

from weftline.kernel.entries import KIND, AttemptStarted
from weftline.kernel.notes import TEXT_DELTA, THINKING_DELTA
from weftline.providers.assemble import Assembler
from weftline.providers.base import Chunk, TextDelta, ThinkingDelta
from weftline.store.base import LogReader
from weftline.store.rows import Item

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
            chunks = await asyncio.to_thread(_chunks, deltas)
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
