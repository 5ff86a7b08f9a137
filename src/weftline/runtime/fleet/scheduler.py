"""Which runs may be driven now: workspaces take turns, and none of them can take every slot."""

from __future__ import annotations

from collections.abc import Callable

from weftline.runtime.live import LiveRun
from weftline.work.turns import Turns

MAX_RUNS = 8192


class Scheduler:
    """Calls `start` for runs, up to `max_runs` at a time and `max_per_workspace` of one workspace; the rest queue."""

    def __init__(self, start: Callable[[LiveRun], None], *, max_per_workspace: int, max_runs: int = MAX_RUNS) -> None:
        self._start = start
        self._turns: Turns[LiveRun] = Turns(lambda run: run.workspace, limit=max_runs, per_owner=max_per_workspace)

    def queued(self, workspace: int) -> int:
        """Returns the number of queued runs of the workspace."""
        return self._turns.queue.waiting(workspace)

    def submit(self, run: LiveRun) -> None:
        if self._turns.places.has_room(run.workspace):
            self._turns.places.add(run.workspace)
            self._start(run)
        else:
            self._turns.queue.put(run, owner=run.workspace)

    def withdraw(self, run: LiveRun) -> None:
        """Withdraws a run that ended while it was queued and no longer needs a slot."""
        self._turns.queue.withdraw(run, owner=run.workspace)

    def finished(self, run: LiveRun) -> None:
        self._turns.places.remove(run.workspace)
        if self._turns.queue and (next_run := self._turns.admit()) is not None:
            self._start(next_run)
