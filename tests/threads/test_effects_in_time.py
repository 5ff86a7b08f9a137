"""Effects and the clock: set forward, set back, and what a thread keeps of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from crash.effect_process import opened
from weftline.errors import QuotaExceeded
from weftline.workspace import thread_effects

HOUR_MS = 3_600_000
HOUR_US = HOUR_MS * 1000


@pytest.mark.requirement("thread.effect.clock")
async def test_effect_runs_once_and_not_before_its_time_whatever_the_clock_does(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.schedule("late", delay_ms=HOUR_MS)
        desk.clock.us -= 2 * HOUR_US
        await desk.schedule("now", call="other")
        async with asyncio.timeout(60):
            while desk.noted() != ["now"]:
                await asyncio.wait({desk.running}, timeout=0.01)
        desk.clock.us += 3 * HOUR_US - 1
        desk.alarm.changed()
        [late, now] = await desk.rows()
        assert (late.status, now.status) == ("pending", "executed")
        desk.clock.us += 1
        desk.alarm.changed()
        await desk.until_settled()
        for moved in (-5 * HOUR_US, 10 * HOUR_US):
            desk.clock.us += moved
            desk.alarm.changed()
            await asyncio.sleep(0)
        assert desk.noted() == ["now", "late"]


async def test_overdue_effect_runs_at_once_after_a_time_without_a_process(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.schedule("a", delay_ms=HOUR_MS)
    async with opened(tmp_path) as desk:
        desk.clock.us += HOUR_US * 24
        desk.alarm.changed()
        await desk.until_settled()
        assert desk.noted() == ["a"]


async def test_call_that_is_repeated_schedules_nothing_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        first = await desk.schedule("a", "b", "b", delay_ms=HOUR_MS)
        assert await desk.schedule("a", "b", "b", delay_ms=HOUR_MS) == first and len(set(first)) == 3
        assert (await desk.schedule("x", delay_ms=HOUR_MS))[0] not in first
        assert len(await desk.schedule("a", "b", call="other", delay_ms=HOUR_MS)) == 2
        assert len(await desk.rows()) == 6


@pytest.mark.requirement("thread.effect.history")
async def test_thread_keeps_the_latest_of_its_effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_effects, "MAX_SETTLED", 2)
    monkeypatch.setattr(thread_effects, "MAX_PENDING", 4)
    async with opened(tmp_path) as desk:
        ids = await desk.schedule("a", "b", "c", "d", delay_ms=HOUR_MS)
        with pytest.raises(QuotaExceeded):
            await desk.schedule("e", call="other")
        for id in ids[:3]:
            assert await thread_effects.cancel(desk.at, desk.thread, id)
        rows = await desk.rows()
        assert [(row.id, row.status) for row in rows] == [
            (ids[1], "canceled"),
            (ids[2], "canceled"),
            (ids[3], "pending"),
        ]
