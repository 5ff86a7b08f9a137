"""Runs that are queued behind earlier runs of their threads, counted by workspace, whether or not they are in
memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from weftline.runtime.live import LiveRun


class BehindRuns:
    def __init__(self) -> None:
        self._keys: dict[int, set[int]] = {}

    def found(self, stored: Iterable[tuple[int, int]]) -> None:
        """Adds the queued runs that an earlier process left, by key, each with its workspace."""
        for key, workspace in stored:
            self._keys.setdefault(workspace, set()).add(key)

    def add(self, run: LiveRun) -> None:
        self._keys.setdefault(run.workspace, set()).add(run.key)

    def drop(self, run: LiveRun) -> None:
        """Called when the run has moved up, has ended, or was never written."""
        keys = self._keys.get(run.workspace)
        if keys is not None and run.key in keys:
            keys.remove(run.key)
            if not keys:
                del self._keys[run.workspace]

    @property
    def total(self) -> int:
        return sum(map(len, self._keys.values()))

    def count(self, workspace: int) -> int:
        return len(self._keys.get(workspace, ()))
