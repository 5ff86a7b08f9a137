"""Deadlines of clients on a machine that was suspended, or whose clock was set. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from runtime.kit import MoodyStore, ended, engine_on, facts, plan
from weftline import tool
from weftline.kernel.entries import CallClosed, Limits
from weftline.kernel.policy import CapReached, PolicyRule
from weftline.plan import LocalRef, ServerRef
from weftline.runtime.clock import SteadyClock
from weftline.runtime.fleet.timers import CLIENT_GRACE_US, MAX_GRACE_US
from weftline.store.memory import MemoryDisk
from weftline.testing.simulation.loop import VirtualLoop
from weftline.testing.simulation.server import WallClock
from weftline.tools.base import ToolOutput

SCRIPTS: dict[str, Any] = {
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "thanks"}]},
    "retried": {
        "turns": [
            {"error": {"class": "overloaded", "retryable": True}},
            {"error": {"class": "overloaded", "retryable": True}},
            {"text": "thanks"},
        ]
    },
    "work_and_ask": {
        "turns": [{"tool_calls": [{"name": "work", "args": {}}, {"name": "ask", "args": {}}]}, {"text": "thanks"}]
    },
}
SECOND = 1_000_000
GRACE_S, MAX_GRACE_S = CLIENT_GRACE_US / 1e6, MAX_GRACE_US / 1e6


@tool(effect="idempotent", concurrent=True)
async def work() -> str:
    """Takes a minute."""
    await asyncio.sleep(60)
    return "done"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario)


@pytest.mark.parametrize(
    ("timeout_s", "asleep_s", "answered_s"),
    [(20, 3600, 10 + GRACE_S), (100, 60, 60), (100, 1e6, MAX_GRACE_S)],
    ids=["past the deadline", "until shortly before it", "for days"],
)
def test_a_client_gets_a_grace_after_the_machine_was_suspended(
    timeout_s: float, asleep_s: float, answered_s: float
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        clock = WallClock(loop)
        it, _ = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, clock=clock)
        async with it:
            space = await it.workspace("acme")
            await asyncio.sleep(GRACE_S + 1)  # the grace of the start is over
            asks = replace(plan("ask", LocalRef("ask")), limits=Limits(local_timeout_us=int(timeout_s * 1e6)))
            answered, silent = [await it.create(space, asks) for _ in range(2)]
            await asyncio.sleep(10)
            clock.offset_s += asleep_s
            await asyncio.sleep(answered_s - 10)
            assert await it.answer(await it.locate(answered, workspace=space), "call_0_0", ToolOutput.of("42"))
            assert (await ended(it, answered, space)).status == "succeeded"
            await asyncio.sleep(MAX_GRACE_S)
            closed = [head.how for head in await facts(it, silent, space) if isinstance(head, CallClosed)]
            assert closed == ["timeout"]

    run(scenario())


@pytest.mark.requirement("run.time.budget")
@pytest.mark.parametrize("client_timeout_s", [300, 5], ids=["not overdue", "overdue"])
@pytest.mark.parametrize("budget_s", [2, 15])
@pytest.mark.parametrize("restarted", [True, False])
def test_a_time_budget_does_not_wait_for_the_grace_of_a_client(
    client_timeout_s: int, budget_s: int, restarted: bool
) -> None:
    """Its tool is at work beside the client's call, so its clock is running."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        clock, disk = WallClock(loop), MemoryDisk()
        it, _ = engine_on(MoodyStore(disk), SCRIPTS, clock=clock, tools={"work": work})
        await it.start()
        space = await it.workspace("acme")
        await asyncio.sleep(GRACE_S + 1)
        limits = Limits(
            local_timeout_us=client_timeout_s * SECOND,
            on_local_timeout="report",
            policy=PolicyRule(time_budget_us=budget_s * SECOND),
        )
        asks = replace(plan("work_and_ask", ServerRef("work"), LocalRef("ask")), limits=limits)
        run_id = await it.create(space, asks)
        await asyncio.sleep(1)
        if restarted:
            await it.stop(drain_s=0)
            await asyncio.sleep(10)
            it, _ = engine_on(MoodyStore(disk), SCRIPTS, clock=clock, tools={"work": work})
            await it.start()
        else:
            loop.now_s += 3  # it was stalled
        (reached,) = [head for head in await facts(it, run_id, space) if isinstance(head, CapReached)]
        assert reached.used <= (max(budget_s, 0 if restarted else 4) + 1) * SECOND
        assert (await ended(it, run_id, space)).status == "succeeded"
        await it.stop(drain_s=0)

    run(scenario())


@pytest.mark.parametrize("when", ["before", "during"])
def test_deadlines_and_retries_are_on_time_although_the_clock_is_set_back(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        wall = WallClock(loop)
        it, provider = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, clock=SteadyClock(lambda: wall.now_us() * 1000))
        async with it:
            space = await it.workspace("acme")
            await asyncio.sleep(GRACE_S + 1)
            if when == "before":
                wall.offset_s -= 3600
            asks = replace(
                plan("ask", LocalRef("ask")), limits=Limits(local_timeout_us=3 * SECOND, on_local_timeout="report")
            )
            waiting, retried = await it.create(space, asks), await it.create(space, plan("retried"))
            await asyncio.sleep(0.05)
            assert len(provider.requests) == 2, "the second run waits to ask again"
            if when == "during":
                wall.offset_s -= 3600
            await asyncio.sleep(10)
            for run_id in (waiting, retried):
                row = await it.stored.row(await it.locate(run_id, workspace=space))
                assert row is not None and row.status == "succeeded"

    run(scenario())
    assert "the system's clock was set back" in caplog.text


def test_a_clock_that_is_set_right_again_is_followed_again() -> None:
    system = 10_000 * SECOND
    clock = SteadyClock(lambda: system * 1000)
    assert clock.now_us() == system
    system -= 3600 * SECOND
    assert clock.now_us() == 10_000 * SECOND
    system += 5 * SECOND
    assert clock.now_us() == 10_005 * SECOND
    system += 3600 * SECOND
    assert clock.now_us() == system == 10_005 * SECOND
