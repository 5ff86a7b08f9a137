"""Calls that run side by side end as one does: what they clean up is waited for, and none is made twice at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.server import WallClock
from msgspec.structs import replace

from runtime.kit import TIMEOUT_S, MoodyStore, ended, engine_on, facts, plan, until
from weftline.errors import StoreError
from weftline.kernel.entries import CallClosed, Limits
from weftline.kernel.state import RunTool, State
from weftline.plan import LocalRef, ServerRef
from weftline.runtime import carry_out as carrying
from weftline.runtime import driver
from weftline.runtime import step as stepping
from weftline.runtime.fleet.timers import CLIENT_GRACE_US
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.step import Step
from weftline.store.memory import MemoryDisk
from weftline.tools.base import ToolOutput
from weftline.tools.decorator import tool
from weftline.tools.function import FunctionTool


def _calls(*names: str) -> dict[str, Any]:
    asked = [{"name": name, "args": {"n": n}} for n, name in enumerate(names)]
    return {"turns": [{"tool_calls": asked}, {"text": "done"}]}


SCRIPTS: dict[str, Any] = {
    "one": _calls("work"),
    "two": _calls("work", "work"),
    "mixed": _calls("work", "other"),
    "ask": _calls("work", "other", "ask"),
    "both": _calls("work", "ask"),
}


@tool(effect="read", concurrent=True)
async def other(n: int) -> str:
    """Does something else."""
    return f"other {n}"


class Work:
    """Calls that last until they are told to end, and take their time to clean up."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.cleaned: list[int] = []
        self.under_way = 0
        self.at_once = 0
        self.done: dict[int, asyncio.Event] = {n: asyncio.Event() for n in range(2)}
        self.may_clean = asyncio.Event()
        self.may_clean.set()

    @property
    def tool(self) -> FunctionTool[..., Any]:
        @tool(effect="idempotent", concurrent=True)
        async def work(n: int) -> str:
            """Works."""
            self.starts.append(n)
            self.under_way += 1
            self.at_once = max(self.at_once, self.under_way)
            try:
                await self.done[n].wait()
            finally:
                for _ in range(20):
                    await asyncio.sleep(0)
                await self.may_clean.wait()
                self.cleaned.append(n)
                self.under_way -= 1
            return f"worked {n}"

        return work


class FailsOnce:
    """Carries out commands, but fails the driver at the first call of the other tool, when it is told to."""

    def __init__(self) -> None:
        self.now = asyncio.Event()
        self.failed = False

    async def __call__(self, command: Any, state: Any, work: Any, services: Any, sink: Any) -> Any:
        if isinstance(command, RunTool) and command.index == 1 and not self.failed:
            await self.now.wait()
            self.failed = True
            raise RuntimeError("a bug, once")
        return await carrying.carry_out(command, state, work, services, sink)


@pytest.mark.parametrize("model", ["one", "two"])
async def test_a_stop_waits_for_what_calls_clean_up(model: str) -> None:
    work = Work()
    it, _ = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, tools={"work": work.tool})
    await it.start()
    await it.create(await it.workspace("acme"), plan(model, ServerRef("work")))
    calls = 1 if model == "one" else 2
    await until(lambda: len(work.starts) == calls)
    await it.stop(drain_s=0)
    assert sorted(work.cleaned) == list(range(calls))


async def test_a_drain_waits_for_every_call_that_has_begun() -> None:
    work, disk = Work(), MemoryDisk()
    it, _ = engine_on(MoodyStore(disk), SCRIPTS, tools={"work": work.tool})
    await it.start()
    await it.create(await it.workspace("acme"), plan("two", ServerRef("work")))
    await until(lambda: len(work.starts) == 2)
    stopping = asyncio.create_task(it.stop(drain_s=TIMEOUT_S))
    (run,) = disk.runs.values()
    for n in range(2):
        work.done[n].set()
        await until(lambda n=n: [item.kind for item in run.items].count("call.closed") == n + 1)
    await stopping


