"""What a conversation with large contents takes on the disk."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from bench.machine import Machine
from bench.rows import Row
from weftline import Agent, Engine, Limits, tool
from weftline.testing import ScriptedModel, calls

_MB = 1024 * 1024
_TURNS = 100
_FORKS = 10


@tool(effect="read")
def fetch() -> str:
    """Fetches a large page."""
    return _words(1)


@tool(effect="read")
def look(page: int) -> str:
    """Looks at a page."""
    return f"page {page}"


def _words(seed: int) -> str:
    return random.Random(seed).randbytes(_MB // 2).hex()


def stored(machine: Machine) -> list[Row]:
    """A thread with a message and a result of 1 MB each in 100 requests, and forks; the floor is both of them once."""
    with machine.folder() as folder:
        grown = asyncio.run(_grown(folder / "store"))
    note = f"a message and a result of 1 MB in {_TURNS} requests of a thread and in {_FORKS} forks; floor: each once"
    return [Row("large contents on disk", "MB", "less", (grown / _MB,), floor=2, reach=3, note=note)]


async def _grown(path: Path) -> int:
    turns = [calls("fetch"), *[calls("look", page=page) for page in range(_TURNS - 2)], "Seen."]
    agent: Agent[Any, Any] = Agent(
        ScriptedModel(turns), name="reader", tools=[fetch, look], limits=Limits(max_turns=2 * _TURNS, loop_soft=0)
    )
    async with Engine(path) as engine:
        run = await engine.start(agent, _words(0), thread="t")
        await run.result()
        other: Agent[Any, Any] = Agent(ScriptedModel(["Seen."]), name="other", tools=[fetch, look])
        for _ in range(_FORKS):
            await (await engine.fork(run.id, other, turn=_TURNS - 1)).result()
    return _size(path)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())
