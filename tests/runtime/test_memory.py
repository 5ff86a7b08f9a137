"""Which runs are in memory: those that move, and for a short while those that were just parked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from campaigns.simulation.server import WallClock

from runtime.kit import MoodyStore, ended, engine_on, plan, until
from runtime.test_parked import on_virtual_time
from weftline.errors import StoreError
from weftline.plan import LocalRef, ServerRef
from weftline.runtime.fleet import holding
from weftline.store.memory import MemoryDisk
from weftline.tools.base import ToolOutput
from weftline.tools.decorator import tool

SCRIPTS: dict[str, Any] = {
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "thanks"}]},
    "wait": {"turns": [{"tool_calls": [{"name": name, "args": {}}]} for name in ("wait", "ask")]},
}
RUNS = 20


def test_only_so_many_parked_runs_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "MAX_RETAINED", 4)

    async def scenario(clock: WallClock) -> None:
        store = MoodyStore(MemoryDisk())
        async with engine_on(store, SCRIPTS, clock=clock)[0] as it:
            space = await it.workspace("acme")
            run_ids = await asyncio.gather(*[it.create(space, plan("ask", LocalRef("ask"))) for _ in range(RUNS)])
            await until(lambda: len(store.log.released) == RUNS - 4)
            for run_id in run_ids:  # those that left memory are loaded
                await it.answer(await it.locate(run_id, workspace=space), "call_0_0", ToolOutput.of("42"))
                assert (await ended(it, run_id, space)).status == "succeeded"

    on_virtual_time(scenario)


def test_parking_run_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all of them would be looked at whenever another one parks."""
    monkeypatch.setattr(holding, "MAX_RETAINED", 16)

    async def scenario(clock: WallClock) -> None:
        store = MoodyStore(MemoryDisk())
        async with engine_on(store, SCRIPTS, clock=clock)[0] as it:
            space = await it.workspace("acme")
            for released in (*[0] * 17, *[3] * 3):
                await it.create(space, plan("ask", LocalRef("ask")))
                await asyncio.sleep(0.1)
                assert len(store.log.released) == released

    on_virtual_time(scenario)


def test_run_reloaded_after_a_failed_write_leaves_memory() -> None:
    async def scenario(clock: WallClock) -> None:
        store = MoodyStore(MemoryDisk())
        async with engine_on(store, SCRIPTS, clock=clock)[0] as it:
            space = await it.workspace("acme")
            run_id = await it.create(space, plan("ask", LocalRef("ask")))
            key = await it.locate(run_id, workspace=space)
            await asyncio.sleep(1)
            store.log.gate.clear()
            store.log.failures = 1
            pausing = asyncio.create_task(it.pause(key))
            await asyncio.sleep(2 * holding.KEEP_S)
            assert not store.log.released, "it has something to write"
            store.log.gate.set()
            with pytest.raises(StoreError):
                await pausing
            await it.pause(key)
            store.log.released.clear()
            await asyncio.sleep(2 * holding.KEEP_S)
            assert store.log.released == {key}

    on_virtual_time(scenario)


async def test_runs_that_park_while_disk_is_full_leave_memory_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "KEEP_S", 0.01)
    monkeypatch.setattr(holding, "_SWEEP_S", 0.01)
    disk = MemoryDisk()
    store = MoodyStore(disk)
    released = asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Waits."""
        await released.wait()
        return "done"

    it, _ = engine_on(store, SCRIPTS, tools={"wait": wait})
    async with it:
        space = await it.workspace("acme")
        parks = plan("wait", ServerRef("wait"), LocalRef("ask"))
        await asyncio.gather(*[it.create(space, parks) for _ in range(RUNS)])
        await until(lambda: all(run.items[-1].kind == "call.started" for run in disk.runs.values()))
        store.log.refusals = 2  # for longer than a parked run is kept
        released.set()
        await until(lambda: len(store.log.released) == RUNS)
        assert all(run.row.due_at for run in disk.runs.values())


async def test_client_batch_stores_its_state_as_its_entries_outgrow_it() -> None:
    calls = 200
    disk = MemoryDisk()
    store = MoodyStore(disk)
    asks = {"tool_calls": [{"name": "ask", "args": {"n": number}} for number in range(calls)]}
    it, _ = engine_on(store, {"batch": {"turns": [asks, {"text": "thanks"}]}})
    async with it:
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("batch", LocalRef("ask")))
        key = await it.locate(run_id, workspace=space)
        await until(lambda: disk.runs[key].row.due_at)
        for number in range(calls):
            await it.answer(key, f"call_0_{number}", ToolOutput.of("x"))
        assert (await ended(it, run_id, space)).status == "succeeded"
    entries = sum(item.size for item in disk.runs[key].items)
    assert store.log.state_bytes < 2 * entries


async def test_deadline_is_noted_once_however_much_its_run_does_meanwhile() -> None:
    @tool(effect="read")
    async def look() -> str:
        """Looks."""
        return "a view"

    asks: dict[str, Any] = {"name": "ask", "args": {}}
    looks: dict[str, Any] = {"name": "look", "args": {}}
    disk = MemoryDisk()
    it, _ = engine_on(
        MoodyStore(disk), {"busy": {"turns": [{"tool_calls": [asks, *[looks] * 50]}]}}, tools={"look": look}
    )
    async with it:
        space = await it.workspace("acme")
        await it.create(space, plan("busy", LocalRef("ask"), ServerRef("look")))
        (run,) = disk.runs.values()
        await until(lambda: sum(item.kind == "call.closed" for item in run.items) == 50)
        assert len(it._fleet.timers._deadlines) == 1  # pyright: ignore[reportPrivateUsage]
