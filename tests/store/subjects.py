# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""The stores that the conformance suite runs on."""

from __future__ import annotations

from pathlib import Path

from weftline.store import open_store, restore_store
from weftline.store.base import Store
from weftline.store.memory import MemoryDisk, MemoryStore
from weftline.store.sqlite.connection import connect


class SqliteSubject:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.store: Store = open_store(path)

    async def reopen(self, *, cleanly: bool = True) -> None:
        await self.store.close()
        if not cleanly:
            db = connect(self._path / "weftline.db")
            db.execute("UPDATE store SET clean = 0")
            db.close()
        self.store = open_store(self._path)

    async def restore(self) -> None:
        backup, path = self._path.with_name("backup"), self._path.with_name("restored")
        await self.store.back_up(backup)
        await self.store.close()
        restore_store(backup, path)
        self._path, self.store = path, open_store(path)


class MemorySubject:
    def __init__(self) -> None:
        self._disk = MemoryDisk()
        self.store: Store = MemoryStore(self._disk)

    async def reopen(self, *, cleanly: bool = True) -> None:
        if cleanly:
            await self.store.close()
        self.store = MemoryStore(self._disk)

    async def restore(self) -> None:
        await self.store.close()
        self._disk.held = True
        self.store = MemoryStore(self._disk)
