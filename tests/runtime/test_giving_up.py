"""A stop on a store that refuses to the last: whoever is told that nothing was kept finds nothing later. Time is
virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from campaigns.simulation.server import WallClock

from runtime.kit import MoodyStore, engine_on, plan, until
from runtime.test_parked import on_virtual_time
from weftline.errors import StoreError, Unavailable
from weftline.kernel.entries import KIND, CallClosed, MessageQueued
from weftline.plan import LocalRef, ServerRef
from weftline.runtime.fleet.fleet import LAST_TRY_S
from weftline.store.memory import MemoryDisk
from weftline.store.rows import Write, Written
from weftline.tools.base import ToolOutput
from weftline.tools.decorator import tool

SCRIPTS: dict[str, Any] = {
    name: {"turns": [*[{"tool_calls": [{"name": name, "args": {}}]}] * 2, {"text": "thanks"}]}
    for name in ("ask", "hold")
}
MANY = 10**6


class Stage:
    """An engine whose store can be told to refuse, with a tool that ends when it may."""

    def __init__(self, clock: WallClock) -> None:
        self.store = MoodyStore(MemoryDisk())
        self.log = self.store.log
        self.probes = 0
        self.log.probe = self._probe
        self.let_go = asyncio.Event()

        @tool(effect="once")
        async def hold() -> str:
            """Waits."""
            await self.let_go.wait()
            return "held"

        self.engine, _ = engine_on(self.store, SCRIPTS, tools={"hold": hold}, clock=clock)

    async def _probe(self) -> None:
        self.probes += 1
        if self.log.refusals:
            raise StoreError("The disk is full.")

    async def run(self, model: str, tools: LocalRef | ServerRef) -> int:
        space = await self.engine.workspace("acme")
        key = await self.engine.locate(await self.engine.create(space, plan(model, tools)), workspace=space)
        await asyncio.sleep(1)
        return key

    async def message_behind_a_result(self) -> asyncio.Task[str]:
        """A message to a run whose tool has ended: it waits, together with the result, for a store that refuses."""
        key = await self.run("hold", ServerRef("hold"))
        self.log.gate.clear()
        self.let_go.set()
        await until(lambda: self.log.waited)
        sending = asyncio.create_task(self.engine.steer(key, "Pay."))
        await asyncio.sleep(0.01)
        self.log.refusals = MANY
        self.log.gate.set()
        await asyncio.sleep(0.01)
        assert not sending.done()
        return sending

    def kinds(self, key: int) -> list[str]:
        """Of what is stored of the run."""
        return [item.kind for item in self.store.disk.runs[key].items]

    @property
    def messages(self) -> int:
        """How many are stored."""
        return sum(self.kinds(key).count(KIND[MessageQueued]) for key in self.store.disk.runs)


def test_abandoned_write_is_never_written_later() -> None:
    async def scenario(clock: WallClock) -> None:
        stage = Stage(clock)
        await stage.engine.start()
        sending = await stage.message_behind_a_result()
        await stage.engine.drain(0)
        assert not await stage.engine.abort()
        with pytest.raises(Unavailable, match="not accepting writes"):
            await sending
        stage.log.refusals = 0
        flushes = stage.log.flushes
        await asyncio.sleep(3600)
        assert (stage.log.flushes, stage.probes, stage.messages) == (flushes, 0, 0)
        with pytest.raises(Unavailable):
            stage.engine.require_writable()

    on_virtual_time(scenario)


def test_flush_under_way_is_awaited_when_others_failed() -> None:
    async def scenario(clock: WallClock) -> None:
        stage = Stage(clock)
        await stage.engine.start()
        sending = await stage.message_behind_a_result()
        real, log = stage.log.flush, stage.engine._log  # pyright: ignore[reportPrivateUsage]
        until_s = asyncio.get_running_loop().time() + LAST_TRY_S

        def flush(writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
            flushing = real(writes)
            if asyncio.get_running_loop().time() >= until_s and stage.log.refusals:

                def begin_another(_: object) -> None:
                    stage.log.gate.clear()
                    stage.log.refusals = 0
                    log.hurry()

                # After the log's own callback, and before whoever stops the engine is woken by it.
                asyncio.get_running_loop().call_soon(flushing.add_done_callback, begin_another)
            return flushing

        stage.log.flush = flush
        await stage.engine.drain(0)
        stopping = asyncio.create_task(stage.engine.abort())
        await asyncio.sleep(60)
        assert not stopping.done() and not sending.done(), "nobody knows yet"
        stage.log.gate.set()
        assert await stopping
        assert await sending and stage.messages == 1

    on_virtual_time(scenario)


def test_request_appended_too_late_is_refused_too() -> None:
    async def scenario(clock: WallClock) -> None:
        stage = Stage(clock)
        await stage.engine.start()
        key = await stage.run("ask", LocalRef("ask"))
        await asyncio.sleep(60)
        assert key in stage.log.released
        stage.log.claims_gate.clear()
        late = asyncio.create_task(stage.engine.answer(key, "call_0_0", ToolOutput.of("42")))
        await asyncio.sleep(0.01)
        sending = await stage.message_behind_a_result()
        await stage.engine.drain(0)
        assert not await stage.engine.abort()
        stage.log.refusals = 0
        stage.log.claims_gate.set()
        for refused in (sending, late):
            with pytest.raises(Unavailable, match="not accepting writes"):
                await refused
        await asyncio.sleep(3600)
        assert stage.messages == 0
        assert KIND[CallClosed] not in stage.kinds(key)
        run = stage.engine._fleet.loader.resident(key)  # pyright: ignore[reportPrivateUsage]
        assert run is not None and run.log.outbox.empty, "whoever waits until nothing is left to write waits in vain"

    on_virtual_time(scenario)


def test_stopped_engine_does_not_probe_its_store() -> None:
    async def scenario(clock: WallClock) -> None:
        stage = Stage(clock)
        await stage.engine.start()
        stage.log.refusals = MANY
        with pytest.raises(Unavailable):
            await stage.run("ask", LocalRef("ask"))
        await asyncio.sleep(60)
        assert stage.probes > 5
        await stage.engine.drain(0)
        assert await stage.engine.abort(), "nothing is lost"
        probes = stage.probes
        await asyncio.sleep(3600)
        assert stage.probes == probes

    on_virtual_time(scenario)


def test_recovered_store_is_left_alone_after_the_stop() -> None:
    """It is closed by then."""

    async def scenario(clock: WallClock) -> None:
        stage = Stage(clock)
        await stage.engine.start()
        stage.log.refusals = MANY
        with pytest.raises(Unavailable):
            await stage.run("ask", LocalRef("ask"))
        await asyncio.sleep(60)
        stage.log.refusals = 0
        probes = stage.probes
        await stage.engine.drain(0)
        assert await stage.engine.abort()
        await asyncio.sleep(3600)
        assert stage.probes == probes + 1

    on_virtual_time(scenario)


def test_refusing_store_is_retried_at_growing_intervals_while_stopping() -> None:
    async def scenario(clock: WallClock) -> None:
        stage = Stage(clock)
        await stage.engine.start()
        sending = await stage.message_behind_a_result()
        await asyncio.sleep(60)
        real, loop = stage.log.flush, asyncio.get_running_loop()
        tries: list[float] = []

        def flush(writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
            tries.append(loop.time())
            return real(writes)

        stage.log.flush = flush
        await stage.engine.drain(0)
        begun_s = loop.time()
        assert not await stage.engine.abort()
        expected = [0, 0.1, 0.3, 0.7, 1.5, 3.1, LAST_TRY_S]
        assert [at_s - begun_s for at_s in tries] == pytest.approx(expected, abs=0.01)
        with pytest.raises(Unavailable):
            await sending

    on_virtual_time(scenario)


def test_program_ending_during_a_probe_does_not_retry(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(clock: WallClock) -> None:
        stage = Stage(clock)
        probing = asyncio.Event()

        async def probe() -> None:
            probing.set()
            await asyncio.Event().wait()

        stage.log.probe = probe
        await stage.engine.start()
        stage.log.refusals = 1
        with pytest.raises(Unavailable):
            await stage.run("ask", LocalRef("ask"))
        await probing.wait()

    on_virtual_time(scenario)
    assert "trying again" not in caplog.text


@pytest.mark.parametrize("error", [OSError("the network is down"), asyncio.CancelledError()])
def test_store_whose_probe_fails_oddly_is_retried(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(clock: WallClock) -> None:
        stage = Stage(clock)
        probes = 0

        async def probe() -> None:
            nonlocal probes
            probes += 1
            if probes <= 3:
                raise error

        stage.log.probe = probe
        async with stage.engine:
            stage.log.refusals = 1
            with pytest.raises(Unavailable):
                await stage.run("ask", LocalRef("ask"))
            await asyncio.sleep(60)
            assert probes == 4
            await stage.run("ask", LocalRef("ask"))

    on_virtual_time(scenario)
    assert caplog.text.count("the store could not be probed; trying again") == 3


@pytest.mark.parametrize("results", [[], [Written(), Written()], None])
def test_flush_with_a_wrong_number_of_results_is_unknown(results: Any) -> None:
    async def scenario(clock: WallClock) -> None:
        stage = Stage(clock)
        real = stage.log.flush

        def flush(writes: Sequence[Write]) -> asyncio.Future[Any]:
            stage.log.flush = real
            told = asyncio.get_running_loop().create_future()
            told.set_result(results)
            return told

        async with stage.engine:
            key = await stage.run("ask", LocalRef("ask"))
            stage.log.flush = flush
            with pytest.raises(StoreError, match="not known whether"):
                await stage.engine.pause(key)
            await stage.engine.pause(key)
            row = await stage.log.run(key)
            assert row is not None and row.status == "paused"

    on_virtual_time(scenario)
