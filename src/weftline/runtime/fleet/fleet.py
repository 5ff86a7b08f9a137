"""All runs of an engine, and the parts that handle them:

* `Residents`: the runs in memory;
* `Loader`: loads each of them once;
* `Dispatcher`: what happens to a run after every fact;
* `Timers`: when a run is due;
* `Lineage`: how parents and children learn of each other;
* `Recovery`: what an earlier process has left;
* `Log`, which writes what they append, and `Commits`, what follows when it is written;
* `Driver`: drives one run.

Each gets what it needs as arguments of its constructor. Where two refer to each other, `connect` passes the one that is
created later to the other, before the first run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from weftline.errors import StoreError, no_such_run
from weftline.plan import RunPlan
from weftline.runtime.budgets.ledger import Ledger
from weftline.runtime.clock import Clock
from weftline.runtime.commits import Commits
from weftline.runtime.driver import CUT_S, Driver
from weftline.runtime.fleet.driving import Dispatcher
from weftline.runtime.fleet.holding import Residents, RunDispatcher, WorkspaceLimits
from weftline.runtime.fleet.lineage import Lineage, OnCalls, note_calls
from weftline.runtime.fleet.timers import Timers
from weftline.runtime.hub import Hub
from weftline.runtime.live import BEHIND, DRIVEN, GONE, SCHEDULED, LiveRun
from weftline.runtime.log import Log
from weftline.runtime.metrics import Measured, Metrics
from weftline.runtime.reads.finding import public_id
from weftline.runtime.recovery import Recovery
from weftline.runtime.tasks import TaskSet, wait_while_running
from weftline.runtime.trials import STORE_RETRY_S
from weftline.store.base import LogStore

logger = logging.getLogger(__name__)


class Loader:
    """`connect` passes it the parts that refer to it, before the first run is loaded."""

    def __init__(self, store: LogStore, residents: Residents, dispatcher: RunDispatcher) -> None:
        self._store = store
        self._residents = residents
        self._dispatcher = dispatcher
        self._loop = asyncio.get_running_loop()
        self._loading: dict[int, asyncio.Task[LiveRun]] = {}

    def connect(self, *, log: Log, driver: Driver, recovery: Recovery, lineage: Lineage) -> None:
        self._log = log
        self._driver = driver
        self._recovery = recovery
        self._lineage = lineage

    def resident(self, key: int) -> LiveRun | None:
        """The run, if it is in memory."""
        return self._residents.runs.get(key)

    async def load(self, key: int) -> LiveRun:
        """The run in memory; a parked one is read from the store.

        Raises `NotFound`, or `Conflict` for a run that is left to a newer version.
        There is no await between finding the run in memory and returning it.
        """
        while (run := self._residents.runs.get(key)) is None:
            loading = self._loading.get(key)
            if loading is None:
                loading = self._loading[key] = self._loop.create_task(self._read(key))
                loading.add_done_callback(lambda task: self._loading_done(key, task))
            loaded = await asyncio.shield(loading)
            if loaded.state.ended:
                return loaded
        return run

    async def load_with_retry(self, key: int) -> LiveRun:
        """Like `load`, for callers that will not retry: waits until the store can be read."""
        while True:
            try:
                return await self.load(key)
            except StoreError as error:
                if self._dispatcher.stopping:
                    raise
                name = await public_id(self._store, key)
                logger.error("run %s cannot be loaded, trying again: %s", name, error.message)
                await asyncio.sleep(STORE_RETRY_S)

    def _loading_done(self, key: int, task: asyncio.Task[LiveRun]) -> None:
        self._loading.pop(key, None)
        if not task.cancelled():
            task.exception()  # the caller may have disconnected since

    async def _read(self, key: int) -> LiveRun:
        residents = self._residents
        if (earlier := residents.leaving.get(key)) is not None:
            if earlier.task is not None:
                await wait_while_running([earlier.task], timeout_s=CUT_S)
            await self._log.settled(earlier)
            residents.leaving.pop(key, None)
        run = await self._recovery.load(key)
        if run is None:
            raise no_such_run()
        if run.residency is BEHIND and not run.state.ended:
            residents.behind.add(run)
        else:
            residents.behind.drop(run)
        if run.state.ended:
            self._store.release(key, run.log.epoch)
            run.move(GONE)
            return run
        try:
            await self._lineage.require_known_above(run)
            ends = await self._lineage.undelivered_ends(run)
        except BaseException:
            self._store.release(key, run.log.epoch)
            raise
        residents.add(run)
        residents.kept.keep(run)
        self._driver.record(run, ends)
        self._lineage.cut_children(run)
        if ends:
            self._dispatcher.consider(run)  # the caller may only want to read it
        return run


LAST_TRY_S = 5.0
"""How long a stop waits for a refusing store to accept what is left."""
_MAX_LISTED = 10
"""How many runs one log line names."""


NewDriver: TypeAlias = Callable[[Log, Callable[[LiveRun, int], None], OnCalls], Driver]
"""Creates the driver of runs that are appended to this log; the others are `on_deadline` and `on_calls` of `Driver`."""


class Fleet:
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
        on_unopened_end: Callable[[LiveRun], None],
    ) -> None:
        self._store = store
        self._hub = hub
        self._metrics = metrics = Metrics()
        self._tasks = tasks = TaskSet("a background task")
        self.residents = residents = Residents(store, hub=hub, ledger=ledger, on_idle=self._idle)
        self.dispatcher = dispatcher = Dispatcher(residents, tasks, limits=limits, knows=knows)
        self.loader = loader = Loader(store, residents, dispatcher)
        self.timers = timers = Timers(store, loader, dispatcher, clock=clock)
        self.lineage = lineage = Lineage(store, loader, dispatcher, tasks)
        self.recovery = recovery = Recovery(store, loader, dispatcher, wake_at=timers.at, max_recoveries=max_recoveries)
        self.commits = Commits(
            residents,
            loader,
            dispatcher,
            tasks,
            hub=hub,
            ledger=ledger,
            timers=timers,
            recovery=recovery,
            lineage=lineage,
            metrics=metrics,
            on_unopened_end=on_unopened_end,
        )
        self.log = log = Log(store, clock=clock, observer=self.commits, metrics=metrics)
        on_calls = partial(note_calls, residents.runs)
        self.driver = driver = new_driver(log, timers.watch, on_calls)
        loader.connect(log=log, driver=driver, recovery=recovery, lineage=lineage)
        dispatcher.connect(log=log, driver=driver, timers=timers, recovery=recovery, lineage=lineage)

    def _idle(self, run: LiveRun) -> None:
        self.dispatcher.unload_idle(run)

    def measure(self) -> Measured:
        """The counts since the start, and how much is going on now."""
        phases = [run.residency for run in self.residents.runs.values()]
        return Measured(
            self._metrics,
            active=phases.count(DRIVEN),
            waiting=phases.count(SCHEDULED) + self.residents.behind.total,
            streams=self._hub.open_streams,
            writable=self.log.refusal is None,
        )

    async def count_queued(self) -> None:
        """Counts the runs that an earlier process has left behind others."""
        self.residents.behind.found(await self._store.queued_behind())

    async def drain(self, drain_s: float) -> None:
        """Starts nothing new, and waits for what is running, `drain_s` at most."""
        self._begin_nothing()
        tasks = [run.task for run in self.residents.runs.values() if run.task is not None]
        await wait_while_running(tasks, timeout_s=drain_s)

    async def abort(self, *, hurry: asyncio.Event | None = None) -> bool:
        """Ends what is still running and makes everything appended durable. Returns whether the store accepted it.

        Once `hurry` is set, a store that refuses writes gets one last try.
        """
        left = {run.task: run for run in self.residents.runs.values() if run.task is not None}
        for task in left:
            task.cancel()
        for task in await wait_while_running(left, timeout_s=CUT_S):
            logger.warning("run %s did not stop; its later output is ignored", left[task].id)
            self.driver.abandon(left[task])
            left[task].move(GONE)
        self._tasks.cancel()
        self.residents.kept.stop()
        lost = await self.log.finish(patience_s=LAST_TRY_S, hurry=hurry)
        if lost:
            count = sum([run.log.next_seq - 1 - run.log.durable for run in lost])
            logger.error(
                "the store still refuses writes; entries lost: %d; runs that continue from what is stored: %d (%s)",
                count,
                len(lost),
                ", ".join([run.id for run in lost[:_MAX_LISTED]]) + (", …" if len(lost) > _MAX_LISTED else ""),
            )
        return not lost

    def abandon(self) -> None:
        """Stops everything immediately, as a crash would, because the engine could not be started."""
        self._begin_nothing()
        self.residents.kept.stop()
        self._tasks.cancel()
        for run in self.residents.runs.values():
            if run.task is not None:
                run.task.cancel()

    def _begin_nothing(self) -> None:
        self.driver.stopping = True
        self.timers.stop()
        self.recovery.stop()
