"""The server process of a history: starts, serves, crashes or stops, and starts again on the same disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from msgspec import Struct

from campaigns.simulation.disk import Disk
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.model import catalog
from campaigns.simulation.odds import Odds
from campaigns.simulation.orders import Order
from campaigns.simulation.store import SimulatedLog, SimulatedStore, Wires
from campaigns.simulation.subagents import tools_of
from campaigns.simulation.trace import Trace, require
from campaigns.simulation.world import Life
from weftline.cases.firing import ScheduleAlarm, Start, Started
from weftline.errors import StoreError
from weftline.runtime.engine import Engine, OwnedEngine
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.runtime.new_engine import new_engine
from weftline.store.base import LogStore, Store
from weftline.store.memory import MemoryStore
from weftline.workspace.context import Workspaces

T = TypeVar("T")


class Lost(Exception):
    """The connection broke: it is not known whether the request took effect."""


LIMITS = WorkspaceLimits()
"""Narrowed by some histories."""


class WallClock:
    """Follows the loop's time, and can be set by hand."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.offset_s = 1_700_000_000.0

    def now_us(self) -> int:
        return int((self._loop.now_s + self.offset_s) * 1_000_000)

    def latest_us(self, offset_s: float) -> int:
        """The time by this clock or by one that is off by so much, whichever is later."""
        return int((self._loop.now_s + max(self.offset_s, offset_s)) * 1_000_000)


class Build:
    """Creates the parts of a server, where a test can plant a bug."""

    held_s = 0.0
    """How long watchers may hold a command back."""
    odds = Odds()

    def provoke(self, orders: dict[str, Order]) -> None:
        """Changes what the runs of a history are to do, so that a situation is frequent."""

    def store(self, disk: Disk) -> Store:
        """The store itself, without simulated delays and faults."""
        return MemoryStore(disk.memory)

    def log(self, inner: LogStore, wires: Wires) -> SimulatedLog:
        return SimulatedLog(inner, wires)

    def engine(self, store: SimulatedStore, life: Life, clock: WallClock) -> OwnedEngine:
        return new_engine(
            store, models=catalog(life), tools=tools_of(life), clock=clock, limits=LIMITS, carry_out=life.carry_out
        )

    def alarm(self, at: Workspaces, *, start: Start, started: Started) -> ScheduleAlarm:
        return ScheduleAlarm(at, start=start, started=started)


class Up(Struct):
    """When one life of the server could be reached, in virtual seconds."""

    life: int
    since_s: float
    until_s: float = 1e12
    crashed: bool = False


