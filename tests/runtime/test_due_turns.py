"""Many runs that are due at once: a few are loaded at a time, and workspaces take turns. Time is virtual."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from campaigns.simulation.server import WallClock

from runtime.test_parked import HOUR_US, World, asking, on_virtual_time
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet import timers
from weftline.runtime.fleet.timers import MAX_LOADING
from weftline.store.memory import MemoryDisk

MANY = 3 * MAX_LOADING


async def waiting(it: EmbeddedEngine, space: int, count: int, *, timeout_us: int = HOUR_US) -> list[int]:
    """Runs that nobody answers in this time, by key."""
    plan = asking(local_timeout_us=timeout_us, on_local_timeout="report")
    runs = [await it.create(space, plan) for _ in range(count)]
    return [await it.locate(run_id, workspace=space) for run_id in runs]


async def statuses(it: EmbeddedEngine, keys: list[int]) -> set[str]:
    rows = [await it.stored.logs.run(key) for key in keys]
    return {row.status for row in rows if row is not None}


def test_due_runs_load_a_few_at_a_time_by_turns() -> None:
    async def scenario(clock: WallClock) -> None:
        world = World(MemoryDisk(), clock)
        it, log = world.engine, world.log
        async with it:
            many = await waiting(it, await it.workspace("acme"), MANY)
            few = await waiting(it, await it.workspace("others"), 2)
            await asyncio.sleep(60)
            assert log.released >= {*many, *few}, "they are not in memory"
            log.claimed.clear()
            log.claims_gate.clear()
            await asyncio.sleep(3600)
            assert len(log.claimed) == MAX_LOADING
            assert log.claimed[1:4:2] == few, "the other workspace waits for its turn, and not for every earlier run"
            log.claims_gate.set()
            await asyncio.sleep(60)
            assert sorted(log.claimed) == [*many, *few], "each is loaded once"
            assert await statuses(it, [*many, *few]) == {"succeeded"}

    on_virtual_time(scenario)


def test_others_take_turns_between_pages_of_due_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timers, "_PAGE", 4)

    async def scenario(clock: WallClock) -> None:
        world = World(MemoryDisk(), clock)
        it, log = world.engine, world.log
        turns = 0
        pages: list[int] = []
        due = log.due

        def take_turn() -> None:
            nonlocal turns
            turns += 1

        async def page(*args: Any, **options: Any) -> Any:
            pages.append(turns)
            asyncio.get_running_loop().call_soon(take_turn)
            return await due(*args, **options)

        async with it:
            await waiting(it, await it.workspace("acme"), 12)
            await asyncio.sleep(60)
            monkeypatch.setattr(log, "due", page, raising=False)
            await asyncio.sleep(3600)
            assert pages[:4] == [0, 1, 2, 3]

    on_virtual_time(scenario)


def test_run_due_later_does_not_wait_for_earlier_ones() -> None:
    async def scenario(clock: WallClock) -> None:
        world = World(MemoryDisk(), clock)
        it, log = world.engine, world.log
        async with it:
            many = await waiting(it, await it.workspace("acme"), MANY)
            (later,) = await waiting(it, await it.workspace("others"), 1, timeout_us=HOUR_US + 60_000_000)
            await asyncio.sleep(60)
            log.claimed.clear()
            log.claims_gate.clear()
            await asyncio.sleep(3600 + 60)
            assert later not in log.claimed, "as many as can be loaded at once are being loaded"
            log.claims_gate.set()
            await asyncio.sleep(60)
            assert log.claimed.index(later) <= MAX_LOADING + 1
            assert await statuses(it, [*many, later]) == {"succeeded"}

    on_virtual_time(scenario)


def test_unloadable_run_is_retried_without_delaying_others() -> None:
    async def scenario(clock: WallClock) -> None:
        world = World(MemoryDisk(), clock)
        it, log = world.engine, world.log
        async with it:
            keys = await waiting(it, await it.workspace("acme"), MANY)
            await asyncio.sleep(60)
            log.broken.update(keys[:MAX_LOADING])
            await asyncio.sleep(3600)
            assert await statuses(it, keys[MAX_LOADING:]) == {"succeeded"}
            assert await statuses(it, keys[:MAX_LOADING]) == {"running"}
            log.broken.clear()
            await asyncio.sleep(60)
            assert await statuses(it, keys) == {"succeeded"}

    on_virtual_time(scenario)
