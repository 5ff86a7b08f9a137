"""Deadlines of clients on a machine that was suspended, or whose clock was set. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.server import WallClock
from msgspec.structs import replace

from runtime.kit import MoodyStore, ended, engine_on, facts, plan
from weftline import tool
from weftline.errors import StoreError
from weftline.kernel.entries import CallClosed, Limits
from weftline.kernel.policy import CapReached, PolicyRule
from weftline.plan import LocalRef, ServerRef
from weftline.runtime.clock import SteadyClock
from weftline.runtime.fleet.timers import CLIENT_GRACE_US, MAX_GRACE_US
from weftline.store.memory import MemoryDisk
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
def test_time_budget_does_not_wait_for_grace_of_client(client_timeout_s: int, budget_s: int, restarted: bool) -> None:
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
def test_deadlines_and_retries_are_on_time_despite_clock_changes(when: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        wall = WallClock(loop)
        it, provider = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, clock=steady(wall, loop))
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


def steady(wall: WallClock, loop: VirtualLoop) -> SteadyClock:
    return SteadyClock(lambda: wall.now_us() * 1000, monotonic=lambda: int(loop.now_s * 1_000_000_000))


def test_deadline_accounts_for_time_before_a_clock_reset_is_noticed() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        wall = WallClock(loop)
        it, _ = engine_on(MoodyStore(MemoryDisk()), SCRIPTS, clock=steady(wall, loop))
        async with it:
            space = await it.workspace("acme")
            await asyncio.sleep(GRACE_S + 1)
            limits = Limits(local_timeout_us=20 * SECOND, on_local_timeout="report")
            run_id = await it.create(space, replace(plan("ask", LocalRef("ask")), limits=limits))
            await asyncio.sleep(0.05)
            wall.offset_s -= 3600
            await asyncio.sleep(20.5)
            row = await it.stored.row(await it.locate(run_id, workspace=space))
            assert row is not None and row.status == "succeeded"

    run(scenario())


@pytest.mark.parametrize(("back_s", "warnings"), [(0, 0), (3, 0), (3600, 1)])
def test_start_with_a_clock_set_back_is_reported_once(
    back_s: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        wall, disk = WallClock(loop), MemoryDisk()
        async with engine_on(MoodyStore(disk), SCRIPTS, clock=wall)[0] as before:
            space = await before.workspace("acme")
            await before.create(space, plan("ask", LocalRef("ask")))
            await asyncio.sleep(1)
        wall.offset_s -= back_s
        async with engine_on(MoodyStore(disk), SCRIPTS, clock=wall)[0]:
            await asyncio.sleep(60)

    run(scenario())
    reported = [line for line in caplog.messages if "behind the latest entry" in line]
    assert len(reported) == warnings
    assert all("about 3599 s" in line for line in reported)


def test_a_clock_that_is_set_right_again_is_followed_again() -> None:
    system = elapsed = 10_000 * SECOND
    clock = SteadyClock(lambda: system * 1000, monotonic=lambda: elapsed * 1000)
    assert clock.now_us() == system
    elapsed += 30 * SECOND
    system -= 3570 * SECOND
    assert clock.now_us() == 10_030 * SECOND
    elapsed += 5 * SECOND
    system += 5 * SECOND
    assert clock.now_us() == 10_035 * SECOND
    elapsed += 7 * SECOND
    system -= 100 * SECOND
    assert clock.now_us() == 10_042 * SECOND
    elapsed += 3 * SECOND
    system += 3710 * SECOND
    assert clock.now_us() == system == 10_045 * SECOND


def test_clock_set_nearly_right_does_not_jump() -> None:
    system = elapsed = 10_000 * SECOND
    clock = SteadyClock(lambda: system * 1000, monotonic=lambda: elapsed * 1000)
    assert clock.now_us() == system
    system -= 3600 * SECOND
    elapsed += SECOND
    system += SECOND
    assert clock.now_us() == 10_001 * SECOND
    system += 3600 * SECOND - 20_000  # it had been 20 ms fast
    assert clock.now_us() == 10_001 * SECOND
    elapsed += SECOND
    system += SECOND
    assert clock.now_us() == system == 10_002 * SECOND - 20_000


def test_clock_that_is_set_forward_and_back_never_goes_back() -> None:
    system = elapsed = 10_000 * SECOND
    clock = SteadyClock(lambda: system * 1000, monotonic=lambda: elapsed * 1000)
    assert clock.now_us() == system
    system += 3600 * SECOND
    assert clock.now_us() == system
    elapsed += 2 * SECOND
    system -= 3598 * SECOND
    assert clock.now_us() == 13_602 * SECOND
    system -= 3600 * SECOND
    assert clock.now_us() == 13_602 * SECOND


def test_fast_clock_that_is_set_back_never_goes_back() -> None:
    system = elapsed = 10_000 * SECOND
    clock = SteadyClock(lambda: system * 1000, monotonic=lambda: elapsed * 1000)
    assert clock.now_us() == system
    system += 500_000
    elapsed += 400_000
    latest = clock.now_us()
    assert latest == system
    system -= 3600 * SECOND
    assert clock.now_us() == latest


def test_every_clock_change_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    system = elapsed = 10_000 * SECOND
    clock = SteadyClock(lambda: system * 1000, monotonic=lambda: elapsed * 1000)
    clock.now_us()
    for _ in range(3):
        for change_us in (-3600 * SECOND, 3600 * SECOND):
            elapsed += 100_000
            system += 100_000 + change_us
            clock.now_us()
    assert [line.split("about ")[1][:6] for line in caplog.messages] == ["3600 s"] * 3


async def test_engine_starts_although_its_clock_cannot_be_checked() -> None:
    store = MoodyStore(MemoryDisk())

    async def unreadable() -> int:
        raise StoreError("The store could not be read.")

    store.log.latest_at = unreadable
    async with engine_on(store, SCRIPTS)[0] as it:
        space = await it.workspace("acme")
        assert await it.create(space, plan("ask", LocalRef("ask")))
