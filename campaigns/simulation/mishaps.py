"""What goes wrong in a history: kills, stops, faulty disks, clock changes, stalled loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

from campaigns.simulation.disk import REFUSALS, Disk, DiskObserver
from campaigns.simulation.evidence import Troubles, Window
from campaigns.simulation.loop import VirtualLoop
from campaigns.simulation.odds import Odds
from campaigns.simulation.server import Server, WallClock
from campaigns.simulation.trace import Trace, Violation
from weftline.errors import StoreError
from weftline.store.rows import Write, Written

_FAULTS_S = 15.0
_STORM_S = 60.0


class Mishaps(DiskObserver):
    def __init__(
        self,
        server: Server,
        disk: Disk,
        *,
        loop: VirtualLoop,
        clock: WallClock,
        rng: Random,
        trace: Trace,
        fail: Callable[[Violation], None],
        odds: Odds | None = None,
    ) -> None:
        self._odds = odds or Odds()
        self._fail = fail
        self._epochs: dict[int, int] = {}
        self._server = server
        self._disk = disk
        self._loop = loop
        self._clock = clock
        self._rng = rng
        self._trace = trace
        self._crash_on: dict[int, str] = {}
        self._flushes = 0
        self.strikes: Callable[[Sequence[Write]], str] | None = None
        """Returns whether a kill comes `before` or `after` the commit of these writes, or not at all."""
        self._strikes = ""
        self.troubles = Troubles()
        self.committed = asyncio.Event()

    def choose(self) -> list[Coroutine[Any, Any, None]]:
        rng, odds = self._rng, self._odds
        self._disk.faults.slowest_s = rng.choice(odds.slowest_s)
        self._disk.faults.damages = rng.choice(odds.damages)
        chosen: list[Coroutine[Any, Any, None]] = []
        for _ in range(rng.choice(odds.kills)):
            if rng.random() < 0.5:
                chosen.append(self._crash_at(rng.random() * _FAULTS_S * rng.random()))
            else:
                self._crash_on[rng.randrange(1, 60)] = rng.choice(("before", "after"))
        if rng.random() < odds.storm:
            chosen.append(self._storm(every_s=rng.choice((1.0, 3.0, 6.0, 15.0)), regular=rng.random() < 0.5))
        chosen += [self._stop_at(rng.random() * _FAULTS_S) for _ in range(rng.choice(odds.stops))]
        if rng.random() < odds.refuses:
            chosen.append(self._refuse(rng.random() * 5.0, rng.random() ** 2 * rng.choice((2.0, 8.0, 60.0))))
        if rng.random() < odds.unreadable:
            chosen.append(self._cannot_read(rng.random() * 5.0, rng.random() * rng.choice((0.1, 5.0))))
        if rng.random() < odds.clock_is_set:
            chosen.append(self._set_clock(rng.random() * 5.0, rng.choice(odds.set_by_s)))
        if rng.random() < odds.stalls:
            chosen.append(self._stall(rng.random() * 5.0, rng.choice((2.0, 40.0))))
        return chosen

    async def _crash_at(self, at_s: float) -> None:
        await asyncio.sleep(at_s)
        self._server.crash("killed")

    async def _storm(self, *, every_s: float, regular: bool) -> None:
        """Kills that are unrelated to what the server does."""
        until_s = self._loop.now_s + _STORM_S
        while self._loop.now_s < until_s:
            await asyncio.sleep(every_s if regular else self._rng.expovariate(1 / every_s))
            self._server.crash("killed in a storm")

    async def _stop_at(self, at_s: float) -> None:
        await asyncio.sleep(at_s)
        await self._server.stop(drain_s=self._rng.choice((0.0, 0.5, 30.0)))

    async def _refuse(self, at_s: float, for_s: float) -> None:
        await asyncio.sleep(at_s)
        self.troubles.sick.append(Window(self._loop.now_s, self._loop.now_s + for_s + 10.0))
        refusal = self._disk.faults.refuses = StoreError(self._rng.choice(REFUSALS))
        self._trace.note(f"disk: refuses writes for {for_s:.3f} s: {refusal}")
        await asyncio.sleep(for_s)
        self._disk.faults.refuses = None
        self._trace.note("disk: accepts writes")

    async def _cannot_read(self, at_s: float, for_s: float) -> None:
        await asyncio.sleep(at_s)
        self.troubles.sick.append(Window(self._loop.now_s, self._loop.now_s + for_s + 10.0))
        self._disk.faults.unreadable = StoreError("The store could not be read.")
        self._trace.note(f"disk: cannot be read for {for_s:.3f} s")
        await asyncio.sleep(for_s)
        self._disk.faults.unreadable = None
        self._trace.note("disk: can be read")

    async def _set_clock(self, at_s: float, by_s: float) -> None:
        await asyncio.sleep(at_s)
        self._clock.offset_s += by_s
        self.troubles.clock_was_set_by_s = by_s
        self._trace.note(f"clock: set by {by_s:+.0f} s")

    async def _stall(self, at_s: float, for_s: float) -> None:
        await asyncio.sleep(at_s)
        self._trace.note(f"loop: stalls for {for_s:.0f} s")
        self.troubles.stalls.append(Window(self._loop.now_s, self._loop.now_s + for_s))
        self._loop.now_s += for_s

    # At each commit

    def before(self, writes: Sequence[Write]) -> None:
        self._flushes += 1
        self._strikes = "" if self.strikes is None else self.strikes(writes)
        self._crash_if("before")

    def after(self, writes: Sequence[Write], results: Sequence[Written]) -> None:
        self.committed.set()
        for write, result in zip(writes, results, strict=True):
            kinds: list[str] = []
            seq = write.base_seq
            for item in write.items:
                kinds.append(f"{seq}:{item.kind}" if item.count == 1 else f"{seq}+{item.count}:{item.kind}")
                seq += item.count
            self._trace.note(f"disk: {result.outcome} run {write.key} {' '.join(kinds)} due {write.due_at}")
            if result.outcome != "ok":
                name = write.new.name if write.new is not None else self._disk.memory.runs[write.key].row.name
                self.troubles.losses.add((self._server.life.number, name))
        self._crash_if("after")

    def claimed(self, key: int, epoch: int) -> None:
        before = self._epochs.get(key, 0)
        if epoch <= before:
            self._fail(Violation("S7", f"run {key} was claimed with epoch {epoch} after {before}"))
        self._epochs[key] = epoch

    def _crash_if(self, moment: str) -> None:
        if self._strikes == moment:
            self._server.crash(f"killed {moment} a commit of its own")
        if self._crash_on.get(self._flushes) == moment:
            del self._crash_on[self._flushes]
            self._server.crash(f"killed {moment} a commit")
