"""Runs that were carried out elsewhere."""

from __future__ import annotations

from weftline.store.base import LogStore, Write, Written


async def add_ended(store: LogStore, write: Write) -> Written:
    """Carries out a write that creates runs that have ended, as one that this owner of the store makes."""
    for one in (write, *write.children):
        one.epoch = store.next_epoch()
    [written] = await store.flush([write])
    for one in (write, *write.children):
        store.release(one.key, one.epoch)
    return written
