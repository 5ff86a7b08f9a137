"""Which runs may be driven now: workspaces take turns, and none of them can take every slot."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from weftline.runtime.live import LiveRun

MAX_RUNS = 8192


class Scheduler:
    """Calls `start` for runs, up to `max_runs` at a time and `max_per_workspace` of one workspace; the rest queue."""

    def __init__(self, start: Callable[[LiveRun], None], *, max_per_workspace: int, max_runs: int = MAX_RUNS) -> None:
        self._start = start
        self._max_runs = max_runs
        self._max_per_workspace = max_per_workspace
        self._driven: dict[int, int] = {}
        self._total = 0
        self._queues: dict[int, OrderedDict[int, LiveRun]] = {}

    def queued(self, workspace: int) -> int:
        """Returns the number of queued runs of the workspace."""
        return len(self._queues.get(workspace, ()))

    def submit(self, run: LiveRun) -> None:
        queue = self._queues.get(run.workspace)
        if queue is None and self._has_room(run.workspace):
            self._begin(run)
            return
        if queue is None:
            queue = self._queues[run.workspace] = OrderedDict()
        queue[run.key] = run

    def withdraw(self, run: LiveRun) -> None:
        """Withdraws a run that ended while it was queued and no longer needs a slot."""
        queue = self._queues.get(run.workspace)
        if queue is not None and queue.pop(run.key, None) is not None and not queue:
            del self._queues[run.workspace]

    def finished(self, run: LiveRun) -> None:
        self._total -= 1
        left = self._driven[run.workspace] - 1
        if left:
            self._driven[run.workspace] = left
        else:
            del self._driven[run.workspace]
        if self._queues:
            self._begin_next()

    def _begin_next(self) -> None:
        for workspace in list(self._queues):
            if not self._has_room(workspace):
                continue
            queue = self._queues.pop(workspace)
            _, run = queue.popitem(last=False)
            if queue:
                self._queues[workspace] = queue  # to the end of the round
            self._begin(run)
            return

    def _has_room(self, workspace: int) -> bool:
        return self._total < self._max_runs and self._driven.get(workspace, 0) < self._max_per_workspace

    def _begin(self, run: LiveRun) -> None:
        self._total += 1
        self._driven[run.workspace] = self._driven.get(run.workspace, 0) + 1
        self._start(run)
