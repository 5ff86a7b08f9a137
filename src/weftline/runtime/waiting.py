"""Waits for tasks, counting only the time in which they could run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

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
