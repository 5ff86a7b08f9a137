"""Importing runs that ran elsewhere."""

from __future__ import annotations

from weftline.store.base import LogStore
from weftline.store.rows import Write, Written


async def add_ended(store: LogStore, write: Write) -> Written:
    """Applies a write that creates ended runs, under an epoch of this owner of the store."""
    for one in (write, *write.children):
        one.epoch = store.next_epoch()
    [written] = await store.flush([write])
    for one in (write, *write.children):
        store.release(one.key, one.epoch)
    return written
