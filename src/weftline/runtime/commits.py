"""The consequences of a commit. They depend on the commit itself, never on the caller that caused it.

Readers are notified, the next run of the thread may start, a parent run learns of its child's end, and a run that has
ended leaves memory. If a commit fails for good, the run continues from its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from weftline.errors import NotFound
from weftline.kernel.entries import RunEnded
from weftline.kernel.policy import CapReached
from weftline.runtime import ids
from weftline.runtime.budgets.ledger import Ledger
from weftline.runtime.engine import EntryBatch
from weftline.runtime.fleet.holding import Residents, RunDispatcher, RunLoader
from weftline.runtime.fleet.lineage import Lineage, publish_waits
from weftline.runtime.fleet.timers import Timers
from weftline.runtime.hub import Hub
from weftline.runtime.live import BEHIND, LiveRun
from weftline.runtime.metrics import Metrics
from weftline.runtime.public_errors import report_doubts, report_failure
from weftline.runtime.recovery import Recovery
from weftline.runtime.tasks import TaskSet
from weftline.store.rows import Progress, Write, Written

logger = logging.getLogger(__name__)

_ENDED = Progress.ENDED


class Commits:
    """The log's observer. `on_unopened_end` is called after a commit that ended a run whose tools were never opened
    here.
    """

    def __init__(
        self,
        residents: Residents,
        loader: RunLoader,
        dispatcher: RunDispatcher,
        tasks: TaskSet,
        *,
        hub: Hub,
        ledger: Ledger,
        timers: Timers,
        recovery: Recovery,
        lineage: Lineage,
        metrics: Metrics,
        on_unopened_end: Callable[[LiveRun], None],
    ) -> None:
        self._residents = residents
        self._kept = residents.kept
        self._loader = loader
        self._dispatcher = dispatcher
        self._tasks = tasks
        self._hub = hub
        self._ledger = ledger
        self._timers = timers
        self._recovery = recovery
        self._trials = recovery.trials
        self._lineage = lineage
        self._metrics = metrics
        self._on_unopened_end = on_unopened_end
        self._on_ended: Callable[[], None] | None = None

    def watch_ends(self, ended: Callable[[], None] | None) -> None:
        """Calls `ended` after each commit that ended a run or opened an await; None switches this off."""
        self._on_ended = ended

    def committed(self, run: LiveRun, write: Write, result: Written) -> None:
        log, active = run.log, run.active
        ended = write.ended_at is not None
        self._metrics.committed(write)
        if write.items:
            batch = EntryBatch(
                run.work.run_id,
                write.items,
                size=write.size,
                last_seq=log.durable,
                ended=ended,
                heads=write.facts,
                key=run.key,
            )
            self._hub.publish(run.key, batch, workspace=run.workspace)
        if write.progress is _ENDED:
            self._recovery.progressed(run.key)
        state = log.state
        parent = state.parent
        if parent is not None:
            if write.progress is _ENDED or write.answered or write.status == "paused":
                self._hub.notify_below(ids.root_key(parent))
            publish_waits(self._residents.runs, self._dispatcher.take, run)
        if state.guards.doubts:
            report_doubts(run.work, write.facts)
        if write.new is not None and run.residency is BEHIND and not result.queued:
            self._dispatcher.move_up(run)
        elif log.due_at and not active:
            self._timers.at(log.due_at)  # an alarm that rang before this commit did not see this run
        if result.promoted is not None:
            self._promote(result.promoted)
        if state.policy.reached and any(isinstance(head, CapReached) for head in write.facts):
            self._lineage.cut_children(run)
        for child in write.children:
            self._hub.begun(child)
            self._tasks.spawn(self._lineage.wake(child.key))
        if write.wakes is not None and not self._lineage.hand_over(run, write):
            self._tasks.spawn(self._lineage.wake(write.wakes))
        if self._on_ended is not None and (write.awaits or ended):
            self._on_ended()
        if ended:
            self._ended(run, write)
        elif not active:
            self._kept.sweep_if_full()

    def _ended(self, run: LiveRun, write: Write) -> None:
        self._trials.ended(run.key)
        if write.closes is not None:
            self._ledger.forget(write.closes)
        work, head = run.work, write.facts[-1]
        assert isinstance(head, RunEnded)
        if head.status == "failed":
            report_failure(work, head, write.items[-1].body)
        if work.toolbox is None:
            self._on_unopened_end(run)
        elif work.toolbox.code is not None:
            work.toolbox.code.ended(head, write.items[-1].body, work.conversation.shared.values)
        if not run.active and run.log.outbox.empty:
            self._residents.unload(run)

    def _promote(self, key: int) -> None:
        run = self._residents.runs.get(key)
        if run is None:
            self._tasks.spawn(self._promote_later(key))
        elif run.residency is BEHIND:
            self._dispatcher.move_up(run)

    async def _promote_later(self, key: int) -> None:
        run = await self._loader.load_with_retry(key)
        if run.residency is BEHIND:
            self._dispatcher.move_up(run)
        else:
            self._dispatcher.consider(run)

    def lost(self, run: LiveRun, *, refused: bool) -> None:
        """Called when the run's memory was ahead of its log and has been dropped; the run continues from the log."""
        self._residents.discard(run)
        if not refused and not self._dispatcher.stopping:
            self._tasks.spawn(self._load_again(run.key))

    def unwritable(self, run: LiveRun, error: Exception) -> None:
        """Treats the run as if its driver had failed: it is tried again from the log, and given up after the third
        time.
        """
        logger.error("run %s: cannot write its log", run.id, exc_info=error)
        self._residents.discard(run)
        if not self._dispatcher.stopping:
            self._tasks.spawn(self._recovery.again(run.key, error))

    async def _load_again(self, key: int) -> None:
        await asyncio.sleep(0.1)
        try:
            self._dispatcher.consider(await self._loader.load_with_retry(key))
        except NotFound:
            pass  # its first write failed: it never existed

    def store_recovered(self) -> None:
        """Resumes the runs that were dropped while the store refused writes."""
        if not self._dispatcher.stopping:
            self._tasks.spawn(self._recovery.pick_up())
