"""The wall clock, replaceable. Waiting is the event loop's job."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)

_REPORT_US = 1_000_000
"""A clock that is set back by less is not worth a warning."""


class Clock(Protocol):
    def now_us(self) -> int:
        """Microseconds since the epoch, UTC."""
        ...


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000


class SteadyClock:
    """The wall clock, except that it never goes back.

    When the system's clock is set back, it continues from the latest time it has returned, so that what is due in three
    seconds is not due in an hour and three seconds. Its times are then ahead of the system's until that is set right
    again, or the next start. For times that belong to runs, and for one thread; schedules and credentials go by the
    system's clock.
    """

    def __init__(self, wall: Callable[[], int] = time.time_ns) -> None:
        self._wall = wall
        self._ahead_us = 0
        self._latest = 0

    def now_us(self) -> int:
        wall = self._wall() // 1000
        if wall >= self._latest:
            self._ahead_us, self._latest = 0, wall
            return wall
        now = wall + self._ahead_us
        if now < self._latest:
            back_us = self._latest - now
            self._ahead_us += back_us
            if back_us > _REPORT_US:
                logger.warning(
                    "the system's clock was set back by about %.0f s: until the next start, times in the logs of runs"
                    " are ahead of it by about %.0f s",
                    back_us / 1_000_000,
                    self._ahead_us / 1_000_000,
                )
            return self._latest
        self._latest = now
        return now
