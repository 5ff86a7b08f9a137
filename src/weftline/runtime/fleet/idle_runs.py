"""Parked runs that stay in memory for a short while, because clients usually answer quickly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weftline.runtime.live import LiveRun

KEEP_S = 5.0
"""How long a parked run stays in memory."""
MAX_RETAINED = 512
_SWEEP_S = 0.1
"""The minimum interval between sweeps: the remaining wait may round to zero."""


class IdleRuns:
    def __init__(self, unload: Callable[[LiveRun], None]) -> None:
        """`unload` gets a run that has been parked for a while and has nothing waiting to be written."""
        self._unload = unload
        self._loop = asyncio.get_running_loop()
        self._runs: dict[int, LiveRun] = {}
        """Longest parked first."""
        self._busy: dict[int, LiveRun] = {}
        """Those that could not be unloaded at the latest sweep. They do not count: others would have to leave for them,
        and come back for nothing.
        """
        self._timer: asyncio.TimerHandle | None = None
        self._sweeping_soon = False

    def keep(self, run: LiveRun) -> None:
        self.drop(run)
        self._add(run)
        self.sweep_if_full()
        if self._timer is None:
            self._timer = self._loop.call_later(KEEP_S, self._sweep)

    def drop(self, run: LiveRun) -> None:
        """Called when the run is active again, or gone."""
        self._runs.pop(run.key, None)
        self._busy.pop(run.key, None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def sweep_if_full(self) -> None:
        if len(self._runs) > MAX_RETAINED and not self._sweeping_soon:
            # Not right here: a commit may be only partly announced, and its runs are not idle before that.
            self._sweeping_soon = True
            self._loop.call_soon(self._sweep_soon)

    def _add(self, run: LiveRun) -> None:
        run.touched_s = self._loop.time()
        self._runs[run.key] = run

    def _sweep_soon(self) -> None:
        self._sweeping_soon = False
        self._sweep()

    def _sweep(self) -> None:
        """Releases runs that have been parked for a while, and the oldest if there are too many."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for run in [run for run in self._busy.values() if not _is_busy(run)]:
            del self._busy[run.key]
            self._add(run)
        for run in [run for run in self._runs.values() if _is_busy(run)]:
            self._busy[run.key] = self._runs.pop(run.key)
        now = self._loop.time()
        # Some more than necessary, as a sweep looks at all of them.
        most = MAX_RETAINED if len(self._runs) <= MAX_RETAINED else MAX_RETAINED - MAX_RETAINED // 8
        for run in list(self._runs.values()):
            if len(self._runs) <= most and run.touched_s > now - KEEP_S:
                break
            self._runs.pop(run.key, None)
            self._unload(run)
        if self._timer is None and (self._runs or self._busy):
            oldest_s = next((run.touched_s for run in self._runs.values()), now)
            self._timer = self._loop.call_later(max(oldest_s + KEEP_S - now, _SWEEP_S), self._sweep)


def _is_busy(run: LiveRun) -> bool:
    """Returns True if the run has something waiting to be written, or its tools are being opened: whoever answers it
    needs them, and would open them again and again.
    """
    return not run.log.outbox.empty or run.driving.is_opening
