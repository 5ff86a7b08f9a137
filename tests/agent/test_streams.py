"""Streams of several runs, and observers of all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from weftline import Agent, Engine, spawn
from weftline.events import AnyEvent, ChildEnded, RunEnded, RunStarted
from weftline.runtime import ids
from weftline.runtime.engine import EntryBatch
from weftline.testing import ScriptedModel, calls

from .test_subagents import ByTask, check_nested, several

PATIENCE_S = 60


def nested() -> Agent[str, object]:
    model = ByTask(
        {
            "Go.": [several("spawn", "a", "b"), "Top."],
            "a": [calls("spawn", task="c"), "A."],
            "b": ["B."],
            "c": ["C."],
            "And?": [several("spawn", "b"), "Well."],
        }
    )
    return Agent(model, name="nested", tools=[spawn()])


def in_runs(events: list[AnyEvent]) -> dict[str, list[AnyEvent]]:
    found: dict[str, list[AnyEvent]] = {}
    for event in events:
        found.setdefault(event.run_id, []).append(event)
    return found


async def taken(events: AsyncIterator[AnyEvent], cursor: dict[str, int], count: int) -> list[AnyEvent]:
    """So many of them, at most, with the cursor moved along."""
    found: list[AnyEvent] = []
    async for event in events:
        found.append(event)
        cursor[event.run_id] = event.seq
        if len(found) == count:
            break
    await events.aclose()  # type: ignore[attr-defined]  # pyright: ignore
    return found


@pytest.mark.requirement("run.log.tree")
@pytest.mark.parametrize("step", [1, 4, 7])
async def test_run_with_its_children_is_one_resumable_stream(step: int) -> None:
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        run = await engine.start(nested(), "Go.")
        cursor: dict[str, int] = {}
        found: list[AnyEvent] = []
        while not found or found[-1].run_id != run.id or not isinstance(found[-1], RunEnded):
            some = await taken(run.events(after=cursor, children=True), cursor, step)
            assert some
            found += some
        assert await taken(run.events(after=cursor, children=True), cursor, 1) == []
        check_nested(found, run.id)
        by_run = in_runs(found)
        assert len(by_run) == 4
        for run_id, events in by_run.items():
            assert events == [event async for event in engine.attach(run_id).events()], "each once, in its own order"


@pytest.mark.requirement("run.log.tree")
async def test_runs_of_a_thread_are_one_continuing_stream() -> None:
    agent = nested()
    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        thread = engine.thread("t")
        first = await engine.start(agent, "Go.", thread="t")
        await first.result()
        events = thread.events()
        found: list[AnyEvent] = []
        later = None
        async for event in events:
            found.append(event)
            if isinstance(event, RunEnded) and event.run_id == first.id:
                later = await engine.start(agent, "And?", thread="t")  # it begins while the stream waits
                await engine.start(Agent(ScriptedModel(["x"])), "Elsewhere.")
            if later is not None and isinstance(event, RunEnded) and event.run_id == later.id:
                break
        await events.aclose()  # type: ignore[attr-defined]  # pyright: ignore
        again = [event async for event in thread.events(live=False)]
        assert in_runs(again) == in_runs(found)
        assert later is not None and len(in_runs(found)) == 4 + 4
        cursor = {event.run_id: event.seq for event in found[:-3]}
        rest = [event async for event in thread.events(after=cursor, live=False)]
        assert rest == found[-3:]
        assert isinstance(found[0], RunStarted) and any(isinstance(one, ChildEnded) for one in found)


@pytest.mark.requirement("run.event.observers")
async def test_observers_get_every_entry_and_failing_ones_harm_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "weftline")
    agent = nested()
    seen: dict[str, list[int]] = {}
    failing: list[str] = []

    def watch(batch: EntryBatch) -> None:
        for item in batch.items:
            seen.setdefault(batch.run_id, []).extend(range(item.seq, item.last_seq + 1))

    def fail(batch: EntryBatch) -> None:
        failing.append(batch.run_id)
        raise RuntimeError("an observer of no use")

    async with asyncio.timeout(PATIENCE_S), Engine() as engine:
        leave_failing = await engine.observe(fail)
        await engine.observe(watch)
        results = await asyncio.gather(*[(await engine.start(agent, "Go.")).result() for _ in range(2)])
        assert [one.text for one in results] == ["Top.", "Top."]
        log = engine.store.log
        assert len(seen) == 2 * 4
        for run_id, seqs in seen.items():
            row = await log.run(ids.key_of(run_id))
            assert row is not None and seqs == list(range(1, row.next_seq)), "all of them, in order"
        assert set(failing) == set(seen) and len(failing) > len(seen), "it is called again"
        before = len(failing)
        leave_failing()
        leave_failing()
        await (await engine.start(agent, "And?")).result()
        assert len(failing) == before and len(seen) == 2 * 4 + 2
    assert "an observer failed" in caplog.text
