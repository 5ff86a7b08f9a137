"""One history: from a seed to the end of every run, with all the faults that the seed asks for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from weftline.kernel.entries import decode_fact
from weftline.kernel.state import decode_state
from weftline.runtime import hub, scheduler
from weftline.runtime.embedded import Engine
from weftline.store.base import RunWrite
from weftline.store.sqlite.reads import Reader
from weftline.testing.simulation.clients import Clients, Order
from weftline.testing.simulation.invariants import Facts, check
from weftline.testing.simulation.loop import VirtualLoop
from weftline.testing.simulation.server import Server, WallClock, quiet
from weftline.testing.simulation.store import Disk, SimulatedStore
from weftline.testing.simulation.trace import Trace, Violation
from weftline.testing.simulation.witness import DurableWitness
from weftline.testing.simulation.world import BROKEN, DOOMED, KILLER, SERVER_TOOLS, Ledger, Life, Wire

LONGEST_S = 6 * 3600.0
"""By then every run has ended, clocks set back by an hour and all."""
_FAULTS_S = 15.0
MOST_KILLS = 12
"""Of one run that kills the process whenever it is carried on."""

Build = Callable[[SimulatedStore, Life, WallClock], Engine]


def build_engine(store: SimulatedStore, life: Life, clock: WallClock) -> Engine:
    return Engine(store, models=life.models(doomed=life.number == 1), tools=life.tools(), clock=clock)


class Histories:
    """Runs histories; `build` makes the engine of each life, which is where a test plants a bug."""

    def __init__(self, *, build: Build = build_engine) -> None:
        self._build = build

    def run(self, seed: int) -> list[str]:
        """The trace of a history in which every promise was kept. Raises `Violation` when one was not."""
        history = History(seed, build=self._build)
        try:
            history.run()
        except Violation as violation:
            violation.seed = seed
            violation.trace = history.trace.lines
            raise
        except AssertionError as error:
            violation = Violation("S1", str(error))
            violation.seed, violation.trace = seed, history.trace.lines
            raise violation from error
        except Exception as error:
            violation = Violation("error", f"{type(error).__name__}: {error}")
            violation.seed, violation.trace = seed, history.trace.lines
            raise violation from error
        finally:
            history.close()
        return history.trace.lines


def simulate(seed: int) -> list[str]:
    return Histories().run(seed)


class History:
    def __init__(self, seed: int, *, build: Build) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(self._broken_callback)
        self.trace = Trace(self.loop.time)
        self.clock = WallClock(self.loop)
        self.disk = Disk(Random(self.rng.random()))
        self.read = Reader(self.disk.db)
        self.ledger = Ledger()
        self.wire = Wire()
        self.witness = DurableWitness(self.read, self.ledger, key_of=self.disk.key_of, fail=self._fail)
        self.orders: dict[str, Order] = {}
        self.threads: list[int] = []
        self._build = build
        self._failure: Violation | None = None
        self._crash_on: dict[int, str] = {}
        self._flushes = 0
        self._stalled_s = 0.0
        self._kills = 0
        self._stuck = asyncio.Event()
        self._committed = asyncio.Event()

    def run(self) -> None:
        quiet()
        random.seed(self.seed)
        with _narrow(self.rng):
            self.loop.run_until_complete(self._run())
        if self._failure is not None:
            raise self._failure
        check(self._facts())

    def close(self) -> None:
        tasks = self.loop.tasks()
        for task in tasks:
            task.cancel()
        for _ in range(20):
            if not (tasks := self.loop.tasks()):
                break
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=10.0))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        self.disk.close()

    async def _run(self) -> None:
        self.server = Server(
            self.disk,
            loop=self.loop,
            clock=self.clock,
            trace=self.trace,
            new_life=self._new_life,
            build=self._build,
        )
        self.server.is_outside(asyncio.current_task())
        self._plan()
        self.disk.on_commit = self._on_commit
        clients = self.clients = Clients(
            self.server, self.read, workspace=self.disk.workspace, rng=Random(self.rng.random()), trace=self.trace
        )
        stuck = self.server.outside(self._stuck.wait())
        keeper = self.server.outside(self._keep_up())
        faults = [self.server.outside(fault) for fault in self._faults()]
        working = [self.server.outside(clients.carry_out(order)) for order in self.orders.values()]
        done = self.server.outside(self._until_all_ended(working))
        over = asyncio.get_running_loop().time() + LONGEST_S
        while not done.done() and not self._stuck.is_set() and self.loop.now_s < over:
            waiting = [task for task in (done, keeper, stuck, *faults) if not task.done()]
            finished, _ = await asyncio.wait(
                waiting, timeout=over - self.loop.now_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in finished:
                task.result()
        if self._failure is not None:
            raise self._failure
        if not done.done():
            raise Violation("C6", f"after {LONGEST_S:.0f} s: {self._unfinished()}")
        keeper.cancel()
        stuck.cancel()
        await self.server.stop(drain_s=1.0)

    async def _until_all_ended(self, working: Sequence[asyncio.Task[None]]) -> None:
        for task in working:
            await task
        while True:
            while self.disk.unfinished():
                self._committed.clear()
                await self._committed.wait()
            await asyncio.sleep(3.0)  # a create whose client has gone may still be on its way
            if not self.disk.unfinished():
                return

    def _plan(self) -> None:
        rng = self.rng
        self.wire.errors = rng.choice((0.0, 0.1, 0.4))
        self.wire.slow = rng.choice((0.0, 0.0, 0.02))
        self.wire.stubborn = rng.choice((0.0, 0.5))
        self.threads = [self.disk.new_thread() for _ in range(rng.choice((0, 1, 1, 2)))]
        for number in range(rng.randrange(2, 7)):
            self._order(f"r{number}")
        if rng.random() < 0.2:
            poison = rng.choice((KILLER, BROKEN, DOOMED))
            tools = () if poison == DOOMED else (poison,)
            model = DOOMED if poison == DOOMED else self.orders["r0"].model
            self.orders["poison"] = Order("poison", tools=tools, model=model, poison=poison)

    def _order(self, tag: str) -> None:
        rng = self.rng
        client_tool = rng.random() < 0.5
        self.orders[tag] = Order(
            tag,
            thread=rng.choice(self.threads) if self.threads and rng.random() < 0.7 else None,
            tools=tuple(rng.sample(SERVER_TOOLS, rng.randrange(0 if client_tool else 1, 4))),
            client_tool=client_tool,
            timeout_ms=rng.choice((5_000, 300_000)),
            on_timeout=rng.choice(("end", "report")),
            answers=rng.random() < 0.9,
        )

    # Faults

    def _faults(self) -> list[Coroutine[Any, Any, None]]:
        rng = self.rng
        faults: list[Coroutine[Any, Any, None]] = []
        crashes = rng.choice((0, 0, 1, 2, 4))
        for _ in range(crashes):
            if rng.random() < 0.5:
                faults.append(self._crash_at(rng.random() * _FAULTS_S * rng.random()))
            else:
                self._crash_on[rng.randrange(1, 60)] = rng.choice(("before", "after"))
        if rng.random() < 0.2:
            faults.append(self._stop_at(rng.random() * _FAULTS_S))
        if rng.random() < 0.3:
            faults.append(self._refuse(rng.random() * 5.0, rng.random() ** 2 * 8.0))
        if rng.random() < 0.2:
            faults.append(self._set_clock(rng.random() * 5.0, rng.choice((-3600.0, 3600.0))))
        if rng.random() < 0.2:
            faults.append(self._stall(rng.random() * 5.0, rng.choice((2.0, 40.0))))
        return faults

    async def _crash_at(self, at_s: float) -> None:
        await asyncio.sleep(at_s)
        self.server.crash("killed")

    async def _stop_at(self, at_s: float) -> None:
        await asyncio.sleep(at_s)
        await self.server.stop(drain_s=self.rng.choice((0.0, 0.5, 30.0)))

    async def _refuse(self, at_s: float, for_s: float) -> None:
        await asyncio.sleep(at_s)
        self.disk.choose_refusal()
        self.trace.note(f"disk: refuses writes for {for_s:.3f} s: {self.disk.faults.refuses}")
        await asyncio.sleep(for_s)
        self.disk.faults.refuses = None
        self.trace.note("disk: takes writes")

    async def _set_clock(self, at_s: float, by_s: float) -> None:
        await asyncio.sleep(at_s)
        self.clock.offset_s += by_s
        self.trace.note(f"clock: set by {by_s:+.0f} s")

    async def _stall(self, at_s: float, for_s: float) -> None:
        await asyncio.sleep(at_s)
        self.trace.note(f"loop: stalls for {for_s:.0f} s")
        self.loop.now_s += for_s
        self._stalled_s += for_s

    async def _keep_up(self) -> None:
        """Begins the server again whenever it has gone."""
        while True:
            await self.server.start()
            await self.server.down()
            await asyncio.sleep(self.rng.random() * (2.0 if self.rng.random() < 0.9 else 400.0))

    def _on_commit(self, writes: Sequence[RunWrite], durable: bool) -> None:
        if durable:
            self._committed.set()
        else:
            self._flushes += 1
        for write in writes if durable else ():
            kinds = [f"{seq}:{kind}" for seq, _, kind, _, _ in write.entries]
            kinds += [f"{seq}+{count}:deltas" for seq, count, _, _, _ in write.deltas]
            refused = "refuses " if self.disk.faults.refuses else ""
            self.trace.note(f"disk: {refused}run {write.key} {' '.join(kinds)} due {write.due_at}")
        if self._crash_on.get(self._flushes) == ("after" if durable else "before"):
            del self._crash_on[self._flushes]
            self.server.crash("killed " + ("after" if durable else "before") + " a commit")

    # Parts

    def _new_life(self, number: int) -> Life:
        return Life(
            number,
            rng=Random(self.rng.random()),
            ledger=self.ledger,
            trace=self.trace,
            wire=self.wire,
            witness=self.witness,
            crash=self._killed,
        )

    def _killed(self, why: str) -> None:
        self._kills += 1
        if self._kills > MOST_KILLS:
            self._fail(Violation("C13", f"one run has killed the server {self._kills} times and is still there"))
        self.server.crash(why)

    def _broken_callback(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Violation):
            self._fail(error)
        elif error is not None and not isinstance(error, asyncio.CancelledError):
            self._fail(Violation("loop", f"{context.get('message')}: {error!r}"))

    def _fail(self, violation: Violation) -> None:
        """For what is found out where an exception would be swallowed by somebody else."""
        self._failure = self._failure or violation
        self._stuck.set()

    def _unfinished(self) -> str:
        told: list[str] = []
        for key in self.disk.unfinished():
            row = self.read.run(key)
            assert row is not None
            last = decode_fact.decode(self.read.facts(row.key)[-1][3])
            state = decode_state(row.state)
            told.append(f"run {row.key} due {row.due_at} {row.status}, last {last}, {state.step} {state.calls}")
        return "; ".join(told) or "all runs have ended, and a client does not know"

    def _facts(self) -> Facts:
        return Facts(
            self.read,
            self.orders,
            self.disk.keys(),
            self.ledger,
            self.clients.told,
            self.clients.seen,
            self.server.crashed_s,
            self._stalled_s,
            self.disk.faults.refused,
            {thread: self.disk.in_line(thread) for thread in self.threads},
        )


@contextmanager
def _narrow(rng: Random) -> Generator[None]:
    """Small queues and places, so that what happens under load happens here."""
    before = hub.QUEUE_BYTES, scheduler.MOST_EACH
    hub.QUEUE_BYTES = rng.choice((before[0], 2000, 300))
    scheduler.MOST_EACH = rng.choice((before[1], before[1], 2))
    try:
        yield
    finally:
        hub.QUEUE_BYTES, scheduler.MOST_EACH = before
