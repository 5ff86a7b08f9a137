"""The runs in memory, and what moves them: facts from outside, and drivers. What commits do is in `commits.py`.

Only active runs are here, and for a few seconds those that were just parked. `Residency` draws the phases of a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from weftline.errors import RateLimited, StoreError, no_such_run
from weftline.kernel.accept import accepts
from weftline.kernel.decide import decide
from weftline.kernel.entries import CancelRequested, TimerFired
from weftline.plan import RunPlan
from weftline.runtime import ids
from weftline.runtime.behind import BehindRuns
from weftline.runtime.budgets import Account, Ledger
from weftline.runtime.clock import Clock
from weftline.runtime.commits import Commits
from weftline.runtime.driver import CUT_S, Driver
from weftline.runtime.hub import Hub
from weftline.runtime.limits import WorkspaceLimits
from weftline.runtime.lineage import Lineage, note_calls
from weftline.runtime.live import BEHIND, DRIVEN, GONE, PARKED, SCHEDULED, Cut, Draft, LiveRun
from weftline.runtime.loading import public_id
from weftline.runtime.log import Log
from weftline.runtime.recovery import STORE_RETRY_S, Recovery
from weftline.runtime.retained import RetainedRuns
from weftline.runtime.scheduler import Scheduler
from weftline.runtime.timers import Timers
from weftline.runtime.waiting import wait_while_running
from weftline.store.base import LogStore

logger = logging.getLogger(__name__)

LAST_TRY_S = 5.0
"""How long a stop waits for a store that refuses to write what is left."""
CANCEL_GRACE_S = 2.0
"""How long a cancelled run's work has to stop before the run ends without it."""
_MAX_LISTED = 10
"""How many runs a line of the log names."""


class NewDriver(Protocol):
    """Makes the driver of runs that are appended to this log; it calls `on_deadline` as `Driver` does."""

    def __call__(self, log: Log, on_deadline: Callable[[LiveRun, int], None], /) -> Driver: ...


