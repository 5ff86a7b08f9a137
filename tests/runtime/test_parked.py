"""Runs that wait: nobody but whoever they wait for moves them, and a restart does not. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.server import WallClock
from msgspec.structs import replace

from runtime.kit import MoodyLog, MoodyStore, ended, engine_on, facts, plan
from weftline.errors import RateLimited, WeftlineError
from weftline.kernel.entries import AwaitClosed, CallClosed, Limits
from weftline.messages import ToolResults
from weftline.plan import LocalRef, RunPlan, ServerRef
from weftline.providers.scripted import ScriptedProvider
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet import holding
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.runtime.fleet.timers import MAX_GRACE_US
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import as_named
from weftline.store.memory import MemoryDisk
from weftline.store.rows import AwaitFilter
from weftline.testing.engine import World as Scripted
from weftline.tools.base import ToolOutput
from weftline.tools.decorator import tool
from weftline.workspace import threads
from weftline.workspace.context import Workspaces
from weftline.workspace.threads import ThreadDraft

SCRIPTS: dict[str, Any] = {
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "thanks"}]},
    "pay": {"turns": [{"tool_calls": [{"name": "pay", "args": {}}]}, {"text": "thanks"}]},
}
HOUR_US = 3_600_000_000


@tool(effect="once", confirm="Pay?", blocking=False)
def pay() -> str:
    """Pays."""
    return "Paid."


class WatchedLog(MoodyLog):
    """Notes what the engine asks of the store, and which runs it loads."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.asked: list[str] = []
        self.broken: set[int] = set()
        """Runs that cannot be loaded, for a reason that nobody has thought of."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if callable(found):
            self.asked.append(name)
        return found

    async def next_due(self, after: int) -> int | None:
        self.asked.append("next_due")
        return await super().next_due(after)

    async def claim(self, key: int, *, kinds: Any) -> Any:
        if key in self.broken:
            raise RuntimeError("a bug")
        return await super().claim(key, kinds=kinds)

    def flush(self, writes: Any) -> Any:
        self.asked.append("flush")
        return super().flush(writes)


class World:
    """One life of an engine on a disk."""

    def __init__(self, disk: MemoryDisk, clock: WallClock) -> None:
        self.store = MoodyStore(disk)
        self.log = self.store.log = WatchedLog(self.store.log._inner)
        self.engine: EmbeddedEngine
        self.provider: ScriptedProvider
        self.engine, self.provider = engine_on(self.store, SCRIPTS, tools={"pay": pay}, clock=clock)


def on_virtual_time(scenario: Callable[[WallClock], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        await scenario(WallClock(loop))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def asking(**limits: Any) -> RunPlan:
    return replace(plan("ask", LocalRef("ask")), limits=replace(Limits(local_timeout_us=100 * HOUR_US), **limits))


def paying(**limits: Any) -> RunPlan:
    return replace(plan("pay", ServerRef("pay")), limits=Limits(**limits))


@pytest.mark.requirement("run.park.wake")
def test_only_the_run_of_an_event_is_woken() -> None:
    async def scenario(clock: WallClock) -> None:
        world = World(MemoryDisk(), clock)
        it, log = world.engine, world.log
        async with it:
            space = await it.workspace("acme")
            plans = {
                "answered": asking(),
                "late": asking(local_timeout_us=2 * HOUR_US, on_local_timeout="report"),
                "resumed": asking(),
                "cancelled": asking(),
                "approved": paying(),
                "expired": paying(await_timeout_us=3 * HOUR_US),
            }
            runs = {name: await it.create(space, asks) for name, asks in plans.items()}
            keys = {name: await it.locate(run_id, workspace=space) for name, run_id in runs.items()}
            await asyncio.sleep(60)
            await it.pause(keys["resumed"])
            await it.answer(keys["resumed"], "call_0_0", ToolOutput.of("42"))
            await asyncio.sleep(60)
            assert log.released >= set(keys.values()), "they are not in memory"
            awaits = {one.run: one.id for one in await it.stored.awaits(AwaitFilter(workspace=space))}

            async def wakes(name: str, event: Coroutine[Any, Any, object]) -> None:
                before = len(world.provider.requests)
                log.claimed.clear()
                await event
                heads = await facts(it, runs[name], space)
                assert log.claimed == [keys[name]]
                if name == "cancelled":
                    assert len(world.provider.requests) == before
                    return
                (request,) = world.provider.requests[before:]
                first, said, results = request.messages
                assert [type(one).__name__ for one in (first, said)] == ["User", "Assistant"]
                assert isinstance(results, ToolResults)
                assert sum(isinstance(head, CallClosed) for head in heads) == 1

            log.asked.clear()
            await asyncio.sleep(3000)
            assert log.asked == [], "nothing happens, and nothing is asked"
            await wakes("answered", it.answer(keys["answered"], "call_0_0", ToolOutput.of("42")))
            await wakes("resumed", it.resume(keys["resumed"]))
            await wakes("cancelled", it.cancel(keys["cancelled"]))
            yes = AwaitAnswer(outcome="approved")
            await wakes(
                "approved",
                it.answer_await(keys["approved"], awaits[keys["approved"]], yes, by="ann", person_of=as_named),
            )
            await wakes("late", asyncio.sleep(7200 - 3000))
            await wakes("expired", asyncio.sleep(3600))

    on_virtual_time(scenario)


@pytest.mark.requirement("run.park.restart")
def test_restart_leaves_parked_runs_and_their_deadlines_alone() -> None:
    async def scenario(clock: WallClock) -> None:
        disk = MemoryDisk()
        first = World(disk, clock)
        async with first.engine as it:
            space = await it.workspace("acme")
            begun_us = clock.now_us()
            plans = {
                "waits": asking(),
                "asks": paying(),
                "paused": asking(),
                "ahead": paying(await_timeout_us=2 * HOUR_US),
                "passed": paying(await_timeout_us=HOUR_US // 2),
            }
            runs = {name: await it.create(space, asks) for name, asks in plans.items()}
            await asyncio.sleep(60)
            await it.pause(await it.locate(runs["paused"], workspace=space))
            await asyncio.sleep(60)
            awaits = await it.stored.awaits(AwaitFilter(workspace=space))
        before = {run.row.key: list(run.items) for run in disk.runs.values()}
        for _ in range(2):
            again = World(disk, clock)
            async with again.engine as it:
                await asyncio.sleep(300)
                assert await it.stored.awaits(AwaitFilter(workspace=space)) == awaits, "the same ids and deadlines"
                assert {run.row.key: list(run.items) for run in disk.runs.values()} == before
                assert again.provider.requests == []
        await asyncio.sleep(3600)  # nobody is there when the time of one of them passes
        last = World(disk, clock)
        async with last.engine as it:
            await asyncio.sleep(MAX_GRACE_US / 1e6 + 1)
            expired = [head for head in await facts(it, runs["passed"], space) if isinstance(head, AwaitClosed)]
            assert [head.outcome for head in expired] == ["expired"]
            assert len(last.provider.requests) == 1
            await asyncio.sleep((begun_us + 2 * HOUR_US - clock.now_us()) / 1e6 + 1)
            at = await expiry(it, runs["ahead"], space)
            assert begun_us + 2 * HOUR_US <= at < begun_us + 2 * HOUR_US + 1_000_000
            key = await it.locate(runs["waits"], workspace=space)
            await it.answer(key, "call_0_0", ToolOutput.of("42"))
            assert (await ended(it, runs["waits"], space)).status == "succeeded"

    on_virtual_time(scenario)


async def expiry(it: EmbeddedEngine, run_id: str, workspace: int) -> int:
    """When nobody had answered the await of a run in time, once the run has ended."""
    await ended(it, run_id, workspace)
    facts_of_run = await it.stored.logs.facts(await it.locate(run_id, workspace=workspace), kinds=["await.closed"])
    return facts_of_run[0].at


def test_unloadable_run_does_not_delay_the_deadlines_of_others() -> None:
    async def scenario(clock: WallClock) -> None:
        world = World(MemoryDisk(), clock)
        it, log = world.engine, world.log
        async with it:
            space = await it.workspace("acme")
            late = asking(local_timeout_us=HOUR_US, on_local_timeout="report")
            broken, other = [await it.create(space, late) for _ in range(2)]
            await asyncio.sleep(60)
            log.broken.add(await it.locate(broken, workspace=space))
            await asyncio.sleep(3600)
            closed = [head for head in await facts(it, other, space) if isinstance(head, CallClosed)]
            assert [head.how for head in closed] == ["timeout"]
            log.broken.clear()
            assert (await ended(it, broken, space)).status == "succeeded", "it is tried again"

    on_virtual_time(scenario)


def test_unloaded_runs_behind_others_count_as_queued() -> None:
    """The next process has never seen them."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        disk, clock = MemoryDisk(), WallClock(loop)
        limits = WorkspaceLimits(max_queued_runs_per_workspace=3)

        async def refused(it: EmbeddedEngine) -> bool:
            try:
                runs.append(await it.create(space, plan("ask", LocalRef("ask")), thread=thread))
            except RateLimited:
                return True
            return False

        store = MoodyStore(disk)
        it, _ = engine_on(store, SCRIPTS, limits=limits, clock=clock)
        await it.start()
        space = await it.workspace("acme")
        at = Workspaces(store.records, store.vault, clock)
        thread = (await threads.create(at, space, ThreadDraft(name="t", agent=None, spec=b"{}"))).key
        runs: list[str] = []
        assert [await refused(it) for _ in range(5)] == [False] * 4 + [True]
        await it.stop()
        it, _ = engine_on(MoodyStore(disk), SCRIPTS, limits=limits, clock=clock)
        await it.start()
        assert await refused(it)
        await it.cancel(await it.locate(runs[2], workspace=space))
        assert not await refused(it)
        assert await refused(it)
        assert await it.answer(await it.locate(runs[0], workspace=space), "call_0_0", ToolOutput.of("42"))
        await ended(it, runs[0], space)
        await asyncio.sleep(60)
        assert not await refused(it)
        await it.stop()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())


