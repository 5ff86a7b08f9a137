"""What every planted bug is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from campaigns.simulation import Build
from campaigns.simulation.disk import FAST_S
from campaigns.simulation.model import catalog
from campaigns.simulation.odds import Odds
from campaigns.simulation.orders import Order
from campaigns.simulation.server import WallClock
from campaigns.simulation.store import SimulatedLog, SimulatedStore, Wires
from campaigns.simulation.subagents import tools_of
from campaigns.simulation.world import Life

from weftline.cases.firing import ScheduleAlarm, Start, Started
from weftline.kernel.decide import decide
from weftline.kernel.entries import TimerFired
from weftline.kernel.state import State
from weftline.runtime import step as stepping
from weftline.runtime.budgets.reserving import reserved
from weftline.runtime.driver import CarryOut, TakeStep
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet.timers import Alarm
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.step import Step, take_in
from weftline.store.base import LogStore
from weftline.store.rows import Write, Written
from weftline.workspace.context import Workspaces

SEEDS = 100
"""Enough for any planted bug to be noticed, wherever they begin."""
NewLog = Callable[[LogStore, Wires], SimulatedLog]


class Kind(NamedTuple):
    """The histories whose seeds leave this rest, as `History` deals them out."""

    every: int
    rest: int

    def seeds(self, first: int) -> range:
        begin = first + (self.rest - first) % self.every
        return range(begin, begin + SEEDS * self.every, self.every)


ANY = Kind(1, 0)
PEOPLE = Kind(3, 1)
POLICIES = Kind(3, 2)
CODE = BUDGETS = Kind(6, 0)
GIVEN_IDS = Kind(6, 2)
LEASES = Kind(6, 3)
QUESTIONS = Kind(5, 3)
SCHEDULES = Kind(7, 2)
AGENTS = Kind(7, 5)
AGENTS_UNDER_BUDGETS = Kind(42, 12)

KILLS = Odds(kills=(4,))
MANY_KILLS = Odds(kills=(12,))
CALM = Odds(
    slowest_s=(FAST_S,), damages=(0.0,), kills=(0,), storm=0.0, stops=(0,), refuses=0.0, clock_is_set=0.0, stalls=0.0
)


class Bug(Build):
    """A mistake in one of the parts, and the rules by which it may be noticed.

    It is looked for in histories of one kind, with `odds` and orders (`provoke`) that make what it needs frequent. The
    seeds begin where it is noticed soon; if code that changes draws other numbers, it takes some more.
    """

    def __init__(
        self,
        name: str,
        rules: str,
        *,
        log: NewLog = SimulatedLog,
        step: Callable[[], TakeStep] | None = None,
        carry_out: Callable[[CarryOut], CarryOut] | None = None,
        engine: type[EmbeddedEngine] = EmbeddedEngine,
        alarm: Callable[..., Any] = Alarm,
        schedules: type[ScheduleAlarm] = ScheduleAlarm,
        among: Kind = ANY,
        first: int = 0,
        odds: Odds | None = None,
        provoke: Callable[[Order], None] | None = None,
    ) -> None:
        self.name = name
        self.rules = frozenset(rules.split())
        self.seeds = among.seeds(first)
        self.odds = odds or Odds()
        self._provoke = provoke
        self.rings = alarm
        self._schedules = schedules
        self._log = log
        self._step = step
        self._carry_out = carry_out
        self._engine = engine

    def provoke(self, orders: dict[str, Order]) -> None:
        for order in orders.values():
            if self._provoke is not None and not order.poison:
                self._provoke(order)

    def log(self, inner: LogStore, wires: Wires) -> SimulatedLog:
        return self._log(inner, wires)

    def alarm(self, at: Workspaces, *, start: Start, started: Started) -> ScheduleAlarm:
        return self._schedules(at, start=start, started=started)

    def engine(self, store: SimulatedStore, life: Life, clock: WallClock) -> EmbeddedEngine:
        return self._engine(
            store,
            models=catalog(life),
            tools=tools_of(life),
            clock=clock,
            step=self._step() if self._step is not None else stepping.step,
            carry_out=self._carry_out(life.carry_out) if self._carry_out is not None else life.carry_out,
        )


def asks_in_vain(order: Order, timeout_s: float = 5.0) -> None:
    order.client_tool, order.answers, order.timeout_s = True, False, timeout_s


class Flushes(SimulatedLog):
    """Writes something else than it was given."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        for write in writes:
            self.spoil(write)
        return super().flush(writes)

    def spoil(self, write: Write) -> None: ...


class DecidesOnAnotherState:
    """The kernel sees a state that `change` has made of the right one."""

    def __init__(self, change: Callable[[State], State]) -> None:
        self._change = change

    def __call__(self, state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
        if stepping.time_has_come(self._change(state), at):
            facts = (Draft(TimerFired(at)), *facts)
        entries = list(facts)
        for draft in facts:
            state = take_in(state, work, draft, at=at)
        for _ in range(stepping.MAX_ROUNDS):
            decision = decide(self._change(state))
            if decision.append and work.account is not None and work.account.active:
                decision = reserved(decision, state, work, work.account, at=at)
            if not decision.append:
                break
            for draft in [stepping.write_down(state, work, new) for new in decision.append]:
                entries.append(draft)
                state = take_in(state, work, draft, at=at)
        else:
            raise RuntimeError("the kernel did not settle")
        end = stepping.thread_end(state, work) if entries else None
        return Step(state, entries, decision.start, decision.due_at, end)
