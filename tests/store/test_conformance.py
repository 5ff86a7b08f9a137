"""The SQLite store keeps what every store promises (S1, S4, S5, S6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from weftline.store.records import threads, workspaces
from weftline.store.records.threads import NewThread
from weftline.store.sqlite.store import SqliteStore
from weftline.testing.store import CHECKS, Check


class SqliteSubject:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._workspaces = 0
        self.store = SqliteStore(path)

    async def create_workspace(self) -> int:
        self._workspaces += 1
        slug = f"w{self._workspaces}"
        return await self.store.records.write(workspaces.ensure(slug, now=1))

    async def create_thread(self, workspace: int) -> int:
        new = NewThread(workspace=workspace, salt="0" * 12, name="", agent=None, spec=b"{}", metadata="{}")
        return (await self.store.records.write(threads.insert(new, now=1))).key

    async def end_thread(self, thread: int) -> None:
        await self.store.records.write(threads.end(thread, now=2))

    async def reopen(self) -> None:
        self.store.close()
        self.store = SqliteStore(self._path)


@pytest.fixture
async def subject(tmp_path: Path) -> AsyncIterator[SqliteSubject]:
    subject = SqliteSubject(tmp_path / "store")
    yield subject
    subject.store.close()


@pytest.mark.requirement("run.log.seq")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_sqlite_store_keeps_every_promise(subject: SqliteSubject, check: Check) -> None:
    await check(subject)
