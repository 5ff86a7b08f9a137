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
from typing import Protocol

from weftline.plan import RunPlan
from weftline.runtime.budgets.ledger import Ledger
from weftline.runtime.clock import Clock
from weftline.runtime.commits import Commits
from weftline.runtime.driver import CUT_S, Driver
from weftline.runtime.fleet.dispatcher import Dispatcher
from weftline.runtime.fleet.lineage import Lineage, OnCalls, note_calls
from weftline.runtime.fleet.loader import Loader
from weftline.runtime.fleet.residents import Residents
from weftline.runtime.fleet.task_set import TaskSet
from weftline.runtime.fleet.timers import Timers
from weftline.runtime.hub import Hub
from weftline.runtime.limits import WorkspaceLimits
from weftline.runtime.live import DRIVEN, GONE, SCHEDULED, LiveRun
from weftline.runtime.log import Log
from weftline.runtime.metrics import Measured, Metrics
from weftline.runtime.recovery import Recovery
from weftline.runtime.waiting import wait_while_running
from weftline.store.base import LogStore

logger = logging.getLogger(__name__)

LAST_TRY_S = 5.0
"""How long a stop waits for a refusing store to accept what is left."""
_MAX_LISTED = 10
"""How many runs one log line names."""


class NewDriver(Protocol):
    """Creates the driver of runs that are appended to this log; the other arguments are those of `Driver`."""

    def __call__(self, log: Log, /, *, on_deadline: Callable[[LiveRun, int], None], on_calls: OnCalls) -> Driver: ...


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
        on_unopened_end: Callable[[LiveRun], None] | None,
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
        self.driver = driver = new_driver(log, on_deadline=timers.watch, on_calls=on_calls)
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
