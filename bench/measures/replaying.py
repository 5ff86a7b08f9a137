"""What it costs to run a finished run again from its log."""

from __future__ import annotations

import asyncio
import time

from bench.machine import Machine
from bench.rows import Row
from weftline import Agent, Engine, Limits, tool
from weftline.agent.engine.replaying import AgentsToday
from weftline.kernel.entries import decode_fact
from weftline.kernel.evolve import fold
from weftline.kernel.state import State
from weftline.replay.recorded import StoredRun
from weftline.replay.refusing import find_run
from weftline.replay.replaying import replay_run
from weftline.runtime.reads.calls import entries
from weftline.testing import ScriptedModel, calls

_TURNS = 100
_REPEATS = 20


@tool(effect="read")
def look(place: str, depth: int = 1) -> str:
    """Looks."""
    return f"{place}: nothing at {depth}"


def replay_a_run(machine: Machine) -> list[Row]:
    """A run of 100 turns with a call in each; the floor decodes and folds its facts, and compares nothing."""
    return asyncio.run(_measured(machine.rounds(5)))


async def _measured(rounds: int) -> list[Row]:
    turns = [calls("look", place=f"place {number}") for number in range(_TURNS - 1)]
    agent = Agent(ScriptedModel([*turns, "Done."]), name="searcher", tools=[look], limits=Limits(loop_soft=0))
    async with Engine() as engine:
        run = await engine.start(agent, "Where?")
        await run.result()
        log = engine.store.log
        row = await find_run(log, run.id)
        recorded, today = StoredRun(log, row), AgentsToday([agent])
        costs: list[float] = []
        for _ in range(rounds):
            begun = time.perf_counter()
            for _ in range(_REPEATS):
                done = await replay_run(recorded, today)
                if done.divergence is not None or done.turns != _TURNS:
                    raise RuntimeError(str(done))
            costs.append((time.perf_counter() - begun) / _REPEATS * 1e3)
        begun = time.perf_counter()
        for _ in range(_REPEATS):
            fold(
                State(), [(item.at, decode_fact.decode(item.head)) async for item in entries(log, row.key) if item.head]
            )
        floor = (time.perf_counter() - begun) / _REPEATS * 1e3
    note = "100 turns, a call in each; floor: decoding and folding its facts"
    return [Row("replay of a run", "ms", "less", tuple(costs), floor=floor, reach=25, note=note)]
