"""Who drives a run: how many of each workspace are driven at once, and what happens to a run after every fact.

It is driven, parked, cancelled, ended, or starts over from its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from weftline.errors import RateLimited, WeftlineError
from weftline.kernel.accept import accepts
from weftline.kernel.decide import decide
from weftline.kernel.entries import TimerFired
from weftline.kernel.state import State
from weftline.plan import RunPlan
from weftline.runtime.driver import Driver
from weftline.runtime.fleet.holding import Residents, WorkspaceLimits
from weftline.runtime.fleet.lineage import Lineage
from weftline.runtime.fleet.timers import Timers
from weftline.runtime.live import BEHIND, DRIVEN, PARKED, SCHEDULED, Cut, Draft, LiveRun
from weftline.runtime.log import Log
from weftline.runtime.recovery import Recovery
from weftline.runtime.tasks import TaskSet, wait_while_running
from weftline.work.turns import Turns

logger = logging.getLogger(__name__)

MAX_RUNS = 8192


class Drivers:
    """Drives runs, up to `max_runs` at a time and `max_per_workspace` of one workspace; the rest queue."""

    def __init__(
        self,
        driver: Driver,
        *,
        max_per_workspace: int,
        left: Callable[[LiveRun, BaseException | None], None],
        max_runs: int = MAX_RUNS,
    ) -> None:
        """`left` is called when a driver has left: nothing is left to do, it was stopped, or it failed."""
        self._driver = driver
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._turns: Turns[LiveRun] = Turns(lambda run: run.workspace, limit=max_runs, per_owner=max_per_workspace)

    def queued(self, workspace: int) -> int:
        """Returns the number of queued runs of the workspace."""
        return self._turns.queue.waiting(workspace)

    def submit(self, run: LiveRun) -> None:
        """Drives the run now, or when its workspace has a free slot."""
        run.move(SCHEDULED)
        if self._turns.places.has_room(run.workspace):
            self._turns.places.add(run.workspace)
            self._start(run)
        else:
            self._turns.queue.put(run, owner=run.workspace)

    def withdraw(self, run: LiveRun) -> None:
        """Withdraws a run that no longer needs a driver, if it is queued for one."""
        if run.residency is SCHEDULED:
            self._turns.queue.withdraw(run, owner=run.workspace)
            run.move(PARKED)

    def _start(self, run: LiveRun) -> None:
        if not run.gone:
            run.move(DRIVEN)
        run.task = self._loop.create_task(self._driver.drive(run))
        run.task.add_done_callback(partial(self._done, run))

    def _done(self, run: LiveRun, task: asyncio.Task[None]) -> None:
        run.task = None
        self._turns.places.remove(run.workspace)
        if self._turns.queue and (next_run := self._turns.admit()) is not None:
            self._start(next_run)
        self._left(run, None if task.cancelled() else task.exception())


CANCEL_GRACE_S = 2.0
"""How long a cancelled run's work has to stop before the run ends without it."""


class Cancelling:
    def __init__(
        self,
        driver: Driver,
        drivers: Drivers,
        log: Log,
        lineage: Lineage,
        tasks: TaskSet,
        *,
        failed: Callable[[LiveRun, BaseException], None],
    ) -> None:
        """`failed` is called for a run that could not be ended."""
        self._driver = driver
        self._drivers = drivers
        self._log = log
        self._lineage = lineage
        self._tasks = tasks
        self._failed = failed

    def end(self, run: LiveRun) -> None:
        """Ends a run that was cancelled, once its work has stopped or the grace period is over."""
        match run.driving.cut:
            case Cut.NO if run.task is not None and not self._driver.stopping:
                run.log.due_at = 0  # the next process ends it, if this one does not
                run.driving.cut = Cut.BEGUN
                if run.driving.aborted is not None:
                    run.driving.aborted.set()
                self._tasks.spawn(self._cut_and_end(run))
            case Cut.BEGUN:
                pass
            case Cut.NO | Cut.DONE:
                self._end_now(run)

    async def _cut_and_end(self, run: LiveRun) -> None:
        try:
            await self._log.durable(run)  # the request is durable before anything is stopped
        except WeftlineError:
            return  # the run was dropped, and continues from a log in which nobody has cancelled it
        if run.task is not None:
            run.task.cancel()
            await wait_while_running([run.task], timeout_s=CANCEL_GRACE_S)
        run.driving.cut = Cut.DONE
        if not run.gone and not run.state.ended:
            self._end_now(run)

    def _end_now(self, run: LiveRun) -> None:
        try:
            self._driver.advance(run)
        except Exception as error:
            logger.exception("run %s could not be ended", run.id)
            self._failed(run, error)
            return
        self._drivers.withdraw(run)
        if run.task is not None and run.driving.cut is Cut.NO:
            run.task.cancel()
        if not run.state.ended:
            self._tasks.spawn(self._lineage.cancel(run.state.open_children, by=run.state.control.cancelled_by))


