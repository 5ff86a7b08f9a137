"""What a reservation costs: turns with a call each under a budget, in CPU time, on a store on disk."""

from __future__ import annotations

import asyncio
import time

from bench.machine import Machine
from bench.rows import Row
from weftline import Agent, Budget, Engine, Limits, tool
from weftline.testing import ScriptedModel, calls

_TURNS = 50
_RUNS = 8
_RESERVATIONS = 2 * _TURNS - 1
"""Each turn has a model call and, but for the last, a tool call."""


@tool(effect="read")
def look(place: str) -> str:
    """Looks."""
    return f"{place}: nothing"


def budgets(machine: Machine) -> list[Row]:
    """The floor is the same without a limit anywhere."""
    with machine.folder() as folder:
        return asyncio.run(_measured(str(folder / "store"), machine.rounds(5)))


async def _measured(folder: str, rounds: int) -> list[Row]:
    under: list[float] = []
    without: list[float] = []
    free = [_agents(f"free-{number}", None) for number in range(rounds)]
    budget = Budget(tokens=10**9, calls=10**6, seconds=10**6)
    bound = [_agents(f"bound-{number}", budget) for number in range(rounds)]
    async with Engine(folder, agents=[agent for batch in (*free, *bound) for agent in batch]) as engine:
        for unlimited, limited in zip(free, bound, strict=True):
            without.append(await _cost_ms(engine, unlimited))
            under.append(await _cost_ms(engine, limited))
    floor = min(without)
    each_us = tuple([max(cost - floor, 0.0) / _RESERVATIONS * 1e3 for cost in under])
    note = f"{_TURNS} turns, a call in each; floor: the same under no limit"
    return [
        Row("run under a budget, CPU", "ms", "less", tuple(under), floor=floor, note=note),
        Row(
            "a reservation and its settlement", "us", "less", each_us, reach=150, note="what the above has in addition"
        ),
    ]


def _agents(name: str, budget: Budget | None) -> list[Agent]:
    """One for each run, since each plays its script once."""
    return [
        Agent(
            ScriptedModel([*[calls("look", place=f"place {n}") for n in range(_TURNS - 1)], "Done."]),
            name=f"{name}-{number}",
            tools=[look],
            limits=Limits(loop_soft=0),
            budget=budget,
        )
        for number in range(_RUNS)
    ]


async def _cost_ms(engine: Engine, agents: list[Agent]) -> float:
    begun = time.process_time()  # of all threads, the writer's too; what the disk takes is the same
    for agent in agents:
        run = await engine.start(agent, "Where?")
        await run.result()
    return (time.process_time() - begun) / len(agents) * 1e3
