"""One history: from a seed to the end of every run, with all the faults that the seed determines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from msgspec.structs import replace

from campaigns.simulation import server as servers
from campaigns.simulation.budgets import BudgetWatch
from campaigns.simulation.children import ChildWatch
from campaigns.simulation.clients import Clients
from campaigns.simulation.disk import Disk
from campaigns.simulation.evidence import Evidence
from campaigns.simulation.invariants import check
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.mishaps import Mishaps
from campaigns.simulation.orders import (
    call_agents,
    choose_manners,
    choose_orders,
    give_ids,
    hand_out_leases,
    involve_people,
    leave_questions,
    set_policies,
    write_code,
)
from campaigns.simulation.schedules import Schedules, check_schedules
from campaigns.simulation.server import Build, Server, WallClock, quiet
from campaigns.simulation.trace import Trace, Violation
from campaigns.simulation.witness import DurableWitness
from campaigns.simulation.world import Ledger, Life
from weftline.kernel.entries import AttemptFailed, CallClosed, Fact, TurnCompleted
from weftline.kernel.evolve import fold
from weftline.kernel.state import State
from weftline.runtime import hub
from weftline.runtime.fleet import holding

LONGEST_S = 6 * 3600.0
"""By then every run has ended, even if clocks were set back by an hour."""
MAX_KILLS = 18
"""How often a run kills the process before it is given up, if nothing else kills it and nothing it began ends in
between.

