"""The events of a run in this process or in a store, as streams send and clients read them."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from msgspec.json import Decoder

from weftline.client.events import Frame, frame_of
from weftline.errors import entry_damaged
from weftline.kernel.damage import UNREADABLE, observations_are_readable
from weftline.kernel.entries import FORMAT, decode_fact
from weftline.runtime.engine import Engine, EntryBatch
from weftline.runtime.hub import PAGE_BYTES
from weftline.store.base import LogReader
from weftline.wire.events import project
from weftline.wire.observed import HIDDEN, observed

logger = logging.getLogger(__name__)

_decode_payload = Decoder(dict[str, Any]).decode


def frames_of(batch: EntryBatch) -> Iterator[Frame]:
    """Yields the client events of a batch of entries.

    Raises `StoreError` at an unreadable entry; entries of newer code are left out.
    """
    heads = iter(batch.heads) if batch.heads is not None else None
    for item in batch.items:
        if not item.head:
            if batch.heads is None and not observations_are_readable(item.kind, item.body, item.count):
                if not batch.newer:
                    raise entry_damaged(batch.run_id, item.seq)
                continue
            if item.kind in HIDDEN:
                continue
            for seq, kind, payload in observed(item.seq, item.kind, item.body, after=batch.after, upto=batch.last_seq):
                yield frame_of(kind, _decode_payload(payload), run_id=batch.run_id, seq=seq)
            continue
        try:
            fact = next(heads) if heads is not None else decode_fact.decode(item.head)
            projected = project(fact, item.body, run_id=batch.run_id)
        except UNREADABLE:
            if not batch.newer:
                raise entry_damaged(batch.run_id, item.seq) from None
            logger.warning("run %s: entry %d was written by newer code and is not shown", batch.run_id, item.seq)
            continue
        if projected is not None:
            kind, payload = projected
            yield frame_of(kind, _decode_payload(payload), run_id=batch.run_id, seq=item.seq)


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
            ended=page.ended,
            after=after,
            newer=page.format > FORMAT,
        )
        after = page.last_seq
        for frame in frames_of(batch):
            yield frame
