"""The events of a run in this process or in a store, as streams send and clients read them."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from msgspec.json import Decoder

from weftline.client.events import Frame, frame_of
from weftline.events.frames import observed, payload_of
from weftline.events.project import HIDDEN
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import FORMAT
from weftline.runtime.decoding import check_observations, facts_in, require_skippable
from weftline.runtime.engine import Engine, EntryBatch
from weftline.runtime.hub import PAGE_BYTES
from weftline.store.base import LogReader
from weftline.store.rows import Item

logger = logging.getLogger(__name__)

_decode_payload = Decoder(dict[str, Any]).decode


def frames_of(batch: EntryBatch) -> Iterator[Frame]:
    """Yields the client events of a batch of entries.

    Raises `StoreError` at an unreadable entry, and `Conflict` at an end that only newer code can read; other entries of
    newer code are left out.
    """
    facts = facts_in(batch)
    for item in batch.items:
        try:
            if not item.head:
                if batch.heads is None:
                    check_observations(item)
                if item.kind not in HIDDEN:
                    yield from _observed(batch, item)
                continue
            projected = payload_of(next(facts), item.body, run_id=batch.run_id)
        except UNREADABLE:
            require_skippable(batch, item)
            logger.warning("run %s: entry %d was written by newer code and is not shown", batch.run_id, item.seq)
            continue
        if projected is not None:
            kind, payload = projected
            yield frame_of(kind, _decode_payload(payload), run_id=batch.run_id, seq=item.seq)


def _observed(batch: EntryBatch, item: Item) -> Iterator[Frame]:
    for seq, kind, payload in observed(item.seq, item.kind, item.body, after=batch.after, upto=batch.last_seq):
        yield frame_of(kind, _decode_payload(payload), run_id=batch.run_id, seq=seq)


async def live_frames(engine: Engine, key: int, run_id: str) -> AsyncGenerator[Frame]:
    """Yields the frames from the first; ends with the run, or when the engine stops."""
    follower = engine.follow(key, run_id)
    try:
        while (batches := await follower.next()) is not None:
            for batch in batches:
                for frame in frames_of(batch):
                    yield frame
    finally:
        follower.close()


async def stored_frames(log: LogReader, key: int, run_id: str, *, after: int = 0) -> AsyncGenerator[Frame]:
    """Yields the frames that the log has now."""
    while (page := await log.page(key, after=after, max_bytes=PAGE_BYTES)) is not None and page.last_seq > after:
        batch = EntryBatch(
            run_id,
            page.items,
            size=sum(item.size for item in page.items),
            last_seq=page.last_seq,
            ended=page.ended and page.last_seq >= page.upto,
            after=after,
            newer=page.format > FORMAT,
        )
        after = page.last_seq
        for frame in frames_of(batch):
            yield frame
