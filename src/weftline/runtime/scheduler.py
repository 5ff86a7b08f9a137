"""Which runs may be driven now: workspaces take turns, and none of them can take every place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from weftline.runtime.live import LiveRun

MOST = 8192
MOST_EACH = 2048


class Scheduler:
    """Calls `start` for runs, at most `MOST` at a time and `MOST_EACH` of one workspace; the rest waits in line."""

    def __init__(self, start: Callable[[LiveRun], None]) -> None:
        self._start = start
        self._most = MOST
        self._most_each = MOST_EACH
        self._active: dict[int, int] = {}
        self._total = 0
        self._lines: dict[int, deque[LiveRun]] = {}

    @property
    def active(self) -> int:
        return self._total

    def submit(self, run: LiveRun) -> None:
        line = self._lines.get(run.workspace)
        if line is None and self._free(run.workspace):
            self._begin(run)
            return
        if line is None:
            line = self._lines[run.workspace] = deque()
        line.append(run)

    def finished(self, run: LiveRun) -> None:
        self._total -= 1
        left = self._active[run.workspace] - 1
        if left:
            self._active[run.workspace] = left
        else:
            del self._active[run.workspace]
        if self._lines:
            self._next()

    def _next(self) -> None:
        for workspace in list(self._lines):
            if not self._free(workspace):
                continue
            line = self._lines.pop(workspace)
            run = line.popleft()
            if line:
                self._lines[workspace] = line  # to the end of the round
            self._begin(run)
            return

    def _free(self, workspace: int) -> bool:
        return self._total < self._most and self._active.get(workspace, 0) < self._most_each

    def _begin(self, run: LiveRun) -> None:
        self._total += 1
        self._active[run.workspace] = self._active.get(run.workspace, 0) + 1
        self._start(run)
