"""What runs and those below them bring each other."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.server import WallClock
from msgspec.json import encode
from msgspec.structs import replace

from runtime.kit import MoodyStore, ended, facts, plan, until
from runtime.test_parked import on_virtual_time
from weftline.kernel.entries import CallClosed, CancelRequested, Limits, RunEnded
from weftline.plan import RunPlan, ServerRef
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider, parse_scripts
from weftline.runtime import ids
from weftline.runtime.agent_code.code import ChildLimits, PendingCall
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet.lineage import Lineage
from weftline.runtime.live import Draft
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import as_named
from weftline.runtime.tasks import TaskSet
from weftline.runtime.tool_calls.toolbox import RunName, ServerTools, Toolbox
from weftline.store.memory import MemoryDisk
from weftline.store.rows import AwaitFilter
from weftline.testing.code import IdleCode
from weftline.testing.engine import World
from weftline.testing.engine.world import Delegate
from weftline.tools.asking import Ask
from weftline.tools.base import ToolContext


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


async def test_unreadable_child_does_not_keep_others_from_being_cancelled() -> None:
    fleet = StuckFleet()
    lineage = Lineage(cast(Any, None), cast(Any, fleet), cast(Any, fleet), TaskSet(""))
    children = [ids.run_id(key, "0" * 12) for key in (1, 2, 3)]
    cancelling = asyncio.create_task(lineage.cancel(children, by="key:ops"))
    await fleet.all_others.wait()
    cancelling.cancel()
    assert fleet.taken == [(key, Draft(CancelRequested("parent", "key:ops"))) for key in (2, 3)]


def test_parent_read_as_its_child_ends_continues() -> None:
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


class Approved(Delegate):
    """A person is asked about each of its calls."""

    def asks_people(self, args: bytes) -> Ask | None:
        return Ask("Delegate?")


class SlowPlanner(IdleCode):
    """Takes two seconds to plan a child, in which others are heard, unless it stalls the loop."""

    def __init__(self, plan: RunPlan, *, stalls: bool) -> None:
        self._plan = plan
        self._stalls = stalls

    async def plan_child(self, call: PendingCall, context: ToolContext, *, limits: ChildLimits) -> RunPlan:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if self._stalls:
            loop.now_s += 2
        else:
            await asyncio.sleep(2)
        return replace(self._plan, model="scripted:hello", tools=())


class SlowlyPlanned(ServerTools):
    def __init__(self, *, stalls: bool) -> None:
        super().__init__({"delegate": Approved(World())})
        self._stalls = stalls

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        toolbox = await super().open(plan, run=run, secrets=secrets)
        return Toolbox(toolbox.tools, code=SlowPlanner(plan, stalls=self._stalls))


@pytest.mark.parametrize("stalls", [True, False], ids=["nobody is told the time", "the run has gone on"])
def test_child_is_not_made_with_an_approval_that_lapsed(stalls: bool, caplog: pytest.LogCaptureFixture) -> None:
    scripts: dict[str, Any] = {
        "delegate": {
            "turns": [
                {"tool_calls": [{"name": "delegate", "args": {}}]},
                {"deltas": ["do", "ne"], "delay_ms": 5000},
            ]
        },
        "hello": {"turns": [{"text": "hello"}]},
    }

    async def scenario(clock: WallClock) -> None:
        disk, models = MemoryDisk(), Catalog()
        models.add(ScriptedProvider(parse_scripts(encode(scripts))))
        async with EmbeddedEngine(
            MoodyStore(disk), models=models, tools=SlowlyPlanned(stalls=stalls), clock=clock
        ) as it:
            space = await it.workspace("acme")
            asks = replace(plan("delegate", ServerRef("delegate")), limits=Limits(grant_ttl_us=1_000_000))
            run_id = await it.create(space, asks)
            await asyncio.sleep(1)
            [asked] = await it.stored.awaits(AwaitFilter(workspace=space))
            yes = AwaitAnswer(outcome="approved")
            await it.answer_await(asked.run, asked.id, yes, by="user:ann", person_of=as_named)
            found = await facts(it, run_id, space)
            assert [one.how for one in found if isinstance(one, CallClosed)] == ["skipped"]
            assert isinstance(found[-1], RunEnded) and found[-1].status == "succeeded"
            assert list(disk.runs) == [asked.run]

    on_virtual_time(scenario)
    assert "failed" not in caplog.text
