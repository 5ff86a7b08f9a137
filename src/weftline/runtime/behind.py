"""New runs that wait for earlier runs of their threads, counted by workspace."""

from __future__ import annotations

from weftline.runtime.live import LiveRun


class BehindRuns:
    def __init__(self) -> None:
        self._keys: dict[int, set[int]] = {}

    def add(self, run: LiveRun) -> None:
        self._keys.setdefault(run.workspace, set()).add(run.key)

    def drop(self, run: LiveRun) -> None:
        """It moves up, or leaves memory."""
        keys = self._keys.get(run.workspace)
        if keys is not None and run.key in keys:
            keys.remove(run.key)
            if not keys:
                del self._keys[run.workspace]

    def count(self, workspace: int) -> int:
        return len(self._keys.get(workspace, ()))
