"""Leases on a server that was down for longer than they last. Time is virtual."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.server import WallClock
from msgspec.structs import replace

from runtime.kit import MoodyStore, ended, engine_on, facts, plan
from runtime.test_suspended import SCRIPTS, run
from weftline.errors import Conflict
from weftline.kernel.control import CallUnclaimed
from weftline.kernel.entries import Limits, TimerFired, decode_fact
from weftline.plan import LocalRef, ServerRef
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.store.memory import MemoryDisk
from weftline.tools.base import ToolOutput
from weftline.tools.decorator import tool

CALL = "call_0_0"


async def given_back(engine: EmbeddedEngine, key: int) -> list[CallUnclaimed]:
    found = await engine.stored.logs.newest_facts(key, kinds=("call.unclaimed",), limit=9, max_bytes=10_000)
    heads = [decode_fact.decode(one.head) for one in found]
    return [head for head in heads if isinstance(head, CallUnclaimed)]


@pytest.mark.requirement("run.lease.restart")
@pytest.mark.parametrize(("lease_s", "held_s"), [(60, 60), (2, 30)])
def test_time_without_server_is_not_held_against_whoever_has_call(lease_s: int, held_s: int) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        clock, disk = WallClock(loop), MemoryDisk()
        first, _ = engine_on(MoodyStore(disk), SCRIPTS, clock=clock)
        async with first:
            space = await first.workspace("acme")
            asks = replace(plan("ask", LocalRef("ask")), limits=Limits(local_timeout_us=86_400_000_000))
            kept, left = [await first.create(space, asks) for _ in range(2)]
            await asyncio.sleep(1)
            keys = [await first.locate(one, workspace=space) for one in (kept, left)]
            tokens = [(await first.claim(key, CALL, lease_us=lease_s * 1_000_000)).token for key in keys]
        clock.offset_s += 3600
        second, _ = engine_on(MoodyStore(disk), SCRIPTS, clock=clock)
        async with second:
            ends_at = clock.now_us() + held_s * 1_000_000
            with pytest.raises(Conflict) as held:
                await second.claim(keys[1], CALL)
            assert (held.value.code, held.value.details["lease_ends_at"]) == ("lease_held", ends_at)
            await asyncio.sleep(held_s - 1)
            await second.heartbeat(keys[0], CALL, tokens[0])
            await asyncio.sleep(0.5)
            assert not await given_back(second, keys[1])
            await asyncio.sleep(1)
            (offer,) = await given_back(second, keys[1])
            assert (offer.cause, offer.attempt) == ("lost", 2), "its client is gone"
            assert await second.answer(keys[0], CALL, ToolOutput.of("42"), token=tokens[0])
            assert (await ended(second, kept, space)).status == "succeeded"
            await second.cancel(keys[1])

    run(scenario())


def test_queued_run_gets_each_of_its_deadlines_in_time() -> None:
    """The end of a lease has it queue; the end of the next one and its time-out come while it does."""

    @tool(effect="read")
    async def think() -> str:
        """Takes a while."""
        await asyncio.sleep(20)
        return "done"

    scripts: dict[str, Any] = {
        "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}] * 2}, {"text": "done"}]},
        "think": {"turns": [{"tool_calls": [{"name": "think", "args": {}}]}, {"text": "done"}]},
    }

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        it, _ = engine_on(
            MoodyStore(MemoryDisk()),
            scripts,
            tools={"think": think},
            clock=WallClock(loop),
            limits=WorkspaceLimits(max_runs_per_workspace=1),
        )
        async with it:
            space = await it.workspace("acme")
            limits = Limits(local_timeout_us=5_000_000, on_local_timeout="report")
            run_id = await it.create(space, replace(plan("ask", LocalRef("ask")), limits=limits))
            await asyncio.sleep(1)
            key = await it.locate(run_id, workspace=space)
            await it.create(space, plan("think", ServerRef("think")))
            for call, lease_us in (("call_0_0", 1_000_000), ("call_0_1", 2_000_000)):
                await it.claim(key, call, lease_us=lease_us)
            told = [head.now for head in await facts(it, run_id, space) if isinstance(head, TimerFired)]
            assert [round((now - told[0]) / 1_000_000) for now in told] == [0, 1, 3]

    run(scenario())