class Dispatcher:
    """`connect` passes it the parts that refer to it, before the first run is dispatched."""

    def __init__(
        self, residents: Residents, tasks: TaskSet, *, limits: WorkspaceLimits, knows: Callable[[RunPlan], bool]
    ) -> None:
        """`knows` returns whether this process has the agent of a plan, in the version that it needs."""
        self._residents = residents
        self._kept = residents.kept
        self._tasks = tasks
        self._limits = limits
        self._knows = knows

    def connect(self, *, log: Log, driver: Driver, timers: Timers, recovery: Recovery, lineage: Lineage) -> None:
        self._log = log
        self._driver = driver
        self._timers = timers
        self._recovery = recovery
        self._trials = recovery.trials
        self._lineage = lineage
        self._drivers = Drivers(driver, max_per_workspace=self._limits.max_runs_per_workspace, left=self._driver_left)
        self._cancelling = Cancelling(driver, self._drivers, log, lineage, self._tasks, failed=self._start_over)

    @property
    def stopping(self) -> bool:
        return self._driver.stopping

    @property
    def halted(self) -> bool:
        """True if nothing may run: the server is stopping, or its store is held."""
        return self._driver.stopping or self._trials.held

    def require_room(self, workspace: int) -> None:
        """Raises `RateLimited` (`too_many_runs`) if the workspace has its maximum number of runs queued."""
        max_queued = self._limits.max_queued_runs_per_workspace
        if self._drivers.queued(workspace) + self._residents.behind.count(workspace) >= max_queued:
            raise RateLimited(
                f"{max_queued} runs of this workspace are already queued.",
                code="too_many_runs",
                retry_after_s=5,
                limit=max_queued,
            )

    # What happens to a run

    def begin(self, run: LiveRun) -> None:
        """Schedules a new run, which always has something to do, unless earlier runs of its thread come first."""
        if run.residency is not BEHIND:
            self._submit(run)

    def append(self, run: LiveRun, facts: Sequence[Draft]) -> None:
        """Appends facts from outside and continues the run."""
        try:
            self._driver.record(run, facts)
        except Exception as error:
            self._failed(run, error)
            raise
        self.consider(run)

    def take(self, run: LiveRun, fact: Draft) -> None:
        """Appends a fact from another run, if the run still accepts it, and continues the run."""
        if accepts(run.state, fact.head):
            with suppress(Exception):  # the run starts over; the caller is not concerned
                self.append(run, (fact,))

    def fire(self, run: LiveRun, now: int) -> None:
        """Appends the current time to the run."""
        if now > run.state.now:
            self.take(run, Draft(TimerFired(now)))
        else:
            # It knows the time already, but a crash or a changed clock kept it from acting.
            self.consider(run)

    def move_up(self, run: LiveRun) -> None:
        """Called when no earlier run of its thread is left."""
        self._residents.behind.drop(run)
        run.move(PARKED)
        run.log.row.due_at = 0
        self.consider(run)

    def consider(self, run: LiveRun) -> None:
        """Called after an append to a run: ends it here, wakes its driver, or schedules it.

        It never raises: the caller has other runs to handle, whatever is wrong with this one.
        """
        try:
            self._move_on(run)
        except Exception as error:
            self._failed(run, error)

    def unload_idle(self, run: LiveRun) -> None:
        """Drops a parked run from memory, unless there is something to do for it after all."""
        if run.active or run.gone:
            return
        unclaimed = self._needs_other_process(run)
        due = run.log.due_at == 0 and run.residency is PARKED
        if due and not unclaimed and not self._trials.hold_back(run):
            self.consider(run)
        elif not self._residents.has_children_of(run):  # its code observes them; it is kept again after them
            self._residents.unload(run)
            self._trials.unloaded(run.key)

    def end_by_force(self, run: LiveRun, facts: Sequence[Draft]) -> None:
        """Ends a run without its driver. The last fact is the terminal one."""
        children = run.state.open_children
        self._driver.record(run, facts)
        if children:
            self._tasks.spawn(self._cancel_after(run, children))

    async def _cancel_after(self, run: LiveRun, children: Sequence[str]) -> None:
        """Cancels the children of a run that ended before them, once its end is durable."""
        try:
            await self._log.durable(run)
        except WeftlineError:
            return  # the run was dropped, and continues from a log in which it has not ended
        await self._lineage.cancel(children)

    # What becomes of it

    def _move_on(self, run: LiveRun) -> None:
        if run.gone or run.state.ended:
            return
        if run.state.control.cancel:
            self._cancelling.end(run)
            return
        if run.residency is BEHIND:
            return  # it accepts nothing before its turn
        waits = run.residency is not DRIVEN or run.driving.waits_to_open
        # What is due waits neither for a free slot nor for tools. A parked run that is open has its driver at once.
        if waits and (run.active or not run.driving.opened) and _may_be_due(run.state):
            self._driver.settle(run)
            if run.state.ended:
                self._drivers.withdraw(run)
                if run.task is not None:
                    run.task.cancel()
                return
        if run.active:
            if waits:
                self._timers.watch_queued(run)
            run.wake()
            return
        if run.log.taken_over:
            self._driver.take_over(run)  # before this process takes over the row
        decision = decide(run.state)
        if decision.append or decision.start:
            if run.driving.rested_at == run.state.version and not self._driver.stopping:
                # It would be driven again at once, without effect, forever.
                error = RuntimeError("its driver stopped with work left to do")
                logger.error("run %s: driver failed: %s", run.id, error)
                self._start_over(run, error)
                return
            self._timers.watch_queued(run, opens=True)
            self._submit(run)
            return
        self._park(run, decision.due_at)

    def _submit(self, run: LiveRun) -> None:
        """Drives the run now, or when its workspace has a free slot; at most one driver at a time."""
        run.log.due_at = 0
        if self._driver.stopping:
            self._store_due(run)  # the next process continues it
        elif run.residency is PARKED and not self._trials.hold_back(run):
            if self._needs_other_process(run):
                self._store_due(run)
                self._kept.keep(run)  # it waits for a process that has its agent
                return
            self._kept.drop(run)
            self._drivers.submit(run)

    def _needs_other_process(self, run: LiveRun) -> bool:
        """Returns True if the run waits for a process that has its agent, in the version that it needs."""
        plan = run.work.plan
        return (plan.code is not None or plan.digests is not None) and not self._knows(plan)

    def _park(self, run: LiveRun, due_at: int | None) -> None:
        run.log.due_at = due_at
        if due_at:
            self._timers.at(due_at)
        self._store_due(run)
        self._kept.keep(run)

    def _store_due(self, run: LiveRun) -> None:
        """Updates the row's due time, unless it is up to date or about to be."""
        log = run.log
        flight = log.outbox.flight
        on_its_way = flight.due_at if flight is not None else log.row.due_at
        if log.outbox.pending is None and on_its_way != log.due_at:
            self._log.write_row(run)

    def _driver_left(self, run: LiveRun, error: BaseException | None) -> None:
        """Called when a driver has left, because nothing is left to do, it was stopped, or it failed."""
        if run.gone:
            self._residents.driver_left(run)
            return
        run.move(PARKED)
        if error is not None:
            logger.error("run %s: driver failed", run.id, exc_info=error)
        if run.state.ended:
            if run.log.outbox.empty:
                self._residents.unload(run)
        elif error is not None:
            self._start_over(run, error)
        elif not self._driver.stopping:
            self.consider(run)  # whatever arrived while the driver was leaving
        elif (decision := decide(run.state)).append or decision.start:
            self._submit(run)
        elif decision.due_at != run.log.due_at:  # something arrived after the driver's last check
            run.log.due_at = decision.due_at
            self._store_due(run)

    def _failed(self, run: LiveRun, error: Exception) -> None:
        logger.error("run %s: cannot continue", run.id, exc_info=error)
        if not run.gone:
            self._start_over(run, error)

    def _start_over(self, run: LiveRun, error: BaseException) -> None:
        """Continues the run from its log after its driver failed, perhaps between two changes that belong together.

        What it had appended is written first; only what existed in memory alone is lost.
        """
        self._drivers.withdraw(run)
        self._residents.start_over(run)
        self._tasks.spawn(self._recovery.again(run.key, error))


def _may_be_due(state: State) -> bool:
    """Returns True if a deadline of the run may have passed."""
    due_at = state.questions.due_at
    return (due_at is not None and due_at <= state.now) or state.limits.policy is not None
