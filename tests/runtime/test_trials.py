"""How long a run is on trial after the process died. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from campaigns.simulation.loop import VirtualLoop
from msgspec.structs import replace

from runtime.kit import MoodyStore, engine_on, plan
from weftline.kernel.entries import Fact, Limits, MessageQueued
from weftline.kernel.policy import PolicyRule
from weftline.messages import Message
from weftline.plan import RunPlan
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet import fleet
from weftline.runtime.fleet.holding import KEEP_S, WorkspaceLimits
from weftline.runtime.tool_calls.toolbox import RunName, ServerTools, Toolbox
from weftline.runtime.trials import MAX_READYING, PROBE_S, TRIAL_S
from weftline.store.memory import MemoryDisk
from weftline.store.memory.disk import MemoryRun
from weftline.testing.code import IdleCode

_HANGS = {"deltas": ["a", "b"], "delay_ms": 3_600_000}


def _moves(delay_ms: int) -> dict[str, Any]:
    return {
        "turns": [{"deltas": ["a", "b"], "delay_ms": delay_ms, "tool_calls": [{"name": "none", "args": {}}]}, _HANGS]
    }


SCRIPTS: dict[str, Any] = {
    "hangs": {"turns": [_HANGS]},
    "moves": _moves(2_000),
    "moves after its trial": _moves(4_000),
}


class SlowToOpen(ServerTools):
    def __init__(self) -> None:
        super().__init__({})
        self.may_open = asyncio.Event()

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        await self.may_open.wait()
        return Toolbox({})

    def finish(self) -> None:
        self.may_open.set()


class SlowToWatch(ServerTools):
    def __init__(self) -> None:
        super().__init__({})
        self.watcher = Watcher()

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        return Toolbox({}, code=self.watcher)

    def finish(self) -> None:
        self.watcher.may_go_on.set()


class Watcher(IdleCode):
    watches = True

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()

    async def on_facts(self, facts: Sequence[Fact], *, messages: Sequence[Message]) -> None:
        await self.may_go_on.wait()


class SlowToReadMessages(SlowToWatch):
    """Its watcher is slow only when somebody interferes."""

    def __init__(self) -> None:
        super().__init__()
        self.watcher = MessageWatcher()


class MessageWatcher(Watcher):
    reads = False

    async def on_facts(self, facts: Sequence[Fact], *, messages: Sequence[Message]) -> None:
        if any(isinstance(fact, MessageQueued) for fact in facts):
            self.reads = True
            await self.may_go_on.wait()


Slow = SlowToOpen | SlowToWatch
Recovered = Callable[[EmbeddedEngine, MemoryRun, Slow], Coroutine[Any, Any, None]]
NO_LIMITS = Limits()


def recovered(
    slow: Callable[[], Slow],
    scenario: Recovered,
    monkeypatch: pytest.MonkeyPatch,
    *,
    trial_size: int = 0,
    limits: Limits = NO_LIMITS,
) -> None:
    """Plays what follows after a process died while a model was answering; with `trial_size`, the run is a suspect."""
    monkeypatch.setattr(fleet, "LAST_TRY_S", 0.0)

    async def play() -> None:
        disk = MemoryDisk()
        dead, _ = engine_on(MoodyStore(disk), SCRIPTS)
        await dead.start()
        await dead.create(await dead.workspace("acme"), replace(plan("hangs"), limits=limits))
        await asyncio.sleep(1)
        (run,) = disk.runs.values()
        assert run.items[-1].kind == "delta.text"
        run.row.trial_size = trial_size
        tools = slow()
        it, _ = engine_on(MoodyStore(disk), SCRIPTS, tools=tools)
        await it.start()
        await scenario(it, run, tools)
        tools.finish()
        await it.stop(drain_s=0)
        await dead.stop(drain_s=0)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())


def is_on_trial(run: MemoryRun) -> bool:
    return run.trial > 0


def has_survived(run: MemoryRun) -> bool:
    return run.trial < 0


@pytest.mark.requirement("run.crash.poison")
@pytest.mark.parametrize("slow", [SlowToOpen, SlowToWatch])
def test_trial_time_counts_from_the_return_to_work(slow: type[Slow], monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a killer survives its trial before it has done anything, and kills while an innocent is on trial."""

    async def scenario(it: EmbeddedEngine, run: MemoryRun, tools: Slow) -> None:
        await asyncio.sleep(3 * TRIAL_S)
        assert is_on_trial(run)
        tools.finish()
        await asyncio.sleep(TRIAL_S - PROBE_S - 0.1)
        assert is_on_trial(run)
        await asyncio.sleep(PROBE_S + 0.2)
        assert has_survived(run)

    recovered(slow, scenario, monkeypatch)


