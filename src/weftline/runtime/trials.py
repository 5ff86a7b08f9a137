"""Trials: how a run that kills the process is identified and given up, and no other run with it.

A run that kills the process would take every other run with it, start after start. So every run is on trial while it is
recovered: its row records this before the run is touched, until something that it began has ended. If the process dies,
the runs on trial are suspects. The next start recovers them after all others, in groups of half the size, one group
after another, so that the killer is soon alone.

The time of a trial counts from when the run is back at work: its tools are open, and its watchers have let a command
begin. A killer whose tools open slowly would otherwise have survived before it did anything, and kill while somebody
else is on trial.

A run is given up when the process died three times while it was on trial alone without progress, or when it was charged
with ten deaths, the last one alone, even though it streamed. Kills that have nothing to do with a run must not add up
to that, so there is a control: before a run that was on trial alone is tried again, the process has to survive without
it for longer than the trial lasts, with all other runs that it might be confused with, and making writes as a run
would. That time begins again when another run has moved, since it may yet kill. If the process dies during that time,
or when no run is on trial, something else killed it, and all charges are dropped. A run that kills only after its trial
is over is charged too, and its next trial is twice as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from weftline.errors import StoreError
from weftline.runtime.live import LiveRun
from weftline.runtime.tasks import TaskSet
from weftline.store.base import LogStore
from weftline.store.rows import DueRun, RunRow

MAX_DEATHS = 10
MAX_GROUP = 64
TRIAL_S = 3.0
"""How long a run's first trial lasts once the run is back at work, unless something that it began ends first."""
MAX_READYING = 7
"""How many times `TRIAL_S` a trial waits, at most, for runs to get back to work. Few tools take so long to open."""
MAX_DOUBLINGS = 8
"""Makes the longest trial longer than any model call or tool may take by default."""
PROBE_S = 0.5
"""How often the process writes while it has to survive without a run, so that a killer that strikes at writes is
found.
"""
STORE_RETRY_S = 1.0


