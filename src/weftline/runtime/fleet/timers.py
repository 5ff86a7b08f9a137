"""When runs are due: one alarm for all of them, the deadlines of driven runs, and the grace period for clients.

Parked runs are due at the time in their rows; the store finds them. A driven run may also have a deadline, such as a
client's: it fires whatever else the run is doing. A client that could not answer in time because this server was down
or stalled gets a grace period first.
"""

from __future__ import annotations

from heapq import heappop, heappush

from weftline.kernel import policies
from weftline.kernel.control import MAX_LEASE_US, Lease
from weftline.kernel.questions import earliest_deadline
from weftline.runtime.clock import Clock
from weftline.runtime.fleet.alarm import Alarm
from weftline.runtime.fleet.due_runs import DueRuns
from weftline.runtime.fleet.roles import RunLoader, RunMover
from weftline.runtime.live import LiveRun
from weftline.store.base import LogReader

CLIENT_GRACE_US = 30_000_000
"""After a start or a stall: how long a client has to send an overdue answer, at least; more if the stall was longer."""
OPENING_GRACE_US = 10_000_000
"""How long the tools of an agent in code may take to open when its run is overdue, before it ends without its hooks."""
MAX_GRACE_US = 300_000_000
"""The longest grace period, however long the machine was suspended or its clock set forward."""


class Timers:
    def __init__(self, store: LogReader, loader: RunLoader, mover: RunMover, *, clock: Clock) -> None:
        self._loader = loader
        self._mover = mover
        self._clock = clock
        self._alarm = Alarm(self._ring, on_stall=self._stalled, clock=clock)
        self._deadlines: list[tuple[int, int]] = []
        """A heap of times and keys; only those in `_watched` count."""
        self._watched: dict[int, int] = {}
        """For driven runs: the earliest time at which they need attention."""
        self._away_until = clock.now_us()
        self._grace_until = self._away_until + CLIENT_GRACE_US
        self._due = DueRuns(store, loader, mover, fire=self._fire, ring_at=self._alarm.at)

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
        if self._mover.halted:
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
            self._mover.fire(run, now)
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
