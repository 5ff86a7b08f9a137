"""When runs are due: one alarm for all of them, the parked runs that it wakes, and the deadlines of driven runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import heappop, heappush

from weftline.errors import Conflict, NotFound
from weftline.kernel import policies
from weftline.kernel.control import MAX_LEASE_US, Lease
from weftline.kernel.questions import earliest_deadline
from weftline.runtime.clock import Clock
from weftline.runtime.deploys import unsupported
from weftline.runtime.fleet.holding import RunDispatcher, RunLoader
from weftline.runtime.live import LiveRun
from weftline.runtime.reads.finding import public_id
from weftline.runtime.tasks import TaskSet
from weftline.store.base import LogReader
from weftline.work.turns import RoundRobin, on_behalf_of

STALL_US = 1_000_000
"""A shorter delay does not count as a stall."""
_LONGEST_S = 30.0


class Alarm:
    """`ring` is called when a run is due, `on_stall` with the delay after a stall."""

    def __init__(self, ring: Callable[[], None], *, on_stall: Callable[[int], None], clock: Clock) -> None:
        self._ring = ring
        self._on_stall = on_stall
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._due_at: int | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._planned_s = 0.0
        self._planned_at = 0

    def at(self, due_at: int) -> None:
        """Rings at `due_at` at the latest; an earlier time set before still holds."""
        if self._due_at is None or due_at < self._due_at:
            if self._handle is not None:
                self._measure()  # the check that is cancelled here may be overdue
            self._due_at = due_at
            self._arm()

    def stop(self) -> None:
        self._due_at = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        assert self._due_at is not None
        now = self._clock.now_us()
        wait_s = min(max((self._due_at - now) / 1_000_000, 0.0), _LONGEST_S)
        self._planned_s = self._loop.time() + wait_s
        self._planned_at = now + int(wait_s * 1_000_000)
        self._handle = self._loop.call_later(wait_s, self._look)

    def _look(self) -> None:
        self._handle = None
        if self._due_at is None:
            return
        self._measure()
        if self._clock.now_us() < self._due_at:
            self._arm()  # early, or just the half-minute check: check again, never drop it
            return
        self._due_at = None
        self._ring()

    def _measure(self) -> None:
        late_us = max(self._clock.now_us() - self._planned_at, int((self._loop.time() - self._planned_s) * 1_000_000))
        if late_us > STALL_US:
            self._on_stall(late_us)


logger = logging.getLogger(__name__)

MAX_LOADING = 16
"""How many due runs are loaded at once."""
_PAGE = 1000
_LAST_KEY = 2**63 - 1


class DueRuns:
    """`fire` gives a run the time, and `ring_at` has `look` called at some time."""

    def __init__(
        self,
        store: LogReader,
        loader: RunLoader,
        dispatcher: RunDispatcher,
        *,
        fire: Callable[[LiveRun, int], None],
        ring_at: Callable[[int], None],
    ) -> None:
        self._store = store
        self._loader = loader
        self._dispatcher = dispatcher
        self._fire = fire
        self._ring_at = ring_at
        self._tasks = TaskSet("continuing the due runs")
        self._queue: RoundRobin[tuple[int, int]] = RoundRobin()
        """Workspace and key of each run that is still to be loaded."""
        self._workers = 0
        self._looking = False
        self._now = 0
        """All runs that were due at this time have been found."""
        self._rang = False
        """Whether the alarm rang during a look, which may have missed the reason."""
        self._rang_at_work = False
        """Whether it rang while runs were loaded: one may have been given a time that has passed."""

    def look(self, now: int) -> None:
        """Fires the parked runs that are due at `now`."""
        if self._looking:
            self._rang = True
        else:
            self._looking = True
            self._tasks.spawn(self._find_all(now))

    def stop(self) -> None:
        self._tasks.cancel()

    async def _find_all(self, now: int) -> None:
        try:
            if self._workers:
                # The earlier ones are queued, and reading thousands of them again would take long.
                self._rang_at_work = True
                await self._find(now, after=(self._now, _LAST_KEY))
            else:
                self._queue = RoundRobin()
                await self._find(now, after=(0, 0))
            self._now = now
            upcoming = await self._store.next_due(now)
            if upcoming is not None:
                self._ring_at(upcoming)
        except Exception:
            logger.exception("due runs could not be read; trying again")
            self._ring_at(now + STALL_US)
        finally:
            self._looking = False
        if self._rang:
            self._rang = False
            self._ring_at(now)
        self._work()

    async def _find(self, now: int, *, after: tuple[int, int]) -> None:
        while due := await self._store.due(now, after=after, limit=_PAGE):
            after = due[-1].due_at, due[-1].key
            for one in due:
                if not unsupported(one):
                    self._queue.put((one.workspace, one.key), owner=one.workspace)
            await asyncio.sleep(0)  # others have a turn: a store may have each page at once

    def _work(self) -> None:
        while self._workers < min(MAX_LOADING, len(self._queue)) and not self._dispatcher.halted:
            self._workers += 1
            self._tasks.spawn(self._fire_queued()).add_done_callback(self._worker_done)

    def _worker_done(self, task: asyncio.Task[None]) -> None:
        self._workers -= 1
        if task.cancelled():
            return
        if self._queue:
            self._work()
        elif self._rang_at_work and not self._workers:
            self._rang_at_work = False
            self._ring_at(self._now)

    async def _fire_queued(self) -> None:
        while self._queue and not self._dispatcher.halted:
            workspace, key = self._queue.take()
            on_behalf_of.set(workspace)
            await self._fire_one(key)

    async def _fire_one(self, key: int) -> None:
        """Fires one run. A run that cannot be loaded does not delay the others."""
        try:
            run = await self._loader.load(key)
        except (Conflict, NotFound):
            return  # from a newer version, or no longer there
        except Exception:
            logger.exception("run %s is due and could not be loaded; trying again", await public_id(self._store, key))
            self._ring_at(self._now + STALL_US)
            return
        now = self._now
        if not run.active and not run.gone and run.log.due_at and run.log.due_at <= now:
            self._fire(run, now)


CLIENT_GRACE_US = 30_000_000
"""After a start or a stall: how long a client has to send an overdue answer, at least; more if the stall was longer."""
OPENING_GRACE_US = 10_000_000
"""How long the tools of an agent in code may take to open when its run is overdue, before it ends without its hooks."""
MAX_GRACE_US = 300_000_000
"""The longest grace period, however long the machine was suspended or its clock set forward."""


class Timers:
    def __init__(self, store: LogReader, loader: RunLoader, dispatcher: RunDispatcher, *, clock: Clock) -> None:
        self._loader = loader
        self._dispatcher = dispatcher
        self._clock = clock
        self._alarm = Alarm(self._ring, on_stall=self._stalled, clock=clock)
        self._deadlines: list[tuple[int, int]] = []
        """A heap of times and keys; only those in `_watched` count."""
        self._watched: dict[int, int] = {}
        """For driven runs: the earliest time at which they need attention."""
        self._away_until = clock.now_us()
        self._grace_until = self._away_until + CLIENT_GRACE_US
        self._due = DueRuns(store, loader, dispatcher, fire=self._fire, ring_at=self._alarm.at)

    def at(self, due_at: int) -> None:
        """Looks for parked runs that are due at this time."""
        self._alarm.at(due_at)

    def watch(self, run: LiveRun, due_at: int) -> None:
        """Makes a driven run be woken at this time, whatever its commands do."""
        due_at = self._with_grace(run, max(due_at, self._clock.now_us()))
        watched = self._watched.get(run.key)
        if watched is None or due_at < watched:
            self._watched[run.key] = due_at
            heappush(self._deadlines, (due_at, run.key))
            self._alarm.at(due_at)

    def watch_queued(self, run: LiveRun, *, opens: bool = False) -> None:
        """Watches the next deadline of a run that is queued for a driver, because it may be queued for longer.

        Deadlines that have passed already are among the reasons why it is queued, so they are left out. But if the run
        still has to open, and is only driven for the hooks of its agent at its end, it does not wait for them forever.
        """
        state, now = run.state, self._clock.now_us()
        deadlines = (earliest_deadline(state.questions, after=state.now), policies.deadline_at(state))
        deadline_at = min([one for one in deadlines if one is not None], default=None)
        overdue = state.questions.due_at is not None and state.questions.due_at <= state.now
        if opens and overdue and run.work.plan.code is not None and not run.driving.opened:
            deadline_at = min(deadline_at or now + OPENING_GRACE_US, now + OPENING_GRACE_US)
        if deadline_at is not None:
            run.driving.due_at = deadline_at
            self.watch(run, deadline_at)

    def grant_grace(self) -> None:
        """Called when no process was running until now, so that clients whose answers are overdue get a grace
        period.
        """
        self._away_until = self._clock.now_us()
        self._grace_until = self._away_until + CLIENT_GRACE_US

    def stop(self) -> None:
        self._alarm.stop()
        self._due.stop()

    def _stalled(self, late_us: int) -> None:
        """Gives clients that were about to answer the length of the stall, within limits."""
        now = self._away_until = self._clock.now_us()
        self._grace_until = max(self._grace_until, now + min(max(late_us, CLIENT_GRACE_US), MAX_GRACE_US))

    def _ring(self) -> None:
        """Called when a run is due."""
        if self._dispatcher.halted:
            return
        now = self._clock.now_us()
        self._fire_driven(now)
        self._due.look(now)

    def _fire_driven(self, now: int) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            due_at, key = heappop(self._deadlines)
            if self._watched.get(key) != due_at:
                continue  # replaced by an earlier time
            del self._watched[key]
            run = self._loader.resident(key)
            if run is not None and run.active and run.driving.due_at is not None:
                if run.driving.due_at > now:
                    self.watch(run, run.driving.due_at)
                else:
                    self._fire(run, now)
        if self._deadlines:
            self._alarm.at(self._deadlines[0][0])

    def _fire(self, run: LiveRun, now: int) -> None:
        at = self._with_grace(run, now)
        if at <= now:
            self._dispatcher.fire(run, now)
        elif run.active:
            self.watch(run, at)
        else:
            self._alarm.at(at)

    def _with_grace(self, run: LiveRun, at: int) -> int:
        """When to fire the timer of a run that is due at `at`.

        Whatever has expired by then is acted upon, so it fires later if that includes a question with a grace period,
        unless the run's time budget is used up first.
        """
        grace_ends = self._grace_ends(run, at)
        if grace_ends <= at:
            return at
        budget_ends = policies.deadline_at(run.state)
        return grace_ends if budget_ends is None else max(at, min(grace_ends, budget_ends))

    def _grace_ends(self, run: LiveRun, at: int) -> int:
        """When the grace period of a run's questions ends; 0 if none of them has one.

        Clients and people who were asked before this server was down or stalled may still answer for a while after
        their time is up, which is at `at`, and clients may still send a heartbeat.
        """
        if at >= self._grace_until and at >= self._away_until + MAX_LEASE_US:
            return 0
        ends = 0
        for question in run.state.questions.open.values():
            if question.deadline_at is not None and question.deadline_at <= at:
                asked_at = question.asked_at or question.deadline_at - run.state.limits.local_timeout_us
                if asked_at < self._away_until:
                    ends = max(ends, self._grace_until)
            if question.lease is not None and not question.lease.lost and question.lease.until <= at:
                ends = max(ends, self._lease_grace_ends(question.lease))
        return ends

    def _lease_grace_ends(self, lease: Lease) -> int:
        """A lease from before the last absence holds for its whole duration after it."""
        if lease.until - lease.lease_us >= self._away_until:
            return 0
        return max(self._grace_until, self._away_until + lease.lease_us)

    def lease_ends(self, lease: Lease) -> int:
        """When a lease expires if its client sends nothing more."""
        return max(lease.until, self._lease_grace_ends(lease))
