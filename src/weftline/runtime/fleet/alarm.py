"""The engine's one timer: rings when the earliest run is due, by the wall clock.

Event loop timers stop while a machine is suspended, so it never sleeps longer than half a minute without checking the
wall clock. If it wakes up late, by the wall clock or by the loop's, the process was stalled, the machine suspended, or
its clock set; it then reports the delay before it rings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weftline.runtime.clock import Clock

STALL_US = 1_000_000
"""A shorter delay does not count as a stall."""
_LONGEST_S = 30.0


class Alarm:
    """`ring` is called when a run is due, `on_stall` with the delay after a stall."""

    def __init__(self, ring: Callable[[], None], *, on_stall: Callable[[int], None], clock: Clock) -> None:
        self._ring = ring
        self._on_stall = on_stall
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._due_at: int | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._planned_s = 0.0
        self._planned_at = 0

    def at(self, due_at: int) -> None:
        """Rings at `due_at` at the latest; an earlier time set before still holds."""
        if self._due_at is None or due_at < self._due_at:
            if self._handle is not None:
                self._measure()  # the check that is cancelled here may be overdue
            self._due_at = due_at
            self._arm()

    def stop(self) -> None:
        self._due_at = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        assert self._due_at is not None
        now = self._clock.now_us()
        wait_s = min(max((self._due_at - now) / 1_000_000, 0.0), _LONGEST_S)
        self._planned_s = self._loop.time() + wait_s
        self._planned_at = now + int(wait_s * 1_000_000)
        self._handle = self._loop.call_later(wait_s, self._look)

    def _look(self) -> None:
        self._handle = None
        if self._due_at is None:
            return
        self._measure()
        if self._clock.now_us() < self._due_at:
            self._arm()  # early, or just the half-minute check: check again, never drop it
            return
        self._due_at = None
        self._ring()

    def _measure(self) -> None:
        late_us = max(self._clock.now_us() - self._planned_at, int((self._loop.time() - self._planned_s) * 1_000_000))
        if late_us > STALL_US:
            self._on_stall(late_us)
