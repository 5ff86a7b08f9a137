"""The times of a run when the clock is set back under it. Time is virtual."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.server import WallClock

from runtime.kit import MoodyStore, ended, engine_on, plan
from weftline.plan import LocalRef
from weftline.store.memory import MemoryDisk
from weftline.tools.base import ToolOutput

SCRIPTS: dict[str, Any] = {"ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "thanks"}]}}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_does_not_end_before_it_has_started(restarted: bool) -> None:
    """Readers compute how long it took."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        clock, disk = WallClock(loop), MemoryDisk()
        it, _ = engine_on(MoodyStore(disk), SCRIPTS, clock=clock)
        await it.start()
        space = await it.workspace("acme")
        run_id = await it.create(space, plan("ask", LocalRef("ask")))
        await asyncio.sleep(1)
        if restarted:
            await it.stop()
            it, _ = engine_on(MoodyStore(disk), SCRIPTS, clock=clock)
            await it.start()
        clock.offset_s -= 7200
        key = await it.locate(run_id, workspace=space)
        assert await it.answer(key, "call_0_0", ToolOutput.of("42"))
        await ended(it, run_id, space)
        row = await it.stored.row(key)
        assert row is not None and row.started_at is not None and row.ended_at is not None
        assert row.created_at <= row.started_at <= row.ended_at
        await it.stop()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())
