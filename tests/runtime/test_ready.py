"""When an engine takes work, and what it takes no more then."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runtime.kit import MoodyLog, MoodyStore, ended, engine_on, plan, until
from weftline import Agent, Engine
from weftline.errors import Conflict, StoreError, Unavailable
from weftline.plan import LocalRef
from weftline.runtime.embedded import EmbeddedEngine
from weftline.store.memory import MemoryDisk
from weftline.store.rows import DueRun
from weftline.testing import ScriptedModel
from weftline.tools.base import ToolOutput

SCRIPTS: dict[str, Any] = {
    "ask": {"turns": [{"tool_calls": [{"name": "ask", "args": {}}]}, {"text": "thanks"}]},
    "hello": {"turns": [{"text": "hi"}]},
}


class SlowLog(MoodyLog):
    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.looked = asyncio.Event()
        self.look = asyncio.Event()
        """What is under way is told when it is set."""
        self.broken = False

    async def due_now(self, *, after: int, limit: int) -> Sequence[DueRun]:
        self.looked.set()
        await self.look.wait()
        if self.broken:
            raise StoreError("The store could not be read.")
        return await self._inner.due_now(after=after, limit=limit)


def slow(disk: MemoryDisk) -> tuple[EmbeddedEngine, SlowLog]:
    """An engine that has to wait for its store, and that store's log."""
    store = MoodyStore(disk)
    store.log = SlowLog(store.log._inner)
    return engine_on(store, SCRIPTS)[0], store.log


def is_ready(engine: EmbeddedEngine) -> bool:
    """What `/readyz` goes by."""
    try:
        engine.require_accepting()
    except Unavailable:
        return False
    return True


async def test_engine_is_ready_once_recovery_has_begun() -> None:
    disk = MemoryDisk()
    async with engine_on(MoodyStore(disk), SCRIPTS)[0] as before:
        space = await before.workspace("acme")
        run_id = await before.create(space, plan("ask", LocalRef("ask")))
        await until(lambda: disk.runs[1].row.due_at)
    disk.runs[1].row.due_at = 0
    engine, log = slow(disk)
    assert not is_ready(engine)
    starting = asyncio.create_task(engine.start())
    await log.looked.wait()
    assert not is_ready(engine), "it does not know yet what there is to recover"
    with pytest.raises(Unavailable):
        await engine.create(space, plan("hello"))
    log.claims_gate.clear()
    log.look.set()
    await starting
    assert is_ready(engine)
    assert (await ended(engine, await engine.create(space, plan("hello")), space)).status == "succeeded"
    log.claims_gate.set()
    await engine.answer(await engine.locate(run_id, workspace=space), "call_0_0", ToolOutput.of("42"))
    assert (await ended(engine, run_id, space)).status == "succeeded"
    await engine.stop()
    assert not is_ready(engine)


async def test_an_engine_that_cannot_begin_to_recover_is_never_ready() -> None:
    engine, log = slow(MemoryDisk())
    log.broken = True
    log.look.set()
    with pytest.raises(StoreError):
        await engine.start()
    assert not is_ready(engine)


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
async def test_an_open_engine_takes_no_more_agents(durable: bool, tmp_path: Path) -> None:
    first, late = [Agent(ScriptedModel(["Done."]), name=name) for name in ("first", "late")]
    engine = Engine(tmp_path if durable else None)
    engine.register(first)
    async with engine:
        with pytest.raises(Conflict) as refused:
            engine.register(late)
        assert refused.value.code == "registration_closed"
        words = "The engine is already open; register agents before that: Engine(…, agents=[late])."
        assert refused.value.message == words
        assert [*engine.agents] == ["first"]
        assert (await (await engine.start(late, "Go.")).result()).text == "Done.", "it needs no registration"
    engine.register(late)  # it is closed: somebody may open it again
