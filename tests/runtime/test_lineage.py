"""What runs and those below them bring each other."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from runtime.kit import MoodyStore, ended, plan, until
from runtime.test_parked import on_virtual_time
from weftline.kernel.entries import CancelRequested
from weftline.plan import ServerRef
from weftline.runtime import ids
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet.lineage import Lineage
from weftline.runtime.fleet.task_set import TaskSet
from weftline.runtime.live import Draft
from weftline.store.awaits import AwaitFilter
from weftline.store.memory import MemoryDisk
from weftline.testing.engine import World
from weftline.testing.simulation.server import WallClock


class StuckFleet:
    """Its first run cannot be read, however often that is tried."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, Draft]] = []
        self.all_others = asyncio.Event()

    async def load_with_retry(self, key: int) -> int:
        if key == 1:
            await asyncio.Event().wait()
        return key

    def take(self, run: int, fact: Draft) -> None:
        self.taken.append((run, fact))
        if len(self.taken) == 2:
            self.all_others.set()


async def test_a_child_that_cannot_be_read_keeps_no_other_from_being_cancelled() -> None:
    fleet = StuckFleet()
    lineage = Lineage(cast(Any, None), cast(Any, fleet), cast(Any, fleet), TaskSet(""))
    children = [ids.run_id(key, "0" * 12) for key in (1, 2, 3)]
    cancelling = asyncio.create_task(lineage.cancel(children, by="key:ops"))
    await fleet.all_others.wait()
    cancelling.cancel()
    assert fleet.taken == [(key, Draft(CancelRequested("parent", "key:ops"))) for key in (2, 3)]


def test_a_parent_that_is_only_read_just_as_its_child_has_ended_carries_on() -> None:
    """The end is in the store, and the engine has not been told of it yet."""

    async def scenario(clock: WallClock) -> None:
        world, store = World(), MoodyStore(MemoryDisk())
        async with EmbeddedEngine(store, models=world.models(), tools=world.tools(), clock=clock) as it:
            space = await it.workspace("acme")
            parent = await it.create(space, plan("delegate", ServerRef("delegate"), ServerRef("refund")))
            key = await it.locate(parent, workspace=space)
            await asyncio.sleep(60)  # both have left memory
            [asked] = await it.stored.awaits(AwaitFilter(workspace=space, root=key))
            assert store.log.released == {key, asked.run}
            store.log.told_gate.clear()
            cancelling = asyncio.create_task(it.cancel(asked.run))
            await until(lambda: store.disk.runs[asked.run].row.ended_at)
            reading = asyncio.create_task(it.waits_for_people(key))
            await asyncio.sleep(1)
            store.log.told_gate.set()
            assert not await reading
            assert (await cancelling).status == "cancelled"
            async with asyncio.timeout(1):  # before it leaves memory again, when it would be looked at
                assert (await ended(it, parent, space)).status == "succeeded"

    on_virtual_time(scenario)
