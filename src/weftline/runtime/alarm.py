"""The engine's one timer: rings when the earliest run is due, by the wall clock.

Event loop timers stop while a machine is suspended, so it never sleeps longer than half a minute without checking the
wall clock. If it rings late, something stalled the process; it then says by how much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weftline.runtime.clock import Clock

_LONGEST_S = 30.0


class Alarm:
    def __init__(self, ring: Callable[[int], None], *, clock: Clock) -> None:
        self._ring = ring
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._due_at: int | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._planned = 0.0

    def at(self, due_at: int) -> None:
        """Rings at `due_at` at the latest; an earlier time set before still holds."""
        if self._due_at is None or due_at < self._due_at:
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
        wait_s = min(max((self._due_at - self._clock.now_us()) / 1_000_000, 0.0), _LONGEST_S)
        self._planned = self._loop.time() + wait_s
        self._handle = self._loop.call_later(wait_s, self._look)

    def _look(self) -> None:
        self._handle = None
        if self._due_at is None:
            return
        if self._clock.now_us() < self._due_at:
            self._arm()  # early, or only half a minute late: look again, never drop it
            return
        self._due_at = None
        late_us = int((self._loop.time() - self._planned) * 1_000_000)
        self._ring(max(late_us, 0))