async def test_call_in_a_thread_counts_although_its_driver_fails() -> None:
    starts: list[int] = []
    done, fails = threading.Event(), FailsOnce()

    @tool(effect="idempotent", concurrent=True)
    def work(n: int) -> str:
        """Works."""
        starts.append(n)
        done.wait(TIMEOUT_S)
        return f"worked {n}"

    it, _ = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, tools={"work": work, "other": other}, carry_out=fails)
    async with it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("mixed", ServerRef("work"), ServerRef("other")))
        await until(lambda: starts)
        fails.now.set()
        await until(lambda: fails.failed)
        for _ in range(20):
            await asyncio.sleep(0)  # until the driver has seen it
        done.set()
        closed = [head.how for head in await facts(it, run_id, space) if isinstance(head, CallClosed)]
    assert (starts, closed) == ([0], ["returned", "returned"])


async def test_long_call_ends_before_it_is_repeated_after_driver_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, fails = Work(), FailsOnce()
    it, _ = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, tools={"work": work.tool, "other": other}, carry_out=fails)
    async with it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("mixed", ServerRef("work"), ServerRef("other")))
        await until(lambda: work.starts)
        with monkeypatch.context() as short:
            short.setattr(driver, "CUT_S", 0.01)
            work.may_clean.clear()
            fails.now.set()
            await until(lambda: fails.failed)
            for _ in range(20):
                await asyncio.sleep(0)  # until the driver has begun to wait
        work.may_clean.set()
        await until(lambda: len(work.starts) == 2)
        work.done[0].set()
        assert (await ended(it, run_id, space)).status == "succeeded"
    assert (work.at_once, work.cleaned) == (1, [0, 0])


async def test_run_with_a_lost_write_reloads_after_its_calls_end() -> None:
    work, store = Work(), MoodyStore(MemoryDisk())
    it, _ = engine_on(store, SCRIPTS, tools={"work": work.tool, "other": other})
    refs = (ServerRef("work"), ServerRef("other"), LocalRef("ask"))
    async with it, asyncio.timeout(TIMEOUT_S):
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("ask", *refs))
        key = await it.locate(run_id, workspace=space)
        await until(lambda: work.starts)
        work.may_clean.clear()
        store.log.failures = 1
        with pytest.raises(StoreError):
            await it.answer(key, "call_0_2", ToolOutput.of("42"))
        answering = asyncio.create_task(it.answer(key, "call_0_2", ToolOutput.of("42")))
        for _ in range(20):
            await asyncio.sleep(0)  # until someone would have loaded it
        assert (work.starts, answering.done()) == ([0], False)
        work.may_clean.set()
        assert await answering
        work.done[0].set()
        assert (await ended(it, run_id, space)).status == "succeeded"
    assert work.at_once == 1


async def test_answer_is_examined_while_a_call_runs() -> None:
    work, steps = Work(), 0

    def step(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
        nonlocal steps
        steps += 1
        return replace(stepping.step(state, work, facts, at=at), due_at=None)

    it, _ = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, tools={"work": work.tool}, step=step)
    async with it, asyncio.timeout(TIMEOUT_S):
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("both", ServerRef("work"), LocalRef("ask")))
        key = await it.locate(run_id, workspace=space)
        await until(lambda: work.starts)
        before = steps
        await it.answer(key, "call_0_1", ToolOutput.of("42"))
        for _ in range(20):
            await asyncio.sleep(0)  # until the driver has seen it
        assert steps > before
        work.done[0].set()
        assert (await ended(it, run_id, space)).status == "succeeded"


def test_paused_run_that_deadline_ends_leaves_nothing_under_way() -> None:
    work = Work()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        it, _ = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, tools={"work": work.tool}, clock=WallClock(loop))
        async with it:
            space = await it.workspace("acme")
            await asyncio.sleep(CLIENT_GRACE_US / 1e6 + 1)  # the grace of the start is over
            asks = replace(plan("both", ServerRef("work"), LocalRef("ask")), limits=Limits(local_timeout_us=2_000_000))
            run_id = await it.create(space, asks)
            await asyncio.sleep(1)
            await it.pause(await it.locate(run_id, workspace=space))
            last = await ended(it, run_id, space)
            assert (last.status, last.code) == ("failed", "local_timeout")
            await asyncio.sleep(1)
            assert (work.starts, work.cleaned) == ([0], [0])

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())
