"""What is due is done on time, in virtual seconds, whatever the run is waiting for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.server import WallClock
from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from runtime.kit import MoodyStore, until
from weftline.kernel.entries import (
    KIND,
    AttemptFailed,
    AttemptStarted,
    CallClosed,
    CallOpened,
    Fact,
    FinalForced,
    Limits,
    RunEnded,
    RunPaused,
    TimerFired,
    TurnCompleted,
    decode_fact,
)
from weftline.kernel.policy import PolicyRule
from weftline.messages import Message, User
from weftline.plan import LocalRef, RunPlan
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider, parse_scripts
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.runtime.tool_calls.toolbox import RunName, ServerTools, Toolbox
from weftline.store.memory import MemoryDisk
from weftline.testing.code import IdleCode
from weftline.tools.base import ToolOutput

SCRIPTS: dict[str, Any] = {
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "done"}]},
    "ask_again": {
        "turns": [
            {"tool_calls": [{"name": "ask", "args": {}}]},
            {"tool_calls": [{"name": "ask", "args": {}}]},
            {"text": "done"},
        ]
    },
    "ask_two": {
        "turns": [{"tool_calls": [{"name": "ask", "args": {}}, {"name": "ask", "args": {}}]}, {"text": "done"}]
    },
    "hello": {"turns": [{"text": "hello"}]},
}
SECOND = 1_000_000


class Code(IdleCode):
    """An agent whose watcher takes `slow_s` over a completed turn, and whose check of an answer takes `check_s`."""

    watches = True

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.may_be_overtaken = not scene.fail_closed

    async def on_facts(self, facts: Sequence[Fact], *, messages: Sequence[Message]) -> None:
        for fact in facts:
            self._scene.seen.append(fact)
            if isinstance(fact, TurnCompleted):
                await asyncio.sleep(self._scene.slow_s)

    async def check_output(self, text: str) -> str:
        await asyncio.sleep(self._scene.check_s)
        return ""


class Scene(Struct):
    """How slow the run's surroundings are."""

    slow_s: float = 0.0
    check_s: float = 0.0
    open_s: float = 0.0
    fail_closed: bool = False
    seen: list[Fact] = []
    opened: int = 0
    given_up: int = 0
    """How many openings were cancelled."""


class Tools(ServerTools):
    def __init__(self, scene: Scene) -> None:
        super().__init__({})
        self._scene = scene

    def knows(self, plan: RunPlan) -> bool:
        return True

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        self._scene.opened += 1
        try:
            await asyncio.sleep(self._scene.open_s)
        except asyncio.CancelledError:
            self._scene.given_up += 1
            raise
        toolbox = await super().open(plan, run=run, secrets=secrets)
        watched = self._scene.slow_s or self._scene.check_s
        return Toolbox(toolbox.tools, code=Code(self._scene)) if watched else toolbox


class Stage:
    def __init__(
        self, engine: EmbeddedEngine, scene: Scene, provider: ScriptedProvider, store: MoodyStore, clock: WallClock
    ) -> None:
        self.engine = engine
        self.scene = scene
        self.provider = provider
        self.store = store
        self.clock = clock

    async def run(self, model: str, limits: Limits, *, code: str | None = None) -> int:
        self.space = await self.engine.workspace("acme")
        plan = RunPlan(
            messages=(User.of("x"),), model=f"scripted:{model}", tools=(LocalRef("ask"),), limits=limits, code=code
        )
        run_id = await self.engine.create(self.space, plan)
        return await self.engine.locate(run_id, workspace=self.space)

    async def facts(self, key: int) -> list[tuple[float, Fact]]:
        """Each with the seconds since the run began."""
        stored = await self.engine.stored.logs.facts(key)
        return [((one.at - stored[0].at) / SECOND, decode_fact.decode(one.head)) for one in stored]

    async def when(self, key: int, kind: type[Fact]) -> list[float]:
        return [round(at_s, 3) for at_s, fact in await self.facts(key) if isinstance(fact, kind)]