Once when it is new, once with all that are recovered, then as often as 9 runs can be halved, then ten times alone. A
run that kills late does so a few more times, until its trial is long enough.
"""


class Histories:
    """Runs histories; `build` creates the parts of each life, where a test can plant a bug."""

    def __init__(self, *, build: Build | None = None) -> None:
        self._build = build or Build()

    @quiet()
    def run(self, seed: int) -> list[str]:
        """The trace of a history in which every promise was kept. Raises `Violation` otherwise."""
        history = History(seed, build=self._build)
        try:
            history.run()
        except Violation as violation:
            violation.seed = seed
            violation.trace = history.trace.lines
            raise
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
        self._held_s, self._odds = build.held_s, build.odds
        self.rng = Random(seed)
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(self._broken_callback)
        self.trace = Trace(self.loop.time)
        self.clock = WallClock(self.loop)
        self._epoch_s = self.clock.offset_s
        self.disk = Disk(Random(self.rng.random()))
        self.ledger = Ledger()
        self.manners = choose_manners(self.rng)
        self.threads = self.disk.threads(self.rng.choice(build.odds.threads))
        self.orders = choose_orders(self.rng, self.threads)
        # From a separate source, so that histories without people stay the same.
        self._people = Random(seed + 0.5)
        if seed % 3 == 1:
            involve_people(self.orders, self._people)
        if seed % 3 == 2:
            set_policies(self.orders, self._people)
            if seed % 2:
                involve_people(self.orders, self._people)
        if seed % 6 == 0 or seed % 12 in (1, 5):
            write_code(self.orders, self._people)
        if seed % 6 == 3:
            hand_out_leases(self.orders, self._people)
        if seed % 5 == 3:
            leave_questions(self.orders, self._people)
        if seed % 6 == 2:
            give_ids(self.orders, Random(seed + 0.125))
        apart = Random(seed + 0.25)
        plans = seed % 7 == 2 and not any(order.deadly for order in self.orders.values())
        self._schedules = Schedules(self.disk, self.orders, apart, clock=self.clock) if plans else None
        self._budgets = BudgetWatch(self.disk, self.orders, self._people) if seed % 6 == 0 else None
        if self._budgets is not None:
            self.disk.watches.append(self._budgets.committed)
        if seed % 7 == 5 and not any(order.deadly for order in self.orders.values()):
            call_agents(self.orders, apart)
            self.disk.watches.append(ChildWatch(self.disk).committed)
        build.provoke(self.orders)
        self.witness = DurableWitness(self.disk, self.ledger, fail=self._fail)
        self.server = Server(
            self.disk, loop=self.loop, clock=self.clock, trace=self.trace, new_life=self._new_life, build=build
        )
        if (scheduled := self._schedules) is not None:
            self.server.companion = lambda engine, store: scheduled.run(engine, store, build.alarm)
        self._failure: Violation | None = None
        self._kills = self._kills_in_all = 0
        self._since = (0, 0)
        self._stuck = asyncio.Event()

    def run(self) -> None:
        random.seed(self.seed)
        with _narrow(self.rng):
            self.loop.run_until_complete(self._play())
        if self._failure is not None:
            raise self._failure
        if self._budgets is not None:
            self._budgets.compare()
        evidence = self._evidence()
        if self._schedules is not None:  # first, since two runs for one time look alike
            check_schedules(evidence, evidence.logs(), self._schedules.planned)
        check(evidence)

    def close(self) -> None:
        self.server.crash("the history is over")
        self.loop.run_until_complete(asyncio.sleep(0))  # so that the engine learns of it before its tasks end
        for _ in range(20):
            if not (tasks := self.loop.tasks()):
                break
            for task in tasks:
                task.cancel()
            ended = asyncio.wait(tasks, timeout=10.0)
            with suppress(Violation):  # from a task that loops forever, which has been reported by now
                self.loop.run_until_complete(ended)
            ended.close()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _play(self) -> None:
        server = self.server
        server.is_outside(asyncio.current_task())
        mishaps = self.mishaps = Mishaps(
            server,
            self.disk,
            loop=self.loop,
            clock=self.clock,
            rng=Random(self.rng.random()),
            trace=self.trace,
            fail=self._fail,
            odds=self._odds,
        )
        mishaps.troubles.held_s = self._held_s
        if self._schedules is not None:
            mishaps.strikes = self._schedules.strikes
        self.disk.observer = mishaps
        clients = self.clients = Clients(
            server, self.disk, self.ledger, rng=Random(self.rng.random()), people=self._people, trace=self.trace
        )
        stuck = server.outside(self._stuck.wait())
        keeper = server.outside(self._keep_up())
        faults = [server.outside(fault) for fault in mishaps.choose()]
        if self.seed % 3 == 1 or self.seed % 6 == 5 or self.seed % 5 == 3:
            faults.append(server.outside(clients.people.answer_open_awaits()))
        working = [server.outside(clients.carry_out(order)) for order in self.orders.values()]
        if self._schedules is not None:
            working.append(server.outside(self._schedules.watch()))
        done = server.outside(self._until_all_ended(working))
        over = self.loop.now_s + LONGEST_S
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
        for task in (keeper, stuck, *faults):
            task.cancel()
        await server.stop(drain_s=1.0)

    async def _until_all_ended(self, working: Sequence[asyncio.Task[None]]) -> None:
        for task in working:
            await task
        while True:
            while self.disk.unfinished():
                self.mishaps.committed.clear()
                await self.mishaps.committed.wait()
            await asyncio.sleep(3.0)  # a create whose client is gone may still be in progress
            if not self.disk.unfinished():
                return

    async def _keep_up(self) -> None:
        """Restarts the server whenever it is gone."""
        while True:
            await self.server.start()
            await self.server.down()
            await asyncio.sleep(self.rng.random() * (2.0 if self.rng.random() < 0.9 else 400.0))

    def _new_life(self, number: int) -> Life:
        return Life(
            number,
            deploy=self.rng.choice((0, 0, 1, 2)),
            rng=Random(self.rng.random()),
            ledger=self.ledger,
            trace=self.trace,
            manners=self.manners,
            witness=self.witness,
            crash=self._killed,
        )

    def _killed(self, why: str) -> None:
        others = len(self.server.crashed_s) - self._kills_in_all
        key = self.disk.key_of("poison")
        got_on = sum(_is_ending(entry.head) for entry in self.disk.facts(key)) if key is not None else 0
        self._kills = self._kills + 1 if self._since == (others, got_on) else 1
        self._kills_in_all, self._since = self._kills_in_all + 1, (others, got_on)
        if self._kills > MAX_KILLS:
            self._fail(Violation("C13", f"one run has killed the server {self._kills} times and is still there"))
        self.server.crash(why)

    def _broken_callback(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Violation):
            self._fail(error)
        elif error is not None and not isinstance(error, asyncio.CancelledError):
            self._fail(Violation("loop", f"{context.get('message')}: {error!r}"))

    def _fail(self, violation: Violation) -> None:
        """For violations found where an exception would be swallowed."""
        self._failure = self._failure or violation
        self._stuck.set()

    def _unfinished(self) -> str:
        found: list[str] = []
        for key in self.disk.unfinished():
            row = self.disk.row(key)
            assert row is not None
            facts = self.disk.facts(key)
            state = fold(State(), [(fact.at, fact.head) for fact in facts])
            found.append(f"run {key} due {row.due_at} {row.status}, last {facts[-1].head}, {state.step} {state.batch}")
        return "; ".join(found) or "all runs have ended, but a client does not know"

    def _evidence(self) -> Evidence:
        return Evidence(
            self.disk,
            self.orders,
            self.threads,
            self.ledger,
            self.clients.acknowledged,
            self.clients.seen,
            self.server.times,
            self.mishaps.troubles,
            self._epoch_s,
            self.clients.people.decided,
        )


@contextmanager
def _narrow(rng: Random) -> Generator[None]:
    """Small queues, pages and limits, so that the effects of load occur here too."""
    before = hub.QUEUE_BYTES, hub.PAGE_BYTES, servers.LIMITS, holding.MAX_RETAINED
    hub.QUEUE_BYTES = rng.choice((before[0], 2000, 300))
    hub.PAGE_BYTES = rng.choice((before[1], 1000))
    servers.LIMITS = rng.choice((before[2], before[2], replace(before[2], max_runs_per_workspace=2)))
    holding.MAX_RETAINED = rng.choice((before[3], before[3], 1))
    try:
        yield
    finally:
        hub.QUEUE_BYTES, hub.PAGE_BYTES, servers.LIMITS, holding.MAX_RETAINED = before


def _is_ending(head: Fact) -> bool:
    """Whether something that a run began has ended on its own."""
    if isinstance(head, AttemptFailed):
        return head.reason == "error"
    return isinstance(head, TurnCompleted | CallClosed)
