"""The embedded engine shows what every engine must show, on a store in memory and on SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from weftline.providers.catalog import Catalog
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.tool_calls.toolbox import ToolSource
from weftline.store import open_store
from weftline.store.base import Store
from weftline.store.memory import MemoryDisk, MemoryStore
from weftline.testing.engine import CHECKS, Bench, Check, World


class EmbeddedSubject:
    def __init__(self, open_again: Callable[[], Store], *, models: Catalog, tools: ToolSource) -> None:
        self._open = open_again
        self._models = models
        self._tools = tools
        self._begin()

    def _begin(self, store: Store | None = None) -> None:
        self.store = store or self._open()
        self.engine = EmbeddedEngine(self.store, models=self._models, tools=self._tools)

    async def start(self) -> None:
        await self.engine.start()

    async def restart(self, change: Callable[[Store], Awaitable[None]] | None = None) -> None:
        await self.close()
        store = self._open()
        if change is not None:
            await change(store)
        self._begin(store)
        await self.start()

    async def close(self) -> None:
        await self.engine.stop(drain_s=0)


def in_memory(folder: Path) -> Callable[[], Store]:
    disk = MemoryDisk()
    return lambda: MemoryStore(disk)


def on_sqlite(folder: Path) -> Callable[[], Store]:
    return lambda: open_store(folder / "store")


@pytest.fixture(params=[in_memory, on_sqlite], ids=["memory", "sqlite"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    world = World()
    subject = EmbeddedSubject(request.param(tmp_path), models=world.models(), tools=world.tools())
    await subject.start()
    yield Bench(subject, world)
    world.released.set()
    await subject.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_embedded_engine_shows_what_every_engine_must(bench: Bench, check: Check) -> None:
    await check(bench)
