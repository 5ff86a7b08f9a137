"""Background work: kept until it has ended, waited for while it can run, and large pieces one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

logger = logging.getLogger(__name__)


class TaskSet:
    """`purpose` names the work in the log of a failure. All methods belong to one event loop."""

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", self._purpose, exc_info=error)


T = TypeVar("T", bound=asyncio.Task[Any])

_SLICE_S = 1.0


async def wait_while_running(tasks: Iterable[T], *, timeout_s: float) -> set[T]:
    """Waits until all are done, `timeout_s` at most; returns those that are not.

    While the loop is blocked (a frozen process, a swapping machine), no task can run, so each interval counts as one
    second at most: what has arrived in the meantime is still processed.
    """
    late = {task for task in tasks if not task.done()}
    while late and timeout_s > 0:
        slice_s = min(timeout_s, _SLICE_S)
        _, late = await asyncio.wait(late, timeout=slice_s)
        timeout_s -= slice_s
    return late


async def wait_through(tasks: Iterable[T], *, timeout_s: float) -> set[T]:
    """`wait_while_running` for a task that may be cancelled meanwhile: it waits to the end, then raises that
    cancellation.
    """
    waiting = asyncio.ensure_future(wait_while_running(tasks, timeout_s=timeout_s))
    cancelled: asyncio.CancelledError | None = None
    while not waiting.done():
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return waiting.result()


LARGE_CHARS = 256 * 1024
"""Arguments of this size take a noticeable time to parse, check and encode."""


class LargeSteps:
    """All methods belong to one event loop."""

    def __init__(self) -> None:
        self._next = asyncio.Lock()

    async def wait_for_slot(self) -> None:
        """Waits until a large step may be taken: at most one per loop iteration, however many wait."""
        async with self._next:
            await asyncio.sleep(0)
