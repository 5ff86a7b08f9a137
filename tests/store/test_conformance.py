# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""Both stores keep what every store promises (S1, S4, S5, S6, S7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from weftline.store import open_store
from weftline.store.base import Store
from weftline.store.memory import MemoryDisk, MemoryStore
from weftline.store.sqlite.connection import connect
from weftline.testing.store import CHECKS, Check


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


class MemorySubject:
    def __init__(self) -> None:
        self._disk = MemoryDisk()
        self.store: Store = MemoryStore(self._disk)

    async def reopen(self, *, cleanly: bool = True) -> None:
        if cleanly:
            await self.store.close()
        self.store = MemoryStore(self._disk)


@pytest.fixture
async def on_sqlite(tmp_path: Path) -> AsyncIterator[SqliteSubject]:
    subject = SqliteSubject(tmp_path / "store")
    yield subject
    await subject.store.close()


@pytest.mark.requirement("run.log.seq")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_sqlite_store_keeps_every_promise(on_sqlite: SqliteSubject, check: Check) -> None:
    await check(on_sqlite)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_store_in_memory_keeps_every_promise(check: Check) -> None:
    await check(MemorySubject())
