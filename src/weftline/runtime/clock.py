"""The wall clock, replaceable. Waiting is the event loop's job."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from weftline.errors import StoreError
from weftline.store.base import LogReader

logger = logging.getLogger(__name__)

_REPORT_US = 1_000_000
"""A clock that is set back by less is not worth a warning."""
_BEHIND_US = 5_000_000
"""A clock that is behind the latest entry by less may be that of another machine."""
_MARK_US = 1_000_000
"""How often the two clocks are compared, at most."""


class Clock(Protocol):
    def now_us(self) -> int:
        """Microseconds since the epoch, UTC."""
        ...


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000


async def report_if_behind(clock: Clock, log: LogReader) -> None:
    """Logs a warning if the clock is behind that of the process which wrote last."""
    try:
        latest_us = await log.latest_at()
    except StoreError:
        return  # what cannot be read is reported by whoever needs it
    behind_us = latest_us - clock.now_us()
    if behind_us > _BEHIND_US:
        logger.warning(
            "the system's clock is about %.0f s behind the latest entry of the store; has it been set back?"
            " Deadlines that were set before are late by as much",
            behind_us / 1_000_000,
        )


class SteadyClock:
    """The wall clock, except that it never goes back.

    When the system's clock is set back, it goes on from the time that it would have been, so that what is due in three
    seconds is not due in an hour and three seconds. Its times are then ahead of the system's until that is set right
    again, or the next start. For times that belong to runs, and for one thread; schedules and credentials go by the
    system's clock.
    """

    def __init__(
        self, wall: Callable[[], int] = time.time_ns, *, monotonic: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._ahead_us = 0
        """By how much the latest time was ahead of the system's."""
        self._latest = 0
        # What the time was at some moment of the monotonic clock. Reading that one too for every time would cost runs
        # more than it is worth.
        self._marked_us, self._marked_at_ns = 0, 0
        self._mark_again = 0

    def now_us(self) -> int:
        wall = self._wall() // 1000
        if wall < self._latest:
            return self._advance(wall)
        self._latest = wall
        if wall >= self._mark_again:
            self._ahead_us = 0
            self._marked_us, self._marked_at_ns = wall, self._monotonic()
            self._mark_again = wall + _MARK_US
        return wall

    def _advance(self, wall: int) -> int:
        """The time, while the system's clock is behind."""
        elapsed_us = (self._monotonic() - self._marked_at_ns) // 1000
        self._latest = now = max(self._latest, self._marked_us + elapsed_us)
        self._mark_again = 0  # as soon as it is set right
        back_us = now - wall - self._ahead_us
        self._ahead_us = now - wall
        if back_us > _REPORT_US:
            logger.warning(
                "the system's clock was set back by about %.0f s: until the next start, times in the logs of runs"
                " are ahead of it by about %.0f s",
                back_us / 1_000_000,
                self._ahead_us / 1_000_000,
            )
        return now
