"""Ten thousand runs that wait cost the store their rows, and the process next to nothing. Time is virtual."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from typing import Any

import pytest
from campaigns.simulation.server import WallClock
from msgspec.structs import replace

from runtime.kit import MoodyStore, ended, engine_on, plan
from runtime.test_parked import HOUR_US, SCRIPTS, asking, on_virtual_time, pay, paying
from weftline import Agent, Engine, ask_user
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.store.memory import MemoryDisk
from weftline.store.memory.disk import MemoryRun
from weftline.testing import ScriptedModel, calls
from weftline.tools.base import ToolOutput

MANY = 10_000
MAX_BYTES_PER_RUN = 4096
ONE_AT_A_TIME = WorkspaceLimits(max_runs_per_workspace=1)


def new_engine(store: MoodyStore, clock: WallClock) -> EmbeddedEngine:
    scripts = {**SCRIPTS, "hello": {"turns": [{"text": "hi"}]}}
    return engine_on(store, scripts, tools={"pay": pay}, clock=clock, limits=ONE_AT_A_TIME)[0]


def in_use() -> tuple[int, int]:
    return len(asyncio.all_tasks()), threading.active_count()


def multiply(disk: MemoryDisk, runs: list[MemoryRun]) -> None:
    """As many runs as there can be on the disk, each as one of these."""
    asked = dict(disk.awaits)
    for key in range(len(disk.runs) + 1, MANY + 1):
        like = runs[key % len(runs)]
        copy = MemoryRun.__new__(MemoryRun)
        copy.__dict__.update(like.__dict__)
        copy.row = replace(like.row, key=key)
        disk.add(copy)
        disk.set_due(copy, like.row.due_at)
        disk.awaits |= {(key, id): replace(new, root=key) for (of, id), new in asked.items() if of == like.row.key}


@pytest.mark.requirement("run.park.idle")
def test_runs_that_wait_hold_nothing_and_hold_nobody_up() -> None:
    async def scenario(clock: WallClock) -> None:
        disk = MemoryDisk()
        store = MoodyStore(disk)
        async with new_engine(store, clock) as it:
            await asyncio.sleep(60)
            idle = in_use()
            space = await it.workspace("acme")
            plans: dict[str, Any] = {
                "client": asking(),
                "timer": asking(local_timeout_us=HOUR_US, on_local_timeout="report"),
                "person": paying(),
                "paused": asking(),
            }
            runs = {name: await it.create(space, given) for name, given in plans.items()}
            keys = {name: await it.locate(run_id, workspace=space) for name, run_id in runs.items()}
            await asyncio.sleep(60)
            await it.pause(keys["paused"])
            await asyncio.sleep(60)
            assert in_use() == idle
            assert store.log.released == set(keys.values()), "their transcripts are not in memory any more"
        multiply(disk, list(disk.runs.values()))

        tracemalloc.start()
        try:
            it = new_engine(MoodyStore(disk), clock)
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            await it.start()
            await asyncio.sleep(60)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(disk.runs) == MANY and (after - before) / MANY < MAX_BYTES_PER_RUN
        assert in_use() == idle
        # There is one slot, and nobody who waits has it.
        assert (await ended(it, await it.create(space, plan("hello")), space)).status == "succeeded"
        await it.answer(keys["client"], "call_0_0", ToolOutput.of("42"))
        assert (await ended(it, runs["client"], space)).status == "succeeded"
        await it.stop()

    on_virtual_time(scenario)


@pytest.mark.requirement("run.park.idle")
def test_a_run_that_waits_for_its_child_holds_nothing_either() -> None:
    async def scenario(clock: WallClock) -> None:
        child = Agent(ScriptedModel([calls("ask_user", question="Well?"), "Done."]), name="helper", tools=[ask_user])
        turns = [calls("helper", task="Ask."), "Done."]
        top = Agent(ScriptedModel(turns), name="top", tools=[child.as_tool("Helps.", name="helper")])
        async with Engine() as engine:
            await asyncio.sleep(60)
            idle = in_use()
            runs = [await engine.start(top, "Go.") for _ in range(10)]
            await asyncio.sleep(60)
            assert in_use() == idle
            asked = await engine.awaits()
            assert len(asked) == 10
            for one in asked:
                await engine.attach(one.run_id).answer(one.id, "So.")
            assert [(await run.result()).text for run in runs] == ["Done."] * 10

    on_virtual_time(scenario)