class Residents:
    def __init__(
        self,
        store: LogStore,
        *,
        clock: Clock,
        hub: Hub,
        limits: WorkspaceLimits,
        new_driver: NewDriver,
        knows: Callable[[RunPlan], bool],
        ledger: Ledger,
        max_recoveries: int,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._hub = hub
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self.runs: dict[int, LiveRun] = {}
        self._loading: dict[int, asyncio.Task[LiveRun]] = {}
        self._kept = RetainedRuns(self._unload_idle)
        self._starting_over: dict[int, LiveRun] = {}
        """Runs that start over, until their drivers have left and what is on its way to the store has arrived."""
        self._behind = BehindRuns()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._knows = knows
        self._scheduler = Scheduler(self._start, max_per_workspace=limits.max_runs_per_workspace)
        self.timers = Timers(store, self, clock=clock)
        self.recovery = Recovery(store, self, max_recoveries=max_recoveries)
        self._lineage = Lineage(store, self)
        self.commits = Commits(
            self,
            kept=self._kept,
            hub=hub,
            ledger=ledger,
            timers=self.timers,
            recovery=self.recovery,
            lineage=self._lineage,
        )
        self.log = Log(store, clock=clock, observer=self.commits)
        self.driver = new_driver(self.log, self.timers.watch)
        self.driver.on_calls = partial(note_calls, self.runs, self.driver.note)

    @property
    def stopping(self) -> bool:
        return self.driver.stopping

    # Coming and going

    def resident(self, key: int) -> LiveRun | None:
        return self.runs.get(key)

    def add(self, run: LiveRun) -> None:
        """Takes in a new run."""
        self.runs[run.key] = run
        self._open_account(run)
        if run.residency is BEHIND:
            self._behind.add(run)

    async def count_queued(self) -> None:
        """Counts the runs that an earlier process has left behind others."""
        self._behind.found(await self._store.queued_behind())

    def require_room(self, workspace: int) -> None:
        """Raises `RateLimited` (`too_many_runs`) if the workspace has its maximum number of runs queued."""
        max_queued = self._limits.max_queued_runs_per_workspace
        if self._scheduler.queued(workspace) + self._behind.count(workspace) >= max_queued:
            raise RateLimited(
                f"{max_queued} runs of this workspace are already queued.",
                code="too_many_runs",
                retry_after_s=5,
                limit=max_queued,
            )

    async def load(self, key: int) -> LiveRun:
        """The run in memory; a parked one is read from the store. Raises `NotFound`, or `Conflict` for a newer run.

        There is no await between finding the run in memory and returning it.
        """
        while (run := self.runs.get(key)) is None:
            loading = self._loading.get(key)
            if loading is None:
                loading = self._loading[key] = self._loop.create_task(self._read(key))
                loading.add_done_callback(lambda task: self._loading_done(key, task))
            loaded = await asyncio.shield(loading)
            if loaded.state.ended:
                return loaded
        return run

    async def load_surely(self, key: int) -> LiveRun:
        """Like `load`, for callers that will not be retried: waits until the store can be read."""
        while True:
            try:
                return await self.load(key)
            except StoreError as error:
                if self.stopping:
                    raise
                name = await public_id(self._store, key)
                logger.error("run %s cannot be loaded, trying again: %s", name, error.message)
                await asyncio.sleep(STORE_RETRY_S)

    def _loading_done(self, key: int, task: asyncio.Task[LiveRun]) -> None:
        self._loading.pop(key, None)
        if not task.cancelled():
            task.exception()  # the caller may have gone away since

    async def _read(self, key: int) -> LiveRun:
        if (earlier := self._starting_over.get(key)) is not None:
            if earlier.task is not None:
                await wait_while_running([earlier.task], timeout_s=CUT_S)
            await self.log.settled(earlier)
            self._starting_over.pop(key, None)
        run = await self.recovery.load(key)
        if run is None:
            raise no_such_run()
        if run.residency is BEHIND and not run.state.ended:
            self._behind.add(run)
        else:
            self._behind.drop(run)
        if run.state.ended:
            self._store.release(key, run.log.epoch)
            run.move(GONE)
        else:
            try:
                ends = await self._lineage.undelivered_ends(run)
            except BaseException:
                self._store.release(key, run.log.epoch)
                raise
            self.runs[key] = run
            self._open_account(run)
            self._kept.keep(run)
            self.driver.record(run, ends)
            self.cut_children(run)
            if ends:
                self.consider(run)  # whoever has it loaded may only want to look at it
        return run

    def _open_account(self, run: LiveRun) -> None:
        run.work.account = Account(
            self._ledger,
            key=run.key,
            workspace=run.workspace,
            thread=run.thread,
            plan=run.work.plan,
            parent=run.state.parent,
        )

    def cut_children(self, run: LiveRun) -> None:
        """Cancels the children of a run whose time is up; its own calls are closed already."""
        if run.state.policy.reached == "time_budget" and run.state.open_children:
            self.spawn(self._lineage.cancel(run.state.open_children))

    def _unload_idle(self, run: LiveRun) -> None:
        """Drops a parked run from memory, unless there is something to do for it after all."""
        if run.active or run.gone:
            return
        unclaimed = self._is_elsewhere(run)
        due = run.log.due_at == 0 and run.residency is PARKED
        if due and not unclaimed and not self.recovery.hold_back(run):
            self.consider(run)
        elif any(ids.key_of(child) in self.runs for child in run.state.open_children):
            pass  # its code hears of what they do; it is kept again when they leave
        else:
            self.unload(run)
            self.recovery.unloaded(run.key)

    def _is_elsewhere(self, run: LiveRun) -> bool:
        """Whether the run waits for a process that has its agent, as it needs it."""
        plan = run.work.plan
        return (plan.code is not None or plan.digests is not None) and not self._knows(plan)

    def unload(self, run: LiveRun) -> None:
        """It leaves memory, and can be loaded again."""
        ended, above = run.log.state.ended, run.parent
        if ended or run.residency is not BEHIND:
            self._behind.drop(run)
        run.move(GONE)
        self._kept.drop(run)
        self._release_code(run)
        parent = self.runs.get(above) if above is not None else None
        if parent is not None and not parent.active:
            self._kept.keep(parent)
        if self.runs.get(run.key) is run:
            del self.runs[run.key]
            self._store.release(run.key, run.log.epoch)
            if not ended:
                self._hub.forget(run.key)

    def _release_code(self, run: LiveRun) -> None:
        """Tells the code of the run's agent that the run leaves memory."""
        toolbox = run.work.toolbox
        if toolbox is not None and toolbox.code is not None:
            toolbox.code.leave()

    # Moving

    def begin(self, run: LiveRun) -> None:
        """Schedules a new run, which always has something to do, unless earlier runs of its thread come first."""
        if run.residency is not BEHIND:
            self._submit(run)

    def append(self, run: LiveRun, facts: Sequence[Draft]) -> None:
        """Appends facts from outside and carries the run on."""
        try:
            self.driver.record(run, facts)
        except Exception as error:
            self._failed(run, error)
            raise
        self.consider(run)

    def consider(self, run: LiveRun) -> None:
        """After an append to a run: ends it right here, wakes its driver, or schedules it.

        Whatever is wrong with the run does not concern whoever calls this, who has others to see to.
        """
        try:
            self._move_on(run)
        except Exception as error:
            self._failed(run, error)

    def _failed(self, run: LiveRun, error: Exception) -> None:
        logger.error("run %s: it cannot continue", run.id, exc_info=error)
        if not run.gone:
            self._start_over(run, error)

    def _move_on(self, run: LiveRun) -> None:
        if run.gone or run.state.ended:
            return
        if run.state.control.cancel:
            self._end_cancelled(run)
            return
        if run.residency is BEHIND:
            return  # it accepts nothing before its turn
        if run.active:
            if run.residency is SCHEDULED:
                self.timers.watch_queued(run)
            run.poke()
            return
        self.driver.take_over(run)  # before the row is this process's
        decision = decide(run.state)
        if decision.append or decision.start:
            if run.driving.rested_at == run.state.version and not self.stopping:
                # It would be driven again at once, to no avail, for ever.
                error = RuntimeError("its driver stopped with work left to do")
                logger.error("run %s: driver failed: %s", run.id, error)
                self._start_over(run, error)
                return
            self.timers.watch_queued(run)
            self._submit(run)
            return
        self._park(run, decision.due_at)

    def _end_cancelled(self, run: LiveRun) -> None:
        """The receiver of a cancel carries it out. What is under way is stopped first, within a grace."""
        match run.driving.cut:
            case Cut.NO if run.task is not None and not self.stopping:
                run.log.due_at = 0  # the next process ends it, if this one does not
                run.driving.cut = Cut.BEGUN
                self.spawn(self._cut_and_end(run))
            case Cut.BEGUN:
                pass
            case Cut.NO | Cut.DONE:
                self._end_now(run)

    async def _cut_and_end(self, run: LiveRun) -> None:
        await self.log.durable(run)  # why and by whom comes before anything is stopped
        if run.task is not None:
            run.task.cancel()
            await wait_while_running([run.task], timeout_s=CANCEL_GRACE_S)
        run.driving.cut = Cut.DONE
        if not run.gone and not run.state.ended:
            self._end_now(run)

    def _end_now(self, run: LiveRun) -> None:
        try:
            self.driver.advance(run)
        except Exception as error:
            logger.exception("run %s could not be ended", run.id)
            self._start_over(run, error)
            return
        if run.residency is SCHEDULED:
            self._scheduler.withdraw(run)
            run.move(PARKED)
        if run.task is not None and run.driving.cut is Cut.NO:
            run.task.cancel()
        if not run.state.ended:
            self.spawn(self._lineage.cancel(run.state.open_children, by=run.state.control.cancelled_by))

    def _start_over(self, run: LiveRun, error: BaseException) -> None:
        """A driver failed, perhaps between two changes that belong together: the run continues from its log.

        What it had appended is written first; nothing is lost but what only this memory knew.
        """
        if run.residency is SCHEDULED:
            self._scheduler.withdraw(run)
        self._behind.drop(run)
        self._kept.drop(run)
        run.move(GONE)
        self._release_code(run)
        del self.runs[run.key]
        self._end_driver(run)
        self.spawn(self.recovery.again(run.key, error))

    def _end_driver(self, run: LiveRun) -> None:
        """The run starts over, but not before this memory of it is at rest: no call is made twice at the same time."""
        self._starting_over[run.key] = run
        if run.task is not None:
            run.task.cancel()

    def _submit(self, run: LiveRun) -> None:
        """Drives the run now, or when its workspace has a free slot; at most one driver at a time."""
        run.log.due_at = 0
        if self.stopping:
            self._store_due(run)  # the next process continues it
        elif run.residency is PARKED and not self.recovery.hold_back(run):
            if self._is_elsewhere(run):
                self._store_due(run)
                self._kept.keep(run)  # it waits for a process that has its agent
                return
            self._kept.drop(run)
            run.move(SCHEDULED)
            self._scheduler.submit(run)

    def _park(self, run: LiveRun, due_at: int | None) -> None:
        log = run.log
        log.due_at = due_at
        if due_at:
            self.timers.at(due_at)
        self._store_due(run)
        self._kept.keep(run)

    def _store_due(self, run: LiveRun) -> None:
        """Has the row say when the run is due, unless it does or is about to."""
        log = run.log
        flight = log.outbox.flight
        on_its_way = flight.due_at if flight is not None else log.row.due_at
        if log.outbox.pending is None and on_its_way != log.due_at:
            self.log.write_row(run)

    def _start(self, run: LiveRun) -> None:
        if not run.gone:
            run.move(DRIVEN)
        run.task = self._loop.create_task(self._drive(run))
        run.task.add_done_callback(lambda task: self._driver_done(run, task))

    async def _drive(self, run: LiveRun) -> None:
        # It may have been queued for a long time, and its slot have become free because the server stops.
        if run.residency is not GONE and not run.log.state.ended and not self.stopping:
            await self.driver.drive(run)

    def _driver_done(self, run: LiveRun, task: asyncio.Task[None]) -> None:
        """A driver has left: because nothing is left to do, because it was stopped, or because it failed."""
        run.task = None
        self._scheduler.finished(run)
        error = None if task.cancelled() else task.exception()
        if run.gone:
            self._release_code(run)  # its tools may have been opened after it was unloaded
            if run.log.outbox.empty and self._starting_over.get(run.key) is run:
                del self._starting_over[run.key]
            return
        run.move(PARKED)
        if error is not None:
            logger.error("run %s: driver failed", run.id, exc_info=error)
        if run.state.ended:
            if run.log.outbox.empty:
                self.unload(run)
        elif error is not None:
            self._start_over(run, error)
        elif not self.stopping:
            self.consider(run)  # whatever arrived while the driver was leaving
        elif (decision := decide(run.state)).append or decision.start:
            self._submit(run)
        elif decision.due_at != run.log.due_at:  # something arrived after the driver's last look
            run.log.due_at = decision.due_at
            self._store_due(run)

    async def shut_down(self, drain_s: float) -> None:
        """Starts nothing new, and waits for what is under way, `drain_s` at most."""
        self.driver.stopping = True
        self.timers.stop()
        tasks = [run.task for run in self.runs.values() if run.task is not None]
        await wait_while_running(tasks, timeout_s=drain_s)

    async def cut(self) -> bool:
        """Ends what is still under way and makes everything appended durable. Returns whether the store took it."""
        left = {run.task: run for run in self.runs.values() if run.task is not None}
        for task in left:
            task.cancel()
        for task in await wait_while_running(left, timeout_s=CUT_S):
            logger.warning("run %s did not stop; whatever it still does is ignored", left[task].id)
            self.driver.abandon(left[task])
            left[task].move(GONE)
        for task in self._tasks:
            task.cancel()
        self._kept.stop()
        lost = await self.log.finish(patience_s=LAST_TRY_S)
        if lost:
            count = sum([run.log.next_seq - 1 - run.log.durable for run in lost])
            logger.error(
                "the store still refuses writes: %d entries are lost; runs that continue from what is stored, and"
                " repeat the rest: %d (%s)",
                count,
                len(lost),
                ", ".join([run.id for run in lost[:_MAX_LISTED]]) + (", …" if len(lost) > _MAX_LISTED else ""),
            )
        return not lost

    def abandon(self) -> None:
        """Stops everything here and now, as a crash would: the engine could not be started."""
        self.driver.stopping = True
        self.timers.stop()
        self._kept.stop()
        for task in [*self._tasks, *[run.task for run in self.runs.values() if run.task is not None]]:
            task.cancel()

    # What commits do with runs

    def move_up(self, run: LiveRun) -> None:
        """No earlier run of its thread is left."""
        self._behind.drop(run)
        run.move(PARKED)
        run.log.row.due_at = 0
        self.consider(run)

    def discard(self, run: LiveRun) -> None:
        """Its memory is ahead of a log that will not catch up."""
        self._behind.drop(run)  # until it is loaded again, if it was ever written
        self.unload(run)
        if run.task is not None:
            self._end_driver(run)

    # What timers and recovery do with runs

    @property
    def resting(self) -> bool:
        return self.stopping or self.recovery.held

    def fire(self, run: LiveRun, now: int) -> None:
        if now > run.state.now:
            self.take(run, Draft(TimerFired(now)))
        else:
            # It knows the time: a process that died, or a clock that was set, kept it from acting.
            self.consider(run)

    def end_by_force(self, run: LiveRun, facts: Sequence[Draft]) -> None:
        children = run.state.open_children
        self.driver.record(run, facts)
        if children:
            self.spawn(self._cancel_after(run, children))

    async def _cancel_after(self, run: LiveRun, children: Sequence[str]) -> None:
        """Cancels the children of a run that has ended before them, once that is durable."""
        await self.log.durable(run)
        await self._lineage.cancel(children)

    def orphaned(self, run: LiveRun) -> None:
        """Cancels a child whose parent has ended, which only a damaged one does before its children."""
        self.take(run, Draft(CancelRequested("parent")))

    def take(self, run: LiveRun, fact: Draft) -> None:
        """Appends a fact that another run has brought, if it still has a basis, and carries the run on."""
        if accepts(run.state, fact.head):
            with suppress(Exception):  # the run starts over: whoever brought the fact has nothing to do with it
                self.append(run, (fact,))

    def wake_at(self, due_at: int) -> None:
        self.timers.at(due_at)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Work beside the runs, which ends with the process."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a background task failed", exc_info=task.exception())
