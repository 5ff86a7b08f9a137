"""The runs in memory: how they come and go.

Only active runs are here and, for a few seconds, those that were just parked. `Residency` draws the phases of a run;
`dispatcher.py` moves it from one to the next, and `loader.py` loads it from the store.
"""

from __future__ import annotations

from collections.abc import Callable

from weftline.runtime import ids
from weftline.runtime.budgets.ledger import Account, Ledger
from weftline.runtime.fleet.behind import BehindRuns
from weftline.runtime.fleet.idle_runs import IdleRuns
from weftline.runtime.hub import Hub
from weftline.runtime.live import BEHIND, GONE, LiveRun
from weftline.store.base import LogStore


class Residents:
    def __init__(self, store: LogStore, *, hub: Hub, ledger: Ledger, on_idle: Callable[[LiveRun], None]) -> None:
        """`on_idle` is called with a run that has been parked for a while."""
        self._store = store
        self._hub = hub
        self._ledger = ledger
        self.runs: dict[int, LiveRun] = {}
        self.kept = IdleRuns(on_idle)
        self.behind = BehindRuns()
        self.leaving: dict[int, LiveRun] = {}
        """Runs that start over, until their drivers have left and everything pending has been written."""

    def add(self, run: LiveRun) -> None:
        """Adds a run that was created or loaded."""
        self.runs[run.key] = run
        run.work.account = Account(
            self._ledger,
            key=run.key,
            workspace=run.workspace,
            thread=run.thread,
            plan=run.work.plan,
            parent=run.state.parent,
        )
        if run.residency is BEHIND:
            self.behind.add(run)

    def has_children_of(self, run: LiveRun) -> bool:
        return any(ids.key_of(child) in self.runs for child in run.state.open_children)

    def unload(self, run: LiveRun) -> None:
        """Removes a run from memory; it can be loaded again."""
        state = run.log.state
        if run.thread is not None and (state.ended or run.residency is not BEHIND):
            self.behind.drop(run)
        run.move(GONE)
        self.kept.drop(run)
        release_code(run)
        if state.parent is not None:
            parent = self.runs.get(ids.parent_key(state.parent))
            if parent is not None and not parent.active:
                self.kept.keep(parent)
        if self.runs.get(run.key) is run:
            del self.runs[run.key]
            self._store.release(run.key, run.log.epoch)
            if not state.ended:
                self._hub.forget(run.key)

    def discard(self, run: LiveRun) -> None:
        """Drops a run whose memory is ahead of a log that will not catch up."""
        self.behind.drop(run)  # until it is loaded again, if it was ever written
        self.unload(run)
        if run.task is not None:
            self._end_driver(run)

    def start_over(self, run: LiveRun) -> None:
        """Removes a run from memory, to continue it from its log. What it had appended is written first."""
        self.behind.drop(run)
        self.kept.drop(run)
        run.move(GONE)
        release_code(run)
        del self.runs[run.key]
        self._end_driver(run)

    def _end_driver(self, run: LiveRun) -> None:
        """Stops the driver before the run is loaded again, so that no call is made twice at the same time."""
        self.leaving[run.key] = run
        if run.task is not None:
            run.task.cancel()

    def driver_left(self, run: LiveRun) -> None:
        """Called when the driver of a run that is gone has left."""
        release_code(run)  # its tools may have been opened after it was unloaded
        if run.log.outbox.empty and self.leaving.get(run.key) is run:
            del self.leaving[run.key]


def release_code(run: LiveRun) -> None:
    """Notifies the agent's code that the run leaves memory."""
    toolbox = run.work.toolbox
    if toolbox is not None and toolbox.code is not None:
        toolbox.code.leave()
