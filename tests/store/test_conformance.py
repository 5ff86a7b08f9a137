"""Both stores keep what every store promises (S1, S4, S5, S6, S7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from weftline.testing.store import CHECKS, Check

from .subjects import MemorySubject, SqliteSubject


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
