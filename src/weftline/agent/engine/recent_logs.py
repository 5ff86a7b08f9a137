"""Keeps the logs of a few runs in memory after their owners have left."""

from __future__ import annotations

from collections import deque

from weftline.kernel.entries import KIND, CallStarted, decode_fact
from weftline.runtime import ids
from weftline.runtime.engine import Engine
from weftline.store.memory import MemoryStore

MAX_RETAINED = 64
_STARTED = KIND[CallStarted]
_MANY = 2**31 - 1


class RecentLogs:
    """The last `MAX_RETAINED` runs without an owner, each with the runs below it."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._keys: deque[int] = deque()

    async def add(self, host: Engine, key: int) -> None:
        self._keys.append(key)
        if len(self._keys) > MAX_RETAINED:
            for old in await _with_children(host, self._keys.popleft()):
                self._store.remove_run(old)


async def _with_children(host: Engine, key: int) -> list[int]:
    """Returns a run and all runs below it."""
    found = [key]
    for fact in await host.stored.newest_facts(key, kinds=(_STARTED,), limit=_MANY, max_bytes=_MANY):
        head = decode_fact.decode(fact.head)
        if isinstance(head, CallStarted) and head.child:
            found += await _with_children(host, ids.key_of(head.child))
    return found