def play(scenario: Callable[[Stage], Awaitable[None]], scene: Scene, *, max_runs: int = 8) -> None:
    async def playing() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        provider = ScriptedProvider(parse_scripts(encode(SCRIPTS)), record=True)
        models = Catalog()
        models.add(provider)
        limits = replace(WorkspaceLimits(), max_runs_per_workspace=max_runs)
        store, clock = MoodyStore(MemoryDisk()), WallClock(loop)
        engine = EmbeddedEngine(store, models=models, tools=Tools(scene), clock=clock, limits=limits)
        await engine.start()
        await asyncio.sleep(60)  # clients get a grace after a start
        await scenario(Stage(engine, scene, provider, store, clock))
        await engine.stop(drain_s=0)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(playing())


def test_unanswered_call_is_closed_while_a_watcher_works() -> None:
    async def scenario(stage: Stage) -> None:
        key = await stage.run("ask", Limits(local_timeout_us=SECOND, on_local_timeout="report"))
        await asyncio.sleep(100)
        assert await stage.when(key, TimerFired) == await stage.when(key, CallClosed) == [1.0]
        assert await stage.when(key, TurnCompleted) == [0.0, 40.0], "the model waits for the watcher"
        assert await stage.when(key, RunEnded) == [40.0]

    play(scenario, Scene(slow_s=40.0))


def test_run_ends_on_time_while_watcher_is_at_work() -> None:
    async def scenario(stage: Stage) -> None:
        key = await stage.run("ask", Limits(local_timeout_us=SECOND))
        await asyncio.sleep(2)
        assert await stage.when(key, RunEnded) == [1.0]

    play(scenario, Scene(slow_s=40.0))


def test_watchers_see_everything_in_order_however_slow_they_are() -> None:
    scene = Scene(slow_s=40.0)

    async def scenario(stage: Stage) -> None:
        key = await stage.run("ask", Limits(local_timeout_us=SECOND, on_local_timeout="report"))
        await asyncio.sleep(200)
        log = [fact for _, fact in await stage.facts(key)]
        assert scene.seen == log[1:], "all but the first, which created the run"

    play(scenario, scene)


@pytest.mark.parametrize("slow_s", [5.0, 500.0])
def test_the_final_turn_does_not_wait_for_a_watcher(slow_s: float) -> None:
    async def scenario(stage: Stage) -> None:
        key = await stage.run("ask", Limits(policy=PolicyRule(time_budget_us=SECOND), local_timeout_us=2000 * SECOND))
        await asyncio.sleep(0.5)
        (opened,) = [fact for _, fact in await stage.facts(key) if isinstance(fact, CallOpened)]
        assert await stage.engine.answer(key, opened.id, ToolOutput.of("yes"))
        await asyncio.sleep(2)  # its clock stands still while it waits for its client
        assert await stage.when(key, FinalForced) == await stage.when(key, RunEnded) == [1.5]

    play(scenario, Scene(slow_s=slow_s))


def test_strict_watcher_delays_the_final_turn_until_the_grace() -> None:
    async def scenario(stage: Stage) -> None:
        rule = PolicyRule(time_budget_us=SECOND, finalizer_grace_us=2 * SECOND)
        key = await stage.run("ask", Limits(policy=rule, local_timeout_us=2000 * SECOND))
        await asyncio.sleep(0.5)
        (opened,) = [fact for _, fact in await stage.facts(key) if isinstance(fact, CallOpened)]
        assert await stage.engine.answer(key, opened.id, ToolOutput.of("yes"))
        await asyncio.sleep(4)
        assert (await stage.when(key, FinalForced), await stage.when(key, RunEnded)) == ([1.5], [3.5])
        assert len(stage.provider.requests) == 1
        _, ended = (await stage.facts(key))[-1]
        assert isinstance(ended, RunEnded) and ended.code == "time_budget"

    play(scenario, Scene(slow_s=500.0, fail_closed=True))


@pytest.mark.parametrize(("check_s", "ended_s", "status"), [(2.0, 2.0, "succeeded"), (500.0, 4.0, "failed")])
def test_an_answer_is_checked_until_the_grace_is_over(check_s: float, ended_s: float, status: str) -> None:
    async def scenario(stage: Stage) -> None:
        rule = PolicyRule(time_budget_us=SECOND, finalizer_grace_us=3 * SECOND)
        key = await stage.run("hello", Limits(policy=rule, check_output=True))
        await asyncio.sleep(10)
        at_s, ended = (await stage.facts(key))[-1]
        assert isinstance(ended, RunEnded)
        assert (round(at_s, 3), ended.status) == (ended_s, status)

    play(scenario, Scene(check_s=check_s))


