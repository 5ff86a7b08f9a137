"""A large batch does not hold the event loop: others have a turn while its calls follow one another."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from runtime.kit import engine_on, facts, plan, until
from weftline import Engine, tool
from weftline.hooks import ToolGate
from weftline.kernel.decide import MAX_CONSULTED
from weftline.kernel.entries import CallClosed
from weftline.plan import ServerRef
from weftline.runtime.driver import MAX_WITHOUT_PAUSE
from weftline.store.memory import MemoryDisk, MemoryStore

from .batches import agent_that_asks, asked_for

CALLS = 4 * MAX_WITHOUT_PAUSE


class Iterations:
    """Numbers the iterations of the event loop, and counts what happens in each."""

    def __init__(self) -> None:
        self.now = 0
        self.seen: Counter[int] = Counter()
        self._next()

    def _next(self) -> None:
        self.now += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def count(self) -> None:
        self.seen[self.now] += 1

    def stop(self) -> int:
        """How often it happened in one iteration, at most."""
        self._handle.cancel()
        return max(self.seen.values())


async def test_calls_that_wait_for_nothing_let_others_have_a_turn() -> None:
    iterations = Iterations()

    @tool(effect="read", concurrent=False)
    async def look(n: int) -> int:
        """Looks."""
        iterations.count()
        return n

    agent = agent_that_asks(asked_for("look", CALLS), tools=[look])
    async with Engine(agents=[agent]) as engine:
        await (await engine.start(agent, "Go.")).result()
    assert iterations.stop() <= MAX_WITHOUT_PAUSE
    assert iterations.seen.total() == CALLS


async def test_gates_of_a_large_batch_let_others_have_a_turn() -> None:
    iterations = Iterations()
    agent = agent_that_asks(asked_for("scan", CALLS))

    @agent.on(ToolGate)
    async def count(gate: ToolGate) -> None:
        iterations.count()

    async with Engine(agents=[agent]) as engine:
        await (await engine.start(agent, "Go.")).result()
    assert iterations.stop() <= MAX_CONSULTED
    assert iterations.seen.total() == CALLS


@pytest.mark.parametrize("what", ["pause", "cancel", "steer"])
async def test_input_between_two_calls_of_a_batch_counts(what: str) -> None:
    looked = 0
    begun, asked = asyncio.Event(), asyncio.Event()

    @tool(effect="read", concurrent=False)
    async def look(n: int) -> int:
        """Looks."""
        nonlocal looked
        looked += 1
        if n == 0:
            begun.set()
            await asked.wait()
        return n

    agent = agent_that_asks(asked_for("look", CALLS), tools=[look])
    async with Engine(agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        await begun.wait()
        ways: dict[str, Any] = {"pause": run.pause, "cancel": run.cancel, "steer": lambda: run.steer("Stop that.")}
        # The first call returns in the iteration in which this is asked for.
        asking = asyncio.create_task(ways[what]())
        asked.set()
        await asking
        if what == "pause":
            assert looked < CALLS
            await run.resume()
        if what != "cancel":
            await run.result()
    assert looked == CALLS if what == "pause" else looked < CALLS


@pytest.mark.parametrize("at", range(MAX_WITHOUT_PAUSE - 4, MAX_WITHOUT_PAUSE + 1))
async def test_stop_between_two_calls_of_a_batch_leaves_no_doubt(at: int) -> None:
    paid: list[int] = []
    stopping: list[asyncio.Task[object]] = []

    @tool(effect="once")
    async def pay(n: int) -> int:
        """Pays."""
        paid.append(n)
        if n == at and not stopping:
            stopping.append(asyncio.create_task(first.stop(drain_s=10)))
        return n

    calls = [{"name": "pay", "args": {"n": n}} for n in range(MAX_WITHOUT_PAUSE + 8)]
    scripts = {"pay": {"turns": [{"tool_calls": calls}, {"text": "done"}]}}
    disk = MemoryDisk()
    first, _ = engine_on(MemoryStore(disk), scripts, tools={"pay": pay})
    await first.start()
    space = await first.workspace("acme")
    run_id = await first.create(space, plan("pay", ServerRef("pay")))
    await until(lambda: bool(stopping))
    await stopping[0]
    second, _ = engine_on(MemoryStore(disk), scripts, tools={"pay": pay})
    async with second:
        closed = [head.how for head in await facts(second, run_id, space) if isinstance(head, CallClosed)]
    assert paid == list(range(len(calls)))
    assert set(closed) == {"returned"}
