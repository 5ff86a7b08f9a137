"""The whole log of a run, a page at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from weftline.store.base import LogReader
from weftline.store.rows import Item

_PAGE_BYTES = 256 * 1024


async def entries(log: LogReader, key: int) -> AsyncGenerator[Item]:
    """All entries that a run's log has at this moment, in order."""
    after = 0
    while (page := await log.page(key, after=after, max_bytes=_PAGE_BYTES)) is not None and page.last_seq > after:
        after = page.last_seq
        for item in page.items:
            yield item
