"""The embedded engine shows what every engine must show, on a store in memory and on SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime.subjects import EmbeddedSubject
from store.subjects import MemorySubject, SqliteSubject
from weftline.testing import store
from weftline.testing.engine import CHECKS, Bench, Check, World


def in_memory(folder: Path) -> store.Subject:
    return MemorySubject()


def on_sqlite(folder: Path) -> store.Subject:
    return SqliteSubject(folder / "store")


@pytest.fixture(params=[in_memory, on_sqlite], ids=["memory", "sqlite"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    world, stores = World(), request.param(tmp_path)
    subject = EmbeddedSubject(stores, world)
    await subject.start()
    yield Bench(subject, world)
    world.released.set()
    await subject.close()
    await stores.store.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_embedded_engine_shows_what_every_engine_must(bench: Bench, check: Check) -> None:
    await check(bench)
