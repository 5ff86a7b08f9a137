"""What every planted bug is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from weftline.kernel.decide import decide
from weftline.kernel.entries import TimerFired
from weftline.kernel.state import State
from weftline.runtime import step as stepping
from weftline.runtime.budgets.reserving import weighed
from weftline.runtime.driver import CarryOut, TakeStep
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.fleet.alarm import Alarm
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.step import Step, take_in
from weftline.store.base import LogStore, Write, Written
from weftline.testing.simulation import Build
from weftline.testing.simulation.model import catalog
from weftline.testing.simulation.server import WallClock
from weftline.testing.simulation.store import SimulatedLog, SimulatedStore, Wires
from weftline.testing.simulation.subagents import tools_of
from weftline.testing.simulation.world import Life
from weftline.workspace.context import Workspaces
from weftline.workspace.firing import ScheduleAlarm, Start, Started

SEEDS = 150
"""Enough for any planted bug to be noticed."""
NewLog = Callable[[LogStore, Wires], SimulatedLog]


class Bug(Build):
    """A mistake in one of the parts, and the rules by which it may be noticed."""

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
        first_seed: int = 0,
        every: int = 1,
    ) -> None:
        self.name = name
        self.rules = frozenset(rules.split())
        self.seeds = range(first_seed, first_seed + SEEDS * every, every)
        self.rings = alarm
        self._schedules = schedules
        self._log = log
        self._step = step
        self._carry_out = carry_out
        self._engine = engine

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
                decision = weighed(decision, state, work, work.account, at=at)
            if not decision.append:
                break
            for draft in [stepping.write_down(state, work, new) for new in decision.append]:
                entries.append(draft)
                state = take_in(state, work, draft, at=at)
        else:
            raise RuntimeError("the kernel did not settle")
        end = stepping.thread_end(state, work) if entries else None
        return Step(state, entries, decision.start, decision.due_at, end)
