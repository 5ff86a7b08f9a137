"""The embedded engine as the conformance suite wants it: on a store that can die, refuse writes and be restored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from weftline.providers.catalog import Catalog
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.engine import OwnedEngine
from weftline.runtime.tool_calls.toolbox import ToolSource
from weftline.store.base import Store
from weftline.testing.engine import World
from weftline.testing.engine.faults import FaultyStore, end_killed
from weftline.testing.store import Subject

NewEngine: TypeAlias = Callable[..., Any]
"""Creates an engine from a store, models and tools."""


class EmbeddedSubject:
    def __init__(self, stores: Subject, world: World, *, new_engine: NewEngine = EmbeddedEngine) -> None:
        self._stores = stores
        self._models: Catalog = world.models()
        self._tools: ToolSource = world.tools()
        self._limits = world.limits
        self._new_engine = new_engine
        self._outside = asyncio.all_tasks()
        self._begin()

    def _begin(self) -> None:
        self._faulty = FaultyStore(self._stores.store)
        self.store: Store = self._faulty
        self.engine: OwnedEngine = self._new_engine(
            self.store, models=self._models, tools=self._tools, limits=self._limits
        )

    async def start(self) -> None:
        await self.engine.start()

    def crash(self) -> None:
        self._faulty.faults.dead = True

    def refuse_writes(self, refuse: bool) -> None:
        self._faulty.faults.refuses = refuse

    async def restart(self, change: Callable[[Store], Awaitable[None]] | None = None) -> None:
        await self.close()
        await self._stores.reopen(cleanly=not self._faulty.faults.dead)
        if change is not None:
            await change(self._stores.store)
        self._begin()
        await self.start()

    async def restore(self) -> None:
        await self.engine.drain(0)
        await self.engine.abort()
        await self._stores.restore()
        self._begin()
        await self.start()

    async def close(self) -> None:
        if self._faulty.faults.dead:
            await end_killed(self.engine, spared=self._outside)
        else:
            await self.engine.stop(drain_s=0)
