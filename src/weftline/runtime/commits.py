"""What follows from a commit. It is tied to the commit itself, never to the caller that caused it.

Readers are notified, the next run of the thread may move, the parent of a run hears of its end, and a run that has
ended leaves memory. If a commit fails for good, the run continues from its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol

from weftline.errors import NotFound
from weftline.kernel.entries import RunEnded
from weftline.kernel.policy import CapReached
from weftline.runtime import ids
from weftline.runtime.budgets import Ledger
from weftline.runtime.failures import report_doubts, report_failure
from weftline.runtime.hub import Hub, committed_batch
from weftline.runtime.lineage import Lineage, publish_waits
from weftline.runtime.live import BEHIND, Draft, LiveRun
from weftline.runtime.log import Log
from weftline.runtime.recovery import Recovery
from weftline.runtime.retained import RetainedRuns
from weftline.runtime.timers import Timers
from weftline.store.base import Progress, Write, Written

logger = logging.getLogger(__name__)

_ENDED = Progress.ENDED
_head = attrgetter("head")


class Fleet(Protocol):
    """What commits need from the runs in memory."""

    @property
    def runs(self) -> Mapping[int, LiveRun]: ...

    @property
    def log(self) -> Log: ...

    @property
    def stopping(self) -> bool: ...

    async def load_surely(self, key: int) -> LiveRun:
        """Brings a run into memory, as soon as the store can be read."""
        ...

    def consider(self, run: LiveRun) -> None:
        """Schedules the run if there is something to do."""
        ...

    def take(self, run: LiveRun, fact: Draft) -> None:
        """Appends a fact that another run has brought, if it still has a basis, and carries the run on."""
        ...

    def move_up(self, run: LiveRun) -> None:
        """No earlier run of its thread is left."""
        ...

    def unload(self, run: LiveRun) -> None:
        """It leaves memory."""
        ...

    def discard(self, run: LiveRun) -> None:
        """Its memory is ahead of a log that will not catch up."""
        ...

    def cut_children(self, run: LiveRun) -> None:
        """Cancels the children of a run whose time is up."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...


class Commits:
    """The log's observer."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        kept: RetainedRuns,
        hub: Hub,
        ledger: Ledger,
        timers: Timers,
        recovery: Recovery,
        lineage: Lineage,
    ) -> None:
        self._fleet = fleet
        self._kept = kept
        self._hub = hub
        self._ledger = ledger
        self._timers = timers
        self._recovery = recovery
        self._lineage = lineage
        self.on_ended: Callable[[], None] | None = None
        """Called after a commit that ended a run, or asked people something."""
        self.on_unopened_end: Callable[[LiveRun], None] | None = None
        """Called after a commit that ended a run whose tools were not needed here."""

    def committed(self, run: LiveRun, write: Write, drafts: Sequence[Draft], result: Written, *, size: int) -> None:
        self._kept.sweep_if_full()
        if write.items:
            facts = [*map(_head, drafts)]
            batch = committed_batch(run.id, write, facts, first_seq=result.first_seq, size=size)
            self._hub.publish(run.key, batch, workspace=run.workspace)
        if write.progress is _ENDED:
            self._recovery.progressed(run.key)
        state = run.log.state
        parent = state.parent
        if parent is not None and (write.progress is _ENDED or write.answered or write.status == "paused"):
            self._hub.notify_below(ids.root_key(parent))
        if parent is not None:
            publish_waits(self._fleet.runs, self._fleet.take, run)
        if state.guards.doubts:
            report_doubts(run.work, drafts)
        if write.new is not None and run.residency is BEHIND and not result.queued:
            self._fleet.move_up(run)
        elif run.log.due_at and not run.active:
            self._timers.at(run.log.due_at)  # an alarm that rang before this commit did not see it
        if result.promoted is not None:
            self._promote(result.promoted)
        if state.policy.reached and any(isinstance(draft.head, CapReached) for draft in drafts):
            self._fleet.cut_children(run)
        for child in write.children:
            self._hub.begun(child)
            self._fleet.spawn(self._lineage.wake(child.key))
        if write.wakes is not None and not self._lineage.hand_over(run, write):
            self._fleet.spawn(self._lineage.wake(write.wakes))
        if self.on_ended is not None and (write.awaits or write.ended_at is not None):
            self.on_ended()
        if write.ended_at is not None:
            self._recovery.ended(run.key)
            if write.closes is not None:
                self._ledger.forget(write.closes)
            report_failure(run.work, drafts)
            toolbox = run.work.toolbox
            if toolbox is not None and toolbox.code is not None:
                last = drafts[-1]
                assert isinstance(last.head, RunEnded)
                toolbox.code.ended(last.head, last.body, run.work.conversation.memory)
            elif toolbox is None and self.on_unopened_end is not None:
                self.on_unopened_end(run)
            if not run.active and run.log.outbox.empty:
                self._fleet.unload(run)

    def _promote(self, key: int) -> None:
        run = self._fleet.runs.get(key)
        if run is None:
            self._fleet.spawn(self._promote_later(key))
        elif run.residency is BEHIND:
            self._fleet.move_up(run)

    async def _promote_later(self, key: int) -> None:
        run = await self._fleet.load_surely(key)
        if run.residency is BEHIND:
            self._fleet.move_up(run)
        else:
            self._fleet.consider(run)

    def lost(self, run: LiveRun) -> None:
        """The run's memory was ahead of its log and is gone; the run continues from the log."""
        self._fleet.discard(run)
        if self._fleet.log.refusal is None and not self._fleet.stopping:
            self._fleet.spawn(self._load_again(run.key))

    def unwritable(self, run: LiveRun, error: Exception) -> None:
        """As if its driver had failed: it is tried again from the log, and given up after the third time."""
        logger.error("run %s: it cannot be written", run.id, exc_info=error)
        self._fleet.discard(run)
        if not self._fleet.stopping:
            self._fleet.spawn(self._recovery.again(run.key, error))

    async def _load_again(self, key: int) -> None:
        await asyncio.sleep(0.1)
        try:
            self._fleet.consider(await self._fleet.load_surely(key))
        except NotFound:
            pass  # its first write failed: it never existed

    def store_is_well(self) -> None:
        """Picks up the runs that were dropped while the store refused."""
        if not self._fleet.stopping:
            self._fleet.spawn(self._recovery.pick_up())
