"""In wake-ups and followers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from campaigns.simulation.odds import Odds

from simulation.planted.bug import CALM, CODE, PEOPLE, Bug, asks_in_vain
from weftline.runtime.clock import Clock
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.engine import EntryBatch
from weftline.runtime.hub import Subscription
from weftline.runtime.live import LiveRun


class DropsEarlyTimers:
    """Rings when the loop's timer does, and forgets a time that the wall clock has not reached by then."""

    def __init__(self, ring: Callable[[], None], *, on_stall: Callable[[int], None], clock: Clock) -> None:
        self._ring = ring
        self._clock = clock

    def at(self, due_at: int) -> None:
        wait_s = max((due_at - self._clock.now_us()) / 1_000_000, 0.0)
        asyncio.get_running_loop().call_later(wait_s, self._look, due_at)

    def _look(self, due_at: int) -> None:
        if self._clock.now_us() >= due_at:
            self._ring()

    def stop(self) -> None: ...


class Forgetful(Subscription):
    """A slow reader loses its place with its queue."""

    def push(self, batch: EntryBatch) -> None:
        self.taken = self.last_seq
        super().push(batch)


class LosesThePlaceOfSlowReaders(EmbeddedEngine):
    def follow(self, key: int, run_id: str, *, after: int = 0, workspace: int = 0) -> Subscription:
        followed = super().follow(key, run_id, after=after, workspace=workspace)
        followed.__class__ = Forgetful
        return followed


class GivesWhatCodeAsksForAGrace(EmbeddedEngine):
    """Clients get the grace of a start also for what code asks them after it."""

    async def start(self) -> Self:
        await super().start()
        timers = self._fleet.timers
        real = timers._grace_ends  # pyright: ignore[reportPrivateUsage]

        def planted(run: LiveRun, at: int) -> int:
            calls, asked = run.state.batch.calls, run.state.questions.open.values()
            nested = any(one.kind == "call" and calls[one.index].parent is not None for one in asked)
            until = timers._grace_until  # pyright: ignore[reportPrivateUsage]
            return until if nested and until > at else real(run, at)

        timers._grace_ends = planted  # pyright: ignore[reportPrivateUsage]
        return self


class DrivesSuspectsThatSomebodyWakes(EmbeddedEngine):
    """A run that may have killed the process waits for its trial, unless a client or a timer wakes it."""

    async def start(self) -> Self:
        await super().start()
        trials = self._fleet.recovery.trials

        def planted(run: LiveRun) -> bool:
            return trials.held

        trials.hold_back = planted
        return self


BUGS = (
    Bug("drives_suspects_that_somebody_wakes", "C13", engine=DrivesSuspectsThatSomebodyWakes, among=PEOPLE, first=16),
    Bug(
        "drops_early_timers",
        "C6 D1",
        alarm=DropsEarlyTimers,
        odds=Odds(clock_is_set=1.0, set_by_s=(-3600.0,)),
        provoke=asks_in_vain,
    ),
    Bug(
        "gives_what_code_asks_for_a_grace",
        "D1",
        engine=GivesWhatCodeAsksForAGrace,
        among=CODE,
        odds=CALM,
        provoke=asks_in_vain,
        first=30,
    ),
    Bug("loses_the_place_of_slow_readers", "S9 C6", engine=LosesThePlaceOfSlowReaders),
)