class Trials:
    def __init__(
        self,
        store: LogStore,
        tasks: TaskSet,
        *,
        recover: Callable[[int], Coroutine[Any, Any, None]],
        give_up: Callable[[int], Coroutine[Any, Any, None]],
        is_getting_ready: Callable[[int], bool],
        max_recoveries: int,
    ) -> None:
        """`recover` loads a run and continues it, `give_up` ends it; neither raises. `is_getting_ready` returns whether
        a run has a driver that is not back at work yet.
        """
        self.held = store.held
        """Whether no run may be driven yet: the store comes from a backup."""
        self._store = store
        self._tasks = tasks
        self._recover = recover
        self._give_up = give_up
        self._is_getting_ready = is_getting_ready
        self._max_recoveries = max_recoveries
        self._began_s = asyncio.get_running_loop().time()
        """The last start of the process, or of a run that has not yet proved harmless."""
        self._waiting: dict[int, DueRun] = {}
        """Suspects, which are not driven before their trial."""
        self._queued = asyncio.Event()
        self._tried: set[int] = set()
        """Runs whose recovery this process has recorded."""
        self._on_trial: set[int] = set()
        self._survivors: set[int] = set()
        """Runs whose trial was over before anything they began had ended."""
        self._charges: dict[int, DueRun] = {}
        """Charges against runs in memory that were suspects when they were loaded, until something they began has
        ended.
        """
        self._inherited: set[int] = set()
        """Runs that were loaded with work in flight that an earlier driver had begun."""
        self._noting: set[int] = set()
        """Those of them whose trial is about to be recorded."""
        self._moved = asyncio.Event()
        self._trying: asyncio.Task[None] | None = None

    # At the start of a process

    async def begin(self, fresh: Sequence[int], suspects: Sequence[DueRun]) -> None:
        """Returns when it is recorded which runs are on trial: after a crash, all that were active.

        The suspects wait for `try_after`.
        """
        self._waiting.update({row.key: row for row in suspects})
        self._tried.update(fresh)
        if self._store.unclean and fresh:
            await self._store.begin_trial(fresh)
            self._on_trial.update(fresh)

    def try_after(self, load_others: Callable[[], Coroutine[Any, Any, None]], fresh: Sequence[int]) -> None:
        """Tries the suspects once `load_others` is done and the runs on trial have had their time."""
        self._trying = self._tasks.spawn(self._load_and_try(load_others, fresh))

    async def _load_and_try(self, load_others: Callable[[], Coroutine[Any, Any, None]], fresh: Sequence[int]) -> None:
        await load_others()
        await self._try_suspects(fresh)

    # What happens to a run

    def loaded(self, run: LiveRun, row: RunRow) -> None:
        """Called when the run has been loaded, from this row."""
        self._forget(run.key)
        if row.trial_size:
            self._charges[run.key] = DueRun(
                run.key, row.trial_size, row.deaths_alone, row.deaths, row.rules, row.format, row.thread_format
            )
        if run.state.in_flight:
            self._inherited.add(run.key)

    def hold_back(self, run: LiveRun) -> bool:
        """Puts the run on trial before it is driven, if it is a suspect or has work of an earlier process in flight.

        Returns True if the run has to wait for that. It continues by itself, whatever woke it: a client that resumes a
        run, a timer, a promotion. While the store is held, every run waits.
        """
        if self.held:
            return True
        if run.key in self._tried:
            return False
        charges = self._charges.get(run.key)
        if charges is not None:
            if run.key not in self._waiting:
                self._waiting[run.key] = charges
                self._queued.set()
                if self._trying is None or self._trying.done():
                    self._trying = self._tasks.spawn(self._try_suspects(()))
            return True
        if run.key in self._inherited:
            if run.key not in self._noting:
                self._noting.add(run.key)
                self._tasks.spawn(self._try_late(run.key))
            return True
        return False

    def is_waiting(self, key: int) -> bool:
        """Returns True if it is a suspect whose trial is still to come."""
        return key in self._waiting

    def driven_before(self, key: int) -> None:
        """Called when this process has driven the run before: starting over does not make it a suspect."""
        self._tried.add(key)

    def progressed(self, key: int) -> None:
        """Called when something that the run began has ended: its row is no longer on trial."""
        self._charges.pop(key, None)
        if key in self._on_trial or key in self._survivors:
            # It may yet kill the process: whoever has to be absent while the process survives starts over.
            self._began_s = asyncio.get_running_loop().time()
            self._end_suspicion(key)

    def unloaded(self, key: int) -> None:
        """Called when the run has left memory with nothing to do: it can no longer kill the process. If it is still a
        suspect when it comes back, it is tried again.
        """
        self._forget(key)
        self._tried.discard(key)
        if key in self._on_trial or key in self._survivors:
            self._end_suspicion(key)
            self._tasks.spawn(self._write(self._store.end_trial, [key]))

    async def not_loaded(self, key: int) -> None:
        """Called when the run cannot be loaded, and so cannot kill the process."""
        if key in self._on_trial:
            self._end_suspicion(key)
            await self._write(self._store.end_trial, [key])

    def ended(self, key: int) -> None:
        """Called when the end of the run is durable: it is never driven again."""
        self._tried.discard(key)

    def _forget(self, key: int) -> None:
        self._charges.pop(key, None)
        self._inherited.discard(key)

    def _end_suspicion(self, key: int) -> None:
        self._on_trial.discard(key)
        self._survivors.discard(key)
        self._moved.set()

    # Trying

    async def _try_late(self, key: int) -> None:
        """Tries a run that this process did not recover at its start, such as a paused one."""
        try:
            await self._write(self._store.begin_trial, [key])
            self._tried.add(key)
            self._on_trial.add(key)
        finally:
            self._noting.discard(key)
        await self._recover(key)
        await self._wait_out([key], TRIAL_S)

    async def _try_suspects(self, fresh: Sequence[int]) -> None:
        """Tries suspects, those without charges first, once the other runs have had their time."""
        await self._wait_out(fresh, TRIAL_S)
        while self._waiting:
            first = min(self._waiting.values(), key=lambda row: (_control_s(row), -row.trial_size, row.key))
            if first.deaths_alone >= self._max_recoveries or (first.deaths_alone and first.deaths >= MAX_DEATHS):
                # If its end cannot be written, it comes back here: it is never driven again.
                del self._waiting[first.key]
                self._tasks.spawn(self._give_up(first.key))  # it may take until the run can be read
                continue
            too_early_s = self._began_s + _control_s(first) - asyncio.get_running_loop().time()
            if too_early_s > 0:
                self._queued.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(too_early_s, PROBE_S)):
                        await self._queued.wait()  # by a run that may be tried earlier
                with suppress(StoreError):
                    await self._store.probe()
                continue
            await self._try(self._group_of(first))

    def _group_of(self, first: DueRun) -> list[DueRun]:
        """Half as many as were last on trial together, all of one kind."""
        size = max(1, min(first.trial_size // 2, MAX_GROUP))
        kind = (first.trial_size, first.deaths_alone, first.deaths)
        alike = [row for row in self._waiting.values() if (row.trial_size, row.deaths_alone, row.deaths) == kind]
        return sorted(alike, key=lambda row: row.key)[:size]

    async def _try(self, group: list[DueRun]) -> None:
        keys = [row.key for row in group]
        await self._write(self._store.begin_trial, keys)
        self._on_trial.update(keys)
        self._tried.update(keys)
        for key in keys:
            del self._waiting[key]
            await self._recover(key)
        await self._wait_out(keys, max(_trial_s(row) for row in group))

    async def _wait_out(self, keys: Sequence[int], trial_s: float) -> None:
        """Returns when something that each of these runs began has ended, or their trial is over: so long after the
        last of them got back to work.
        """
        loop = asyncio.get_running_loop()
        at_work_s = loop.time()
        latest_s = at_work_s + TRIAL_S * MAX_READYING
        while late := [key for key in keys if key in self._on_trial]:
            now_s = loop.time()
            if any(map(self._is_getting_ready, late)):
                at_work_s = min(now_s, latest_s)
            left_s = at_work_s + trial_s - now_s
            if left_s <= 0:
                self._on_trial.difference_update(late)
                self._survivors.update(late)
                self._began_s = max(self._began_s, at_work_s)
                await self._write(self._store.survived, late)
                return
            self._moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, PROBE_S)):
                    await self._moved.wait()

    async def _write(self, note: Callable[[Sequence[int]], Awaitable[None]], keys: list[int]) -> None:
        """Writes a record. If the store refuses, suspects wait like all other runs."""
        while True:
            try:
                await note(keys)
                return
            except StoreError:
                await asyncio.sleep(STORE_RETRY_S)


def _trial_s(row: DueRun) -> float:
    """Twice as long for each death after the trial was over, or despite the run's progress."""
    return TRIAL_S * 2 ** min(row.deaths - row.deaths_alone, MAX_DOUBLINGS)


def _control_s(row: DueRun) -> float:
    """Returns how long the process must survive without the run before it is tried again: longer than the trial, and
    before the last one longer than that may take if the run gets back to work slowly.
    """
    if not row.deaths_alone:
        return 0.0
    return _trial_s(row) * (2 if row.deaths_alone == 1 else 20)
