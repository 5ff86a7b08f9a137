# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""The stores that the conformance suite runs on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from weftline.store import restore_store
from weftline.store.base import Store
from weftline.store.memory import MemoryDisk, MemoryStore
from weftline.store.sqlite.connection import connect
from weftline.store.sqlite.store import SqliteStore, stop_process


class SqliteSubject:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._stopped: asyncio.Event | None = None
        self._store = self._open()

    @property
    def store(self) -> Store:
        return self._store

    def _open(self) -> SqliteStore:
        return SqliteStore(self._path, on_fatal=self._on_fatal)

    async def reopen(self, *, cleanly: bool = True) -> None:
        await self.store.close()
        if not cleanly:
            db = connect(self._path / "weftline.db")
            db.execute("UPDATE store SET clean = 0")
            db.close()
        self._store = self._open()

    async def take_over(self) -> Store:
        """The lock is released first: it keeps every other owner out until the file system loses it."""
        old, self._loop, self._stopped = self._store, asyncio.get_running_loop(), asyncio.Event()
        old._directory.release()  # pyright: ignore[reportPrivateUsage]
        self._store = self._open()
        return old

    async def stopped(self) -> None:
        assert self._stopped is not None, "nobody was replaced"
        await self._stopped.wait()

    def _on_fatal(self, reason: str) -> None:
        if self._stopped is None:
            stop_process(reason)
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def restore(self) -> None:
        backup, path = self._path.with_name("backup"), self._path.with_name("restored")
        await self.store.back_up(backup)
        await self.store.close()
        restore_store(backup, path)
        self._path = path
        self._store = self._open()


class MemorySubject:
    def __init__(self) -> None:
        self._disk = MemoryDisk()
        self.store: Store = MemoryStore(self._disk)

    async def reopen(self, *, cleanly: bool = True) -> None:
        if cleanly:
            await self.store.close()
        self.store = MemoryStore(self._disk)

    async def take_over(self) -> Store:
        old, self.store = self.store, MemoryStore(self._disk)
        return old

    async def stopped(self) -> None:
        await asyncio.Event().wait()

    async def restore(self) -> None:
        await self.store.close()
        self._disk.held = True
        self.store = MemoryStore(self._disk)
