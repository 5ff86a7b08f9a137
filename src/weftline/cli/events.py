"""The events of a run in this process or in a store: the frames of the stream, read as the client reads them."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from weftline.client.events import Event, parse_event
from weftline.net.sse import SseParser
from weftline.runtime.engine import Engine, EntryBatch
from weftline.runtime.hub import PAGE_BYTES
from weftline.server.sse import sse_frames
from weftline.store.base import LogReader


class _Frames:
    """Turns batches of entries into events."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._parser = SseParser()

    def events(self, batch: EntryBatch) -> list[Event]:
        return [parse_event(frame, run_id=self._run_id) for frame in self._parser.feed(batch.view(sse_frames))]


async def live_events(engine: Engine, key: int, run_id: str) -> AsyncGenerator[Event]:
    """From the first; ends with the run, or when the engine stops."""
    frames = _Frames(run_id)
    follower = engine.follow(key, run_id)
    try:
        while (batches := await follower.next()) is not None:
            for batch in batches:
                for event in frames.events(batch):
                    yield event
    finally:
        follower.close()


async def stored_events(log: LogReader, key: int, run_id: str, *, after: int = 0) -> AsyncGenerator[Event]:
    """Those that the log has at this moment."""
    frames = _Frames(run_id)
    while (page := await log.page(key, after=after, max_bytes=PAGE_BYTES)) is not None and page.last_seq > after:
        batch = EntryBatch(
            run_id,
            page.items,
            size=sum(item.size for item in page.items),
            last_seq=page.last_seq,
            ended=page.ended,
            after=after,
        )
        after = page.last_seq
        for event in frames.events(batch):
            yield event
