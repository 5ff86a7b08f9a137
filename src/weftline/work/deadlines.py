"""Time limits for many tasks at once: one loop timer per length of limit, not one per task.

    with deadlines.after(120.0):
        ...  # TimeoutError after 120 seconds

The same guarantees as `asyncio.timeout` at a fraction of the cost: limits of one length expire in the order in which
they began, so only the oldest needs a timer, and entering or leaving one awaits nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from types import TracebackType
from typing import Any

from msgspec import Struct


class Deadlines:
    """All methods belong to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits: dict[float, _Limit] = {}

    def after(self, seconds: float) -> Deadline:
        limit = self._limits.get(seconds)
        if limit is None:
            limit = self._limits[seconds] = _Limit(seconds, self._loop, self._forget)
        return Deadline(limit)

    def __len__(self) -> int:
        """Returns the number of lengths in use."""
        return len(self._limits)

    def _forget(self, seconds: float) -> None:
        """Drops an unused length. What is left of a budget differs each time, so lengths must not accumulate."""
        self._limits.pop(seconds, None)


class Deadline(Struct, eq=False):
    _limit: _Limit
    expired: bool = False
    """Whether this deadline caused a `TimeoutError`: the code inside may raise its own."""
    at_s: float = 0.0
    _task: asyncio.Task[Any] | None = None
    """The task that is inside."""
    _cancelling: int = 0
    """How many cancellations it had when it came."""

    def __enter__(self) -> None:
        limit = self._limit
        task = self._task = asyncio.current_task(limit.loop)
        assert task is not None
        self._cancelling = task.cancelling()
        self.at_s = limit.loop.time() + limit.seconds
        limit.open[self] = None
        if not limit.has_timer:
            limit.set_timer(self.at_s)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._limit.open.pop(self, None)
        task, self._task = self._task, None
        # A cancellation by someone else at the same time is passed on.
        if self.expired and task and task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error

    def expire(self) -> None:
        """Cancels the task once: a second cancellation, or one after the task has left, would never be undone."""
        if not self.expired and self._task is not None:
            self.expired = True
            self._task.cancel()


class _Limit:
    """The deadlines of one length, oldest first."""

    def __init__(self, seconds: float, loop: asyncio.AbstractEventLoop, on_idle: Callable[[float], None]) -> None:
        self.seconds = seconds
        self.loop = loop
        self._on_idle = on_idle
        self.open: dict[Deadline, None] = {}
        self.has_timer = False
        """Whether a timer is set for the oldest."""
        self._context = Context()
        """Without it, the timer would run in the context of the call that set it, and keep that call's run in
        memory.
        """

    def set_timer(self, at_s: float) -> None:
        self.has_timer = True
        self.loop.call_at(at_s, self._ring, context=self._context)

    def _ring(self) -> None:
        self.has_timer = False
        while self.open:
            oldest = next(iter(self.open))
            if oldest.at_s > self.loop.time():
                self.set_timer(oldest.at_s)
                return
            del self.open[oldest]
            oldest.expire()
        self._on_idle(self.seconds)