class Server:
    def __init__(
        self,
        disk: Disk,
        *,
        loop: VirtualLoop,
        clock: WallClock,
        trace: Trace,
        new_life: Callable[[int], Life],
        build: Build,
    ) -> None:
        self._disk = disk
        self._loop = loop
        self._clock = clock
        self._trace = trace
        self._new_life = new_life
        self._build = build
        self._outside: set[asyncio.Task[Any]] = set()
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self.companion: Callable[[OwnedEngine, SimulatedStore], Coroutine[Any, Any, None]] | None = None
        """What a process does besides driving runs."""
        self._besides: asyncio.Task[None] | None = None
        self.life = new_life(0)
        self.engine: OwnedEngine | None = None
        self.lives = 0
        self.crashed_s: dict[int, float] = {}
        """When each life that crashed did so."""
        self.times: dict[int, Up] = {}
        """For each life, when it was up."""

    def outside(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that is not part of the server: a client, or the history itself."""
        task = self._loop.create_task(coroutine)
        self._outside.add(task)
        task.add_done_callback(self._outside.discard)
        return task

    def is_outside(self, task: asyncio.Task[Any] | None) -> None:
        """Marks a task created elsewhere."""
        if task is not None:
            self._outside.add(task)

    def _inside(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of the server, which may fail after its process is gone."""
        task = self._loop.create_task(coroutine)
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return task

    async def start(self) -> None:
        self.lives += 1
        life = self.life = self._new_life(self.lives)
        self._down.clear()
        store = self._store = SimulatedStore(self._disk, self._build.store(self._disk), new_log=self._build.log)
        parked, offset_s = self._disk.parked(), self._clock.offset_s
        self._trace.note(f"server: life {life.number} (deploy {life.deploy}) begins, unclean: {store.log.unclean}")
        self.times[life.number] = Up(life.number, self._loop.time())
        engine = self._process = self._build.engine(store, life, self._clock)
        starting = self._inside(engine.start())
        await asyncio.wait([starting])
        if starting.cancelled() or life.dead:
            return
        error = starting.exception()
        if isinstance(error, StoreError):
            self._trace.note(f"server: life {life.number} cannot begin: {error}")
            self.crash("it could not begin")
            return
        starting.result()
        # A clock that was set back in between has already shown a later time.
        after, now = self._disk.parked(), self._clock.latest_us(offset_s)
        # A run that ends advances its parent, and a cancelled one cancels its children.
        moving = {row.root for row in parked.values() if row.due_at is not None and row.due_at <= now}
        for key, row in parked.items():
            untouched = row.root in moving or after.get(key) == row
            require("C7", untouched, f"run {key} was parked as {row} and a start made it {after.get(key)}")
        self.engine = engine
        if self.companion is not None:
            self._besides = self._inside(self.companion(engine, store))
        self._up.set()

    def crash(self, why: str) -> None:
        """The process dies here, with everything that was not committed."""
        life = self.life
        if life.dead or not self.lives:
            return
        self._trace.note(f"server: life {life.number} crashes: {why}")
        self.crashed_s[life.number] = self._loop.time()
        self.times[life.number].crashed = True
        self._end(life)

    async def stop(self, *, drain_s: float) -> None:
        """An orderly end, unless a crash comes first."""
        life, engine = self.life, self.engine
        if engine is None or life.dead:
            return
        self._trace.note(f"server: life {life.number} stops")
        self._up.clear()
        self.engine = None
        self.times[life.number].until_s = self._loop.time()
        if self._besides is not None:
            self._besides.cancel()
        stopping = self._inside(engine.stop(drain_s=drain_s))
        await asyncio.wait([stopping])
        if not life.dead:
            if not stopping.cancelled():
                stopping.result()
            self._end(life)

    def _end(self, life: Life) -> None:
        life.dead = True
        times = self.times[life.number]
        times.until_s = min(times.until_s, self._loop.time())
        self._down.set()
        self._store.die()
        self.engine = None
        self._up.clear()
        left = [task for task in self._loop.tasks() if task not in self._outside]
        self.outside(_begin_nothing_more(self._process))
        for task in left:
            task.cancel()

    async def down(self) -> None:
        await self._down.wait()

    async def up(self) -> tuple[Engine, Life]:
        while self.engine is None:
            await self._up.wait()
        return self.engine, self.life

    async def request(self, ask: Callable[[Engine], Awaitable[T]], *, patience_s: float | None = None) -> T:
        """Sends one request and returns the response. Raises `Lost` if the server dies or the client times out
        first.
        """
        engine, life = await self.up()
        task = self._inside(_ask(ask, engine))
        await asyncio.wait([task], timeout=patience_s)
        if not task.done():
            task.cancel()
            raise Lost
        if task.cancelled() or life.dead:
            raise Lost
        return task.result()


async def _ask(ask: Callable[[Engine], Awaitable[T]], engine: Engine) -> T:
    return await ask(engine)


async def _begin_nothing_more(engine: OwnedEngine) -> None:
    """A dead engine does not know that it is dead, and would drive interrupted runs again."""
    with suppress(AttributeError):  # it died before it was complete
        await engine.drain(0.0)


@contextmanager
def quiet() -> Generator[None]:
    """Suppresses log lines of simulated faults."""
    logger = logging.getLogger("weftline")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
