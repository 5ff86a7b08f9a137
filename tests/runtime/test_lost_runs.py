"""Callers under whom a run leaves memory, and a start that fails: nobody waits in vain, and nothing happens twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest

from runtime.kit import TIMEOUT_S, MoodyStore, engine_on, new_thread, plan, until
from weftline.errors import StoreError, Unavailable
from weftline.kernel.entries import KIND, MessageQueued
from weftline.plan import LocalRef, ServerRef
from weftline.providers.catalog import Catalog
from weftline.runtime.budgets.ledger import Ledger
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet import holding
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.store.memory import MemoryDisk
from weftline.store.rows import History
from weftline.tools.base import ToolOutput
from weftline.tools.decorator import tool

SCRIPTS: dict[str, Any] = {
    name: {"turns": [{"tool_calls": [{"name": name, "args": {}}]}, {"text": "thanks"}]} for name in ("ask", "hold")
}


class Place:
    """An engine with one run that waits for its client; whoever looks for an earlier message is held up."""

    def __init__(self) -> None:
        self.store = MoodyStore(MemoryDisk())
        self.engine, _ = engine_on(self.store, SCRIPTS)
        self.gate, self.looks = asyncio.Event(), 0
        self._newest_facts = self.store.log.newest_facts
        self.store.log.newest_facts = self._held_up

    async def _held_up(self, *args: Any, **options: Any) -> Any:
        found = await self._newest_facts(*args, **options)
        self.looks += 1
        await self.gate.wait()
        return found

    async def start(self) -> int:
        space = await self.engine.workspace("acme")
        run_id = await self.engine.create(space, plan("ask", LocalRef("ask")))
        key = await self.engine.locate(run_id, workspace=space)
        follower = self.engine.follow(key, run_id)
        seen: list[str] = []
        while "call.opened" not in seen:
            seen += [item.kind for batch in await follower.next() or () for item in batch.items]
        follower.close()
        return key


async def test_message_sent_twice_at_once_is_queued_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holding, "KEEP_S", 0.001)
    monkeypatch.setattr(holding, "_SWEEP_S", 0.001)
    place = Place()
    async with place.engine as it, asyncio.timeout(TIMEOUT_S):
        key = await place.start()
        both = [asyncio.create_task(it.follow_up(key, "And?", idempotency_key="k")) for _ in range(2)]
        await until(lambda: place.looks == 2 and key in place.store.log.released)
        place.gate.set()
        assert len({await one for one in both}) == 1
        queued = (KIND[MessageQueued],)
        assert len(await place.store.log.newest_facts(key, kinds=queued, limit=9, max_bytes=9_999)) == 1


async def test_whoever_rests_on_what_store_has_refused_is_told_so() -> None:
    place = Place()
    async with place.engine as it, asyncio.timeout(TIMEOUT_S):
        key = await place.start()
        looking = asyncio.create_task(it.follow_up(key, "And?", idempotency_key="k"))
        await until(lambda: place.looks)
        place.store.log.refusals = 1
        with pytest.raises(Unavailable):
            await it.steer(key, "Stop.")
        place.gate.set()
        with pytest.raises(Unavailable, match="not accepting writes"):
            await looking


async def test_a_start_that_fails_leaves_the_store_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreadable(ledger: Ledger, records: Any) -> None:
        raise StoreError("The store could not be read.")

    first = EmbeddedEngine(tmp_path, models=Catalog())
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "open", unreadable)
        with pytest.raises(StoreError, match="could not be read"):
            await first.start()
    async with EmbeddedEngine(tmp_path, models=Catalog()):
        pass


async def test_run_promoted_during_a_stop_is_left_to_the_next() -> None:
    """Its tools and deps are not even opened: nobody waits for them."""
    place, opened = Place(), 0
    began, let_go = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def hold() -> str:
        """Waits."""
        began.set()
        await let_go.wait()
        return "held"

    async def thread_history(thread: int) -> History:
        nonlocal opened
        opened += 1
        return History([])

    limits = WorkspaceLimits(max_runs_per_workspace=1)
    it, _ = engine_on(place.store, SCRIPTS, tools={"hold": hold}, limits=limits)
    async with asyncio.timeout(TIMEOUT_S), it:
        space, thread = await new_thread(place.store)
        await it.create(space, plan("hold", ServerRef("hold")))
        await began.wait()
        place.store.log.thread_history = thread_history
        await it.create(space, plan("ask", LocalRef("ask")), thread=thread)
        draining = asyncio.create_task(it.drain(TIMEOUT_S))
        await asyncio.sleep(0)
        let_go.set()
        await draining
    assert not opened
    assert [run.row.due_at for run in place.store.disk.runs.values()] == [0, 0]


@pytest.mark.parametrize("ends", ["written", "unwritten"])
async def test_run_continues_from_storage_if_an_outcome_is_unknown(
    ends: Literal["written", "unwritten"], caplog: pytest.LogCaptureFixture
) -> None:
    place = Place()
    async with place.engine as it, asyncio.timeout(TIMEOUT_S):
        key = await place.start()
        place.store.log.next_ends = ends
        with pytest.raises(StoreError, match="not known whether"):
            await it.pause(key)
        await until(lambda: "a flush ended without saying what was written" in caplog.text)
        row = await place.store.log.run(key)
        assert row is not None and row.status == ("paused" if ends == "written" else "running")
        await it.pause(key)
        await it.resume(key)
        assert await it.answer(key, "call_0_0", ToolOutput.of("42"))