def test_a_call_expires_without_its_tools() -> None:
    scene = Scene()

    async def scenario(stage: Stage) -> None:
        key = await stage.run("ask", Limits(local_timeout_us=100 * SECOND))
        await asyncio.sleep(50)  # it has left memory
        scene.open_s = 20.0
        await asyncio.sleep(51)
        assert await stage.when(key, TimerFired) == await stage.when(key, RunEnded) == [100.0]
        assert scene.opened == 1

    play(scenario, scene)


def test_a_call_expires_while_tools_are_opened() -> None:
    scene = Scene()

    async def scenario(stage: Stage) -> None:
        key = await stage.run("ask_two", Limits(local_timeout_us=100 * SECOND, on_local_timeout="report"))
        await asyncio.sleep(90)
        scene.open_s = 20.0
        first, _ = [fact for _, fact in await stage.facts(key) if isinstance(fact, CallOpened)]
        await stage.engine.pause(key)
        await stage.engine.answer(key, first.id, ToolOutput.of("yes"))
        await stage.engine.resume(key)
        await asyncio.sleep(60)
        assert await stage.when(key, CallClosed) == [90.0, 100.0]
        assert await stage.when(key, RunEnded) == [120.0], "the model needs the tools"
        assert scene.opened == 2

    play(scenario, scene)


def test_overdue_parked_run_ends_although_its_tools_do_not_open() -> None:
    """Its hooks would be called at its end, so they are given some time."""
    scene = Scene()

    async def scenario(stage: Stage) -> None:
        key = await stage.run("ask", Limits(local_timeout_us=100 * SECOND), code="helper")
        await asyncio.sleep(90)
        scene.open_s = 3600.0
        await asyncio.sleep(60)
        assert await stage.when(key, TimerFired) == [100.0, 110.0]
        assert await stage.when(key, RunEnded) == [110.0]
        assert (scene.opened, scene.given_up) == (2, 1)

    play(scenario, scene)


@pytest.mark.parametrize("code", [None, "helper"])
def test_run_is_cancelled_at_once_while_its_tools_open(code: str | None) -> None:
    scene = Scene(open_s=3600.0)

    async def scenario(stage: Stage) -> None:
        key = await stage.run("hello", Limits(), code=code)
        await asyncio.sleep(10)
        await stage.engine.cancel(key)
        await asyncio.sleep(10)
        assert await stage.when(key, RunEnded) == [10.0]
        assert (scene.opened, scene.given_up) == (1, 1)

    play(scenario, scene)


def test_a_call_expires_although_no_slot_is_free() -> None:
    scene = Scene()

    async def scenario(stage: Stage) -> None:
        limits = Limits(local_timeout_us=10 * SECOND, on_local_timeout="report")
        waiting = await stage.run("ask", limits)
        await asyncio.sleep(1)
        scene.slow_s = 40.0
        await stage.run("hello", Limits())  # its watcher keeps the only slot
        await asyncio.sleep(15)
        assert await stage.when(waiting, CallClosed) == [10.0]
        assert not await stage.when(waiting, RunEnded)
        await asyncio.sleep(60)
        assert await stage.when(waiting, RunEnded) == [41.0]

    play(scenario, scene, max_runs=1)


def test_a_queued_run_hears_of_one_deadline_after_another() -> None:
    scene = Scene()

    async def scenario(stage: Stage) -> None:
        waiting = await stage.run("ask_two", Limits(local_timeout_us=9 * SECOND, on_local_timeout="report"))
        await asyncio.sleep(0.5)
        first, second = [fact.id for _, fact in await stage.facts(waiting) if isinstance(fact, CallOpened)]
        await stage.engine.claim(waiting, first, lease_us=SECOND)
        await stage.engine.claim(waiting, second, lease_us=5 * SECOND)
        scene.slow_s = 40.0
        await stage.run("hello", Limits())  # its watcher keeps the only slot
        await asyncio.sleep(15)
        assert await stage.when(waiting, TimerFired) == [1.5, 5.5, 9.0], "the first of them made it queue"
        assert await stage.when(waiting, CallClosed) == [9.0, 9.0]
        assert not await stage.when(waiting, RunEnded)

    play(scenario, scene, max_runs=1)


