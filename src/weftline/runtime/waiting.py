"""Waiting for tasks, measured by the time that they were given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T", bound=asyncio.Task[Any])

_SLICE_S = 1.0


async def wait_while_running(tasks: Iterable[T], *, timeout_s: float) -> set[T]:
    """Waits until all are done, `timeout_s` at most; returns those that are not.

    While the loop stands still (a frozen process, a machine that swaps) nothing can be done, so of each second at most
    one counts: what has arrived in the meantime is still taken in.
    """
    late = {task for task in tasks if not task.done()}
    while late and timeout_s > 0:
        slice_s = min(timeout_s, _SLICE_S)
        _, late = await asyncio.wait(late, timeout=slice_s)
        timeout_s -= slice_s
    return late


async def wait_through(tasks: Iterable[T], *, timeout_s: float) -> set[T]:
    """`wait_while_running` for a task that may be cancelled meanwhile: it waits to the end, then raises that."""
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
