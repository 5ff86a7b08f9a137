"""What can be read of runs and threads, whether they are in memory or not."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.runtime.opening import Names
from weftline.store.awaits import AwaitFilter, OpenAwait
from weftline.store.base import LogStore, RunFilter, RunRow, Stored


class StoredRuns:
    _log_store: LogStore
    _names: Names

    async def row(self, key: int) -> RunRow | None:
        return await self._log_store.run(key)

    async def runs(self, wanted: RunFilter) -> list[RunRow]:
        """Newest first."""
        return await self._log_store.runs(wanted)

    async def count_runs(self, wanted: RunFilter) -> int:
        return await self._log_store.count_runs(wanted)

    async def awaits(self, wanted: AwaitFilter) -> list[OpenAwait]:
        """What people are asked at the moment, by run and id."""
        return await self._log_store.awaits(wanted)

    async def entry(self, key: int, seq: int, *, max_bytes: int | None = None) -> Stored | None:
        return await self._log_store.entry(key, seq, max_bytes=max_bytes)

    async def newest_facts(self, key: int, *, kinds: Sequence[str], limit: int, max_bytes: int) -> list[Stored]:
        return await self._log_store.newest_facts(key, kinds=kinds, limit=limit, max_bytes=max_bytes)

    async def session_id(self, thread: int | None) -> str | None:
        return None if thread is None else await self._names.session(thread)

    async def ends_of_thread(self, thread: int) -> list[bytes]:
        return await self._log_store.ends_of_thread(thread)

    async def thread_messages(self, thread: int) -> list[bytes]:
        return await self._log_store.thread_messages(thread)

    async def thread_size(self, thread: int) -> int:
        return await self._log_store.thread_size(thread)

    async def unfinished(self) -> int:
        return await self._log_store.unfinished()