def test_queued_run_is_told_once_that_its_time_is_up() -> None:
    """It has heard of a later time than that. Telling it for ever would be noticed by the loop."""
    scene = Scene()

    async def scenario(stage: Stage) -> None:
        rule = PolicyRule(time_budget_us=5 * SECOND)
        limits = Limits(policy=rule, local_timeout_us=10 * SECOND, on_local_timeout="report")
        waiting = await stage.run("ask_again", limits)
        await asyncio.sleep(11)
        assert await stage.when(waiting, TimerFired) == [10.0]
        _, second = [fact.id for _, fact in await stage.facts(waiting) if isinstance(fact, CallOpened)]
        scene.slow_s = 40.0
        await stage.run("hello", Limits())  # its watcher keeps the only slot
        await asyncio.sleep(1)
        stage.clock.offset_s -= 3600
        assert await stage.engine.answer(waiting, second, ToolOutput.of("yes"))
        await asyncio.sleep(30)
        assert await stage.when(waiting, TimerFired) == [10.0, 17 - 3600.0]

    play(scenario, scene, max_runs=1)


def test_run_gets_an_alarm_that_rang_early() -> None:
    async def scenario(stage: Stage) -> None:
        stage.store.log.holds = KIND[CallOpened]
        stage.store.log.gate.clear()
        key = await stage.run("ask", Limits(local_timeout_us=SECOND))
        await asyncio.sleep(5)
        stage.store.log.gate.set()
        await asyncio.sleep(0.5)
        assert await stage.when(key, RunEnded) == [5.0]

    play(scenario, Scene())


def test_a_pause_is_recorded_while_a_watcher_is_at_work() -> None:
    async def scenario(stage: Stage) -> None:
        key = await stage.run("ask", Limits(local_timeout_us=100 * SECOND))
        await asyncio.sleep(1)
        (opened,) = [fact for _, fact in await stage.facts(key) if isinstance(fact, CallOpened)]
        await stage.engine.pause(key)
        await stage.engine.answer(key, opened.id, ToolOutput.of("yes"))
        assert await stage.when(key, RunPaused) == await stage.when(key, CallClosed) == [1.0]
        await asyncio.sleep(60)
        assert await stage.when(key, AttemptStarted) == [0.0], "it is paused"

    play(scenario, Scene(slow_s=40.0))


class Leaving(IdleCode):
    """Holds its driver twice: when a model call has failed, and after its last check, as it leaves."""

    def __init__(self) -> None:
        self.failed, self.leaves = asyncio.Event(), asyncio.Event()
        self.held = 0

    async def on_facts(self, facts: Sequence[Fact], *, messages: Sequence[Message]) -> None:
        if any(isinstance(fact, AttemptFailed) for fact in facts):
            self.held += 1
            await self.failed.wait()
        elif self.held == 1 and not facts:
            self.held += 1
            await self.leaves.wait()


class LeavingTools(ServerTools):
    def __init__(self) -> None:
        super().__init__({})
        self.code = Leaving()

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        return Toolbox((await super().open(plan, run=run, secrets=secrets)).tools, code=self.code)


async def test_run_resumed_during_a_stop_is_due_with_its_attempt() -> None:
    disk, tools = MemoryDisk(), LeavingTools()
    scripts = {"flaky": {"turns": [{"error": {"class": "overloaded", "retryable": True}}, {"text": "done"}]}}
    models = Catalog()
    models.add(ScriptedProvider(parse_scripts(encode(scripts))))
    engine = await EmbeddedEngine(MoodyStore(disk), models=models, tools=tools).start()
    space = await engine.workspace("acme")
    run_id = await engine.create(space, RunPlan(messages=(User.of("x"),), model="scripted:flaky"))
    key = await engine.locate(run_id, workspace=space)
    await until(lambda: tools.code.held == 1)
    await engine.pause(key)
    tools.code.failed.set()
    await until(lambda: tools.code.held == 2)
    await engine.resume(key)
    await engine.drain(0)
    tools.code.leaves.set()
    await engine.stop()
    heads = [decode_fact.decode(one.head) for one in await MoodyStore(disk).log.facts(key)]
    assert [one.retry_at for one in heads if isinstance(one, AttemptFailed)] == [disk.runs[key].row.due_at]