@pytest.mark.parametrize("slow", [SlowToOpen, SlowToWatch])
def test_run_never_returning_to_work_does_not_delay_suspects(slow: type[Slow], monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(it: EmbeddedEngine, run: MemoryRun, tools: Slow) -> None:
        await asyncio.sleep(TRIAL_S * (MAX_READYING + 1) + 0.1)
        assert has_survived(run)

    recovered(slow, scenario, monkeypatch)


def test_run_is_back_at_work_although_watchers_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(it: EmbeddedEngine, run: MemoryRun, tools: Slow) -> None:
        await asyncio.sleep(1)
        await it.steer(run.row.key, "Hurry.")
        await asyncio.sleep(0.1)
        assert isinstance(tools, SlowToReadMessages) and tools.watcher.reads and is_on_trial(run)
        await asyncio.sleep(TRIAL_S)
        assert has_survived(run)

    # With a limit of time, the run may be woken while its model is answering.
    limits = Limits(policy=PolicyRule(time_budget_us=3_600_000_000))
    recovered(SlowToReadMessages, scenario, monkeypatch, limits=limits)


@pytest.mark.requirement("run.crash.poison")
def test_run_idle_after_its_trial_is_not_charged_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(it: EmbeddedEngine, run: MemoryRun, tools: Slow) -> None:
        await it.pause(run.row.key)
        await asyncio.sleep(TRIAL_S * (MAX_READYING + 1) + 0.1)
        assert has_survived(run)
        tools.finish()
        await asyncio.sleep(KEEP_S + 0.2)
        assert run.row.due_at is None and run.trial == 0

    recovered(SlowToOpen, scenario, monkeypatch)


@pytest.mark.requirement("run.crash.poison")
def test_suspect_paused_during_its_trial_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(it: EmbeddedEngine, run: MemoryRun, tools: Slow) -> None:
        await asyncio.sleep(0.1)
        assert is_on_trial(run)
        await it.pause(run.row.key)
        tools.finish()
        await asyncio.sleep(KEEP_S + 0.2)
        assert run.row.due_at is None and run.trial == 0
        await it.resume(run.row.key)
        await asyncio.sleep(0.1)
        assert is_on_trial(run)

    recovered(SlowToOpen, scenario, monkeypatch, trial_size=2)


def beside_another(
    model: str,
    scenario: Callable[[MemoryRun, MemoryRun], Coroutine[Any, Any, None]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    tools: Callable[[], Slow] | None = None,
) -> None:
    """Plays what follows for a run that was alone on trial when the process died, and another one, of this model."""
    monkeypatch.setattr(fleet, "LAST_TRY_S", 0.0)

    async def play() -> None:
        disk = MemoryDisk()
        dead, _ = engine_on(MoodyStore(disk), SCRIPTS)
        await dead.start()
        workspace = await dead.workspace("acme")
        await dead.create(workspace, plan("hangs"))
        await dead.create(workspace, plan(model))
        await asyncio.sleep(1)
        suspect, other = disk.runs.values()
        suspect.trial = 1  # in the epoch of the process that dies
        opening = None if tools is None else tools()
        it, _ = engine_on(MoodyStore(disk), SCRIPTS, tools=opening)
        await it.start()
        assert suspect.row.deaths_alone == 1
        if opening is not None:
            asyncio.get_running_loop().call_later(2 * TRIAL_S, opening.finish)
        await scenario(suspect, other)
        await it.stop(drain_s=0)
        await dead.stop(drain_s=0)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())


@pytest.mark.requirement("run.crash.poison")
@pytest.mark.parametrize(("model", "moves_s"), [("moves", 2), ("moves after its trial", 4)])
def test_run_alone_at_death_waits_for_another_that_moved(
    model: str, moves_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one may yet kill the process: it must have had its time before the first is on trial alone."""

    async def scenario(suspect: MemoryRun, other: MemoryRun) -> None:
        await asyncio.sleep(moves_s - 0.1)
        assert has_survived(other) if moves_s > TRIAL_S else is_on_trial(other)
        await asyncio.sleep(0.2)
        assert other.trial == 0
        await asyncio.sleep(2 * TRIAL_S - 0.2)
        assert suspect.trial == 1
        await asyncio.sleep(PROBE_S + 0.2)
        assert suspect.trial == 2

    beside_another(model, scenario, monkeypatch)


@pytest.mark.requirement("run.crash.poison")
def test_run_alone_at_death_waits_for_another_starting_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(suspect: MemoryRun, other: MemoryRun) -> None:
        await asyncio.sleep(3 * TRIAL_S + 0.1)
        assert has_survived(other)
        await asyncio.sleep(TRIAL_S - PROBE_S - 0.2)
        assert suspect.trial == 1
        await asyncio.sleep(2 * PROBE_S + 0.2)
        assert suspect.trial == 2

    beside_another("hangs", scenario, monkeypatch, tools=SlowToOpen)


@pytest.mark.requirement("run.crash.poison")
def test_suspect_waiting_for_a_slot_has_not_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "LAST_TRY_S", 0.0)

    async def play() -> None:
        disk = MemoryDisk()
        dead, _ = engine_on(MoodyStore(disk), SCRIPTS)
        await dead.start()
        workspace = await dead.workspace("acme")
        for _ in range(3):
            await dead.create(workspace, plan("hangs"))
        await asyncio.sleep(1)
        suspect = list(disk.runs.values())[2]
        suspect.row.trial_size = 2
        before = len(suspect.items)
        it, _ = engine_on(MoodyStore(disk), SCRIPTS, limits=WorkspaceLimits(max_runs_per_workspace=2))
        await it.start()
        await asyncio.sleep(4 * TRIAL_S)
        assert len(suspect.items) == before and is_on_trial(suspect)
        await it.stop(drain_s=0)
        await dead.stop(drain_s=0)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())