def test_answer_is_accepted_although_tools_open_slowly() -> None:
    """It would open them again, and again."""

    async def scenario(clock: WallClock) -> None:
        world, store = Scripted(), MoodyStore(MemoryDisk())
        async with EmbeddedEngine(store, models=world.models(), tools=world.tools(), clock=clock) as it:
            space = await it.workspace("acme")
            run_id = await it.create(space, plan("refund", ServerRef("refund")))
            key = await it.locate(run_id, workspace=space)
            await asyncio.sleep(60)
            assert key in store.log.released, "it is not in memory"
            [asked] = await it.stored.awaits(AwaitFilter(workspace=space))
            opened = len(world.secrets)
            world.opens.clear()
            edit = AwaitAnswer(outcome="approved", args={"n": 2})
            editing = asyncio.ensure_future(it.answer_await(key, asked.id, edit, by="ann", person_of=as_named))
            await asyncio.sleep(60)
            world.opens.set()
            assert await editing == "approved"
            assert len(world.secrets) == opened + 1

    on_virtual_time(scenario)


def test_opening_runs_push_no_others_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for another would have it read again and again: it would leave before it was found."""
    monkeypatch.setattr(holding, "MAX_RETAINED", 4)

    async def scenario(clock: WallClock) -> None:
        world, store = Scripted(), MoodyStore(MemoryDisk())
        async with EmbeddedEngine(store, models=world.models(), tools=world.tools(), clock=clock) as it:
            space = await it.workspace("acme")
            refunds = plan("refund", ServerRef("refund"))
            run_ids = [await it.create(space, refunds) for _ in range(12)]
            keys = [await it.locate(run_id, workspace=space) for run_id in run_ids]
            await asyncio.sleep(60)
            asked = {one.run: one.id for one in await it.stored.awaits(AwaitFilter(workspace=space))}
            world.opens.clear()
            edit = AwaitAnswer(outcome="approved", args={"n": 2})
            editing = [
                asyncio.ensure_future(it.answer_await(key, asked[key], edit, by="ann", person_of=as_named))
                for key in keys[:9]
            ]
            await asyncio.sleep(1)
            store.log.claimed.clear()
            deny = AwaitAnswer(outcome="denied")
            async with asyncio.timeout(60):
                assert await it.answer_await(keys[9], asked[keys[9]], deny, by="ann", person_of=as_named) == "denied"
                await it.stored.find(run_ids[10], workspace=space)
                await it.cancel(keys[11])
            assert sorted(store.log.claimed) == [keys[9], keys[11]], "each is read once"
            world.opens.set()
            assert await asyncio.gather(*editing) == ["approved"] * 9

    on_virtual_time(scenario)


def test_results_for_a_wait_that_is_none_open_no_tools() -> None:
    async def scenario(clock: WallClock) -> None:
        world, store = Scripted(), MoodyStore(MemoryDisk())
        async with EmbeddedEngine(store, models=world.models(), tools=world.tools(), clock=clock) as it:
            space = await it.workspace("acme")
            run_id = await it.create(space, plan("refund", ServerRef("refund")))
            key = await it.locate(run_id, workspace=space)
            await asyncio.sleep(60)
            opened = len(world.secrets)
            with pytest.raises(WeftlineError, match="wait"):
                await it.provide(key, "await_7", ())
            assert len(world.secrets) == opened

    on_virtual_time(scenario)
