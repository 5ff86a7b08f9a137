"""The runs in memory, and what moves them: drivers, commits, timers.

Only active runs are here, and for a few seconds those that were just parked. What follows from a commit (the next run
of a thread, notifying readers, dropping a parked run) is tied to the commit itself, never to the caller. `Residency`
draws the phases of a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

from weftline.errors import Conflict, NotFound, RateLimited, StoreError, WeftlineError
from weftline.kernel.accept import accepts
from weftline.kernel.decide import decide
from weftline.kernel.entries import TimerFired
from weftline.kernel.state import State
from weftline.runtime.alarm import Alarm
from weftline.runtime.clock import Clock
from weftline.runtime.driver import Driver
from weftline.runtime.failures import report_failure
from weftline.runtime.hub import EntryBatch, Hub
from weftline.runtime.limits import WorkspaceLimits
from weftline.runtime.live import Draft, LiveRun, Residency
from weftline.runtime.log import Log
from weftline.runtime.recovery import STORE_RETRY_S, load_run, public_id
from weftline.runtime.scheduler import Scheduler
from weftline.runtime.waiting import wait_while_running
from weftline.store.base import LogStore, Stored, Write, Written

logger = logging.getLogger(__name__)

CLIENT_GRACE_US = 30_000_000
"""After a start or a stall: how long a client has to send an overdue answer."""
KEEP_S = 5.0
"""How long a parked run stays in memory: clients usually answer quickly."""
MAX_KEPT = 512
CUT_S = 5.0
"""How long a stop waits for cancelled work."""
LAST_TRY_S = 5.0
"""How long a stop waits for a store that refuses to write what is left."""
_SWEEP_S = 0.1
"""The minimum between two looks at them: the remaining wait may round to nothing."""
_STALL_US = 1_000_000
_PAGE = 1000


class Overseer(Protocol):
    """What the runs in memory need from recovery."""

    @property
    def held(self) -> bool: ...
    def holds(self, run: LiveRun) -> bool: ...
    def cleared(self, key: int) -> None: ...
    async def again(self, run: LiveRun, error: BaseException) -> None: ...
    async def pick_up(self) -> None: ...


class Residents:
    overseer: Overseer

    def __init__(self, store: LogStore, *, clock: Clock, hub: Hub, limits: WorkspaceLimits) -> None:
        self._store = store
        self._clock = clock
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._runs: dict[int, LiveRun] = {}
        self._loading: dict[int, asyncio.Task[LiveRun]] = {}
        self._kept: dict[int, LiveRun] = {}
        """Parked runs, longest parked first."""
        self._sweep: asyncio.TimerHandle | None = None
        self._limits = limits
        self._scheduler = Scheduler(self._start, max_per_workspace=limits.max_runs_per_workspace)
        self._behind: dict[int, set[int]] = {}
        """By workspace: new runs waiting for earlier runs of their threads."""
        self._alarm = Alarm(self._ring, clock=clock)
        self._deadlines: list[tuple[int, int]] = []
        """For driven runs: when they want to be asked again, and their keys."""
        self._away_until = clock.now_us()
        self._grace_until = self._away_until + CLIENT_GRACE_US
        self._ringing = False
        self._rang_again = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self.on_ended: Callable[[], None] | None = None
        """Called after a commit that ended a run."""
        self.log = Log(store, clock=clock, observer=self)
        self.driver: Driver

    @property
    def stopping(self) -> bool:
        return self.driver.stopping

    # Coming and going

    def resident(self, key: int) -> LiveRun | None:
        return self._runs.get(key)

    def add(self, run: LiveRun) -> None:
        """Takes in a new run."""
        self._runs[run.key] = run
        if run.residency is Residency.BEHIND:
            self._behind.setdefault(run.workspace, set()).add(run.key)

    def require_room(self, workspace: int) -> None:
        """Raises `RateLimited` (`too_many_runs`) if the workspace has its maximum number of runs queued."""
        max_queued = self._limits.max_queued_runs_per_workspace
        if self._scheduler.queued(workspace) + len(self._behind.get(workspace, ())) >= max_queued:
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
        while (run := self._runs.get(key)) is None:
            loading = self._loading.get(key)
            if loading is None:
                loading = self._loading[key] = self._loop.create_task(self._load(key))
                loading.add_done_callback(lambda task: self._loaded(key, task))
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

    def _loaded(self, key: int, task: asyncio.Task[LiveRun]) -> None:
        self._loading.pop(key, None)
        if not task.cancelled():
            task.exception()  # the caller may have gone away since

    async def _load(self, key: int) -> LiveRun:
        run = await load_run(self._store, key)
        if run is None:
            raise NotFound("There is no such run.")
        if run.state.ended:
            self._store.release(key, run.log.epoch)
            run.residency = Residency.GONE
        else:
            self._runs[key] = run
            self._keep(run)
        return run

    def _keep(self, run: LiveRun) -> None:
        """Keeps a parked run in memory for a short while."""
        run.touched_s = self._loop.time()
        self._kept.pop(run.key, None)
        self._kept[run.key] = run
        if len(self._kept) > MAX_KEPT:
            self._let_go(next(iter(self._kept.values())))
        if self._sweep is None:
            self._sweep = self._loop.call_later(KEEP_S, self._sweep_kept)

    def _sweep_kept(self) -> None:
        self._sweep = None
        until = self._loop.time() - KEEP_S
        for run in list(self._kept.values()):
            if run.touched_s > until:
                self._sweep = self._loop.call_later(max(run.touched_s - until, _SWEEP_S), self._sweep_kept)
                return
            self._let_go(run)

    def _let_go(self, run: LiveRun) -> None:
        """Drops a parked run from memory, unless some of it is on its way to the store."""
        self._kept.pop(run.key, None)
        if run.active or run.gone or not run.log.idle:
            return
        if run.log.due_at == 0 and run.residency is Residency.PARKED and not self.overseer.holds(run):
            self.consider(run)
        else:
            self._forget(run)

    def _forget(self, run: LiveRun) -> None:
        self._not_behind(run)
        run.residency = Residency.GONE
        self._kept.pop(run.key, None)
        if self._runs.get(run.key) is run:
            del self._runs[run.key]
            self._store.release(run.key, run.log.epoch)
            self.overseer.cleared(run.key)
            if not run.state.ended:
                self._hub.forget(run.key)

    def _not_behind(self, run: LiveRun) -> None:
        behind = self._behind.get(run.workspace)
        if behind is not None and run.key in behind:
            behind.remove(run.key)
            if not behind:
                del self._behind[run.workspace]

    # Moving

    def consider(self, run: LiveRun) -> None:
        """After an append to a run: ends it right here, wakes its driver, or schedules it."""
        if run.gone or run.state.ended:
            return
        if run.state.control.cancel:
            self._end_cancelled(run)
            return
        if run.residency is Residency.BEHIND:
            return  # it accepts nothing before its turn
        if run.active:
            run.poke()
            return
        decision = decide(run.state)
        if decision.append or decision.start:
            if run.state.questions.open:
                self._watch_deadlines(run)  # it may queue for a place for longer than that
            self._submit(run)
            return
        self._park(run, decision.due_at)

    def _watch_deadlines(self, run: LiveRun) -> None:
        deadlines = [question.deadline_at for question in run.state.questions.open.values() if question.deadline_at]
        if deadlines:
            run.work.due_at = min(deadlines)
            self.deadline(run, run.work.due_at)

    def _end_cancelled(self, run: LiveRun) -> None:
        """The receiver of a cancel carries it out; drivers are notified afterwards."""
        try:
            self.driver.advance(run)
        except Exception as error:
            logger.exception("run %s could not be ended", run.id)
            self._spawn(self.overseer.again(run, error))
            return
        if run.residency is Residency.SCHEDULED:
            self._scheduler.withdraw(run)
            run.residency = Residency.PARKED
        if run.task is not None:
            run.task.cancel()

    def end_by_force(self, run: LiveRun, facts: Sequence[Draft]) -> None:
        self.driver.record(run, facts)

    def wake_at(self, due_at: int) -> None:
        self._alarm.at(due_at)

    def deadline(self, run: LiveRun, due_at: int) -> None:
        """A driven run wants to be asked again at this time, whatever its commands do."""
        heappush(self._deadlines, (due_at, run.key))
        self._alarm.at(due_at)

    def _submit(self, run: LiveRun) -> None:
        """Drives the run now, or when its workspace has a free slot; at most one driver at a time."""
        run.log.due_at = 0
        if self.stopping:
            self._store_due(run)  # the next process carries it on
        if run.active or run.gone or self.stopping or self.overseer.holds(run):
            return
        self._kept.pop(run.key, None)
        run.residency = Residency.SCHEDULED
        self._scheduler.submit(run)

    def _park(self, run: LiveRun, due_at: int | None) -> None:
        log = run.log
        log.due_at = due_at
        if due_at:
            self._alarm.at(due_at)
        self._store_due(run)
        self._keep(run)

    def _store_due(self, run: LiveRun) -> None:
        """Has the row say when the run is due, unless it does or is about to."""
        log = run.log
        on_its_way = log.flight.due_at if log.flight is not None else log.row_due
        if log.pending is None and on_its_way != log.due_at:
            self.log.touch(run)

    def _start(self, run: LiveRun) -> None:
        if not run.gone:
            run.residency = Residency.DRIVEN
        run.task = self._loop.create_task(self._drive(run))
        run.task.add_done_callback(lambda task: self._left(run, task))

    async def _drive(self, run: LiveRun) -> None:
        if not run.gone and not run.state.ended:  # it may have been queued for a long time
            await self.driver.drive(run)

    def _left(self, run: LiveRun, task: asyncio.Task[None]) -> None:
        """A driver has left: because nothing is left to do, because it was stopped, or because it failed."""
        run.task = None
        self._scheduler.finished(run)
        error = None if task.cancelled() else task.exception()
        if run.gone:
            return
        run.residency = Residency.PARKED
        if error is not None:
            logger.error("run %s: driver failed", run.id, exc_info=error)
            run.log.epoch, run.work.opened = self._store.next_epoch(), False
            run.log.due_at = 0
            self._spawn(self.overseer.again(run, error))
        elif run.state.ended:
            if run.log.idle:
                self._forget(run)
        elif not self.stopping:
            self.consider(run)  # whatever arrived while the driver was leaving
        elif (decision := decide(run.state)).append or decision.start:
            self._submit(run)

    async def shut_down(self, drain_s: float) -> None:
        """Starts nothing new, and waits for what is under way, `drain_s` at most."""
        self.driver.stopping = True
        self._alarm.stop()
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        await wait_while_running(tasks, timeout_s=drain_s)

    async def cut(self) -> None:
        """Ends what is still under way and makes everything appended durable."""
        left = {run.task: run for run in self._runs.values() if run.task is not None}
        for task in left:
            task.cancel()
        for task in await wait_while_running(left, timeout_s=CUT_S):
            logger.warning("run %s did not stop; whatever it still does is ignored", left[task].id)
            self.driver.abandon(left[task])
            left[task].residency = Residency.GONE
        for task in self._tasks:
            task.cancel()
        if self._sweep is not None:
            self._sweep.cancel()
        await self.log.finish(patience_s=LAST_TRY_S)

    # What follows from a commit

    def committed(self, run: LiveRun, write: Write, heads: Sequence[Draft], result: Written, *, size: int) -> None:
        if write.items:
            self._publish(run, write, heads, result.first_seq, size)
        if write.progress == 2:
            run.failures, run.charges = 0, None
            self.overseer.cleared(run.key)
        if write.new is not None and run.residency is Residency.BEHIND and not result.queued:
            self._move_up(run)
        elif run.log.due_at and not run.active:
            self._alarm.at(run.log.due_at)  # an alarm that rang before this commit did not see it
        if result.promoted is not None:
            self._promote(result.promoted)
        if write.ended_at is not None:
            report_failure(run.work, heads)
            if self.on_ended is not None:
                self.on_ended()
            if not run.active and run.log.idle:
                self._forget(run)

    def _publish(self, run: LiveRun, write: Write, heads: Sequence[Draft], first_seq: int, size: int) -> None:
        items: list[Stored] = []
        seq = first_seq
        for item in write.items:
            items.append(Stored(seq, item.at, item.kind, item.head, item.body, item.count))
            seq += item.count
        facts = [draft.head for draft in heads]
        ended = write.ended_at is not None
        batch = EntryBatch(run.work.run_id, items, size=size, last_seq=seq - 1, ended=ended, heads=facts)
        self._hub.publish(run.key, batch, workspace=run.workspace)

    def _promote(self, key: int) -> None:
        run = self._runs.get(key)
        if run is None:
            self._spawn(self._promote_later(key))
        elif run.residency is Residency.BEHIND:
            self._move_up(run)

    def _move_up(self, run: LiveRun) -> None:
        """No earlier run of its thread is left."""
        self._not_behind(run)
        run.residency = Residency.PARKED
        run.log.row_due = 0
        self.consider(run)

    async def _promote_later(self, key: int) -> None:
        run = await self.load_surely(key)
        if run.residency is Residency.BEHIND:
            run.residency = Residency.PARKED
        self.consider(run)

    def lost(self, run: LiveRun) -> None:
        """The run's memory was ahead of its log and is gone; the run continues from the log."""
        active = run.task is not None
        self._forget(run)
        if active and run.task is not None:
            run.task.cancel()
        if self.log.refusal is None and not self.stopping:
            self._spawn(self._load_again(run.key))

    async def _load_again(self, key: int) -> None:
        await asyncio.sleep(0.1)
        try:
            self.consider(await self.load_surely(key))
        except NotFound:
            pass  # its first write failed: it never existed

    def store_is_well(self) -> None:
        """Picks up the runs that were dropped while the store refused."""
        if not self.stopping:
            self._spawn(self.overseer.pick_up())

    # Timers

    def was_away(self) -> None:
        """Nothing moved until now, so clients whose answers are overdue get a grace period."""
        self._away_until = self._clock.now_us()
        self._grace_until = self._away_until + CLIENT_GRACE_US

    def _ring(self, late_us: int) -> None:
        """Some run is due. After a stall, clients that were about to answer get a grace period first."""
        if self.stopping or self.overseer.held:
            return
        now = self._clock.now_us()
        if late_us > _STALL_US:
            self._away_until = now
            self._grace_until = max(self._grace_until, now + max(late_us, CLIENT_GRACE_US))
        while self._deadlines and self._deadlines[0][0] <= now:
            _, key = heappop(self._deadlines)
            run = self._runs.get(key)
            if run is not None and run.active and run.work.due_at and run.work.due_at <= now:
                self._fire(run, now)
        if self._deadlines:
            self._alarm.at(self._deadlines[0][0])
        if self._ringing:
            self._rang_again = True  # what it was for may have become durable since the runs under way were read
        else:
            self._ringing = True
            self._spawn(self._fire_parked(now))

    async def _fire_parked(self, now: int) -> None:
        try:
            after = (0, 0)
            while due := await self._store.due(now, after=after, limit=_PAGE):
                after = due[-1]
                for _, key in due:
                    if self.stopping:
                        return
                    try:
                        run = await self.load(key)
                    except (Conflict, NotFound):
                        continue  # from a newer version, or gone by now
                    if not run.active and not run.gone and run.log.due_at and run.log.due_at <= now:
                        self._fire(run, now)
            upcoming = await self._store.next_due(now)
            if upcoming is not None:
                self._alarm.at(upcoming)
        except WeftlineError:
            logger.exception("due runs could not be read; trying again")
            self._alarm.at(now + _STALL_US)
        finally:
            self._ringing = False
            if self._rang_again:
                self._rang_again = False
                self._alarm.at(now)

    def _fire(self, run: LiveRun, now: int) -> None:
        if now < self._grace_until and self._client_was_cut_off(run.state):
            if run.active:
                heappush(self._deadlines, (self._grace_until, run.key))
            self._alarm.at(self._grace_until)
            return
        fired = TimerFired(now)
        if accepts(run.state, fired):
            self.driver.record(run, (Draft(fired),))
            self.consider(run)

    def _client_was_cut_off(self, state: State) -> bool:
        """Whether a client had a call open while this server was down or stalled, and so could not answer it."""
        opened_before = self._away_until + state.limits.local_timeout_us
        return any((question.deadline_at or 0) < opened_before for question in state.questions.open.values())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("continuing the due runs failed", exc_info=task.exception())
