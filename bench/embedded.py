# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""The engine without HTTP, in a process of its own: turns, commits, and what history costs.

python -m bench.embedded FOLDER MODEL_PORT ROUNDS
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Self

import msgspec
import uvloop
from msgspec import Struct

from bench import workloads
from bench.load import percentile
from weftline import tool
from weftline.config import load_config
from weftline.net.transport import AiohttpTransport
from weftline.providers.scripted import ScriptedProvider, parse_scripts
from weftline.runtime import ids
from weftline.runtime.engine import OwnedEngine
from weftline.runtime.new_engine import new_engine
from weftline.spec.plan import plan_from_spec
from weftline.store.sqlite.connection import connect
from weftline.store.sqlite.store import SqliteStore

COMMIT_BYTES = 3000
"""About what one tool turn appends."""

_called: list[float] = []


@tool(effect="idempotent", blocking=False)
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    _called.append(time.perf_counter())
    return a + b


class Times(Struct, frozen=True):
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, took_s: Sequence[float]) -> Self:
        return cls(percentile(took_s, 50) * 1000, percentile(took_s, 99) * 1000)


class Measured(Struct, frozen=True):
    """One value per round."""

    commit: list[Times]
    turn: list[Times]
    short: list[Times]
    """A turn after 10 messages, against `long`: after 1,000."""
    long: list[Times]
    short_http: list[Times]
    long_http: list[Times]
    commits_per_run: list[float]
    runs_per_s: list[float]


class _Bench:
    def __init__(self, engine: OwnedEngine, workspace: int, commits: Callable[[], int]) -> None:
        self._engine = engine
        self._commits = commits
        self._workspace = workspace

    async def run(self, body: bytes) -> None:
        run_id = await self._engine.create(self._workspace, plan_from_spec(body), sent=body)
        parsed = ids.parse(run_id, prefix="run_")
        assert parsed is not None
        follower = self._engine.follow(parsed[0], run_id)
        while await follower.next() is not None:
            pass
        follower.close()

    async def turns(self, model: str, *, history: int = 0) -> list[float]:
        """From one execution of the tool to the next: a turn of 20 deltas, and the commit that permits the call."""
        body = workloads.body(model, tools=(workloads.SERVER_TOOL,), history=history).encode()
        _called.clear()
        await self.run(body)
        if len(_called) < 50:
            raise RuntimeError(f"{model}: the tool ran {len(_called)} times")
        return [later - sooner for sooner, later in pairwise(_called[2:])]

    async def histories(self, model: str, *, runs: int) -> tuple[Times, Times]:
        """Turns after 10 and after 1,000 messages, by turns: whatever else the machine does hits both."""
        short: list[float] = []
        long: list[float] = []
        for _ in range(runs):
            short += await self.turns(model, history=10)
            long += await self.turns(model, history=1000)
        return Times.of(short), Times.of(long)

    async def commits_per_run(self, *, runs: int) -> float:
        body = workloads.body("scripted:one", tools=(workloads.SERVER_TOOL,)).encode()
        before = self._commits()
        for _ in range(runs):
            await self.run(body)
        return (self._commits() - before) / runs

    async def runs_per_s(self, *, clients: int, seconds: float) -> float:
        body = workloads.body("scripted:one", tools=(workloads.SERVER_TOOL,)).encode()
        begun = time.perf_counter()
        done = 0

        async def client() -> None:
            nonlocal done
            while time.perf_counter() < begun + seconds:
                await self.run(body)
                done += 1

        await asyncio.gather(*(client() for _ in range(clients)))
        return done / (time.perf_counter() - begun)


def commits(folder: Path, *, count: int) -> list[float]:
    """The floor of a durable turn: one commit of as many bytes, the way that the store makes it."""
    path = folder / "floor.db"
    db = connect(path)
    db.execute("CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT")
    data = b"x" * COMMIT_BYTES
    took: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO log (body) VALUES (?)", (data,))
        db.execute("COMMIT")
        took.append(time.perf_counter() - begun)
    db.close()
    return took


@asynccontextmanager
async def opened(folder: Path, model_port: int) -> AsyncGenerator[_Bench]:
    (folder / "config.toml").write_text(workloads.config(model_port))
    transport = AiohttpTransport()
    scripted = ScriptedProvider(parse_scripts(msgspec.json.encode(workloads.SCRIPTS)))
    models = load_config(folder / "config.toml").catalog(transport=transport, scripted=scripted)
    store = SqliteStore(folder / "store")
    async with new_engine(store, models=models, tools={"add": add}) as engine:
        yield _Bench(engine, await engine.workspace(workloads.WORKSPACE), lambda: store.log.commits)
    await models.aclose()
    await transport.aclose()


async def measure(folder: Path, model_port: int, rounds: int) -> Measured:
    found = Measured([], [], [], [], [], [], [], [])
    async with opened(folder, model_port) as bench:
        await bench.turns("scripted:loop")
        await bench.turns("fake:loop")
        for _ in range(rounds):
            bare: list[float] = []
            turns: list[float] = []
            for _ in range(10):
                bare += commits(folder, count=100)
                turns += await bench.turns("scripted:loop")
            found.commit.append(Times.of(bare))
            found.turn.append(Times.of(turns))
            short, long = await bench.histories("scripted:loop", runs=5)
            found.short.append(short)
            found.long.append(long)
            short, long = await bench.histories("fake:loop", runs=2)
            found.short_http.append(short)
            found.long_http.append(long)
            found.commits_per_run.append(await bench.commits_per_run(runs=100))
            found.runs_per_s.append(await bench.runs_per_s(clients=64, seconds=1.0))
    return found


def main() -> None:
    # As the server sets it.
    sys.setswitchinterval(0.001)
    logging.getLogger("weftline").setLevel(logging.ERROR)  # the runs are meant to reach their limit of turns
    measured = uvloop.run(measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
    sys.stdout.buffer.write(msgspec.json.encode(measured))


if __name__ == "__main__":
    main()
