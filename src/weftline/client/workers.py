"""Threads for tool handlers that block.

A thread cannot be stopped from outside. When a run ends while one of its handlers is still busy, its thread is
abandoned; being a daemon, it does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class HandlerWorkers:
    """At most `size` handlers at once, not counting abandoned ones."""

    def __init__(self, size: int) -> None:
        self._free = asyncio.Semaphore(size)

    async def run(self, call: Callable[[], T]) -> T:
        async with self._free:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[T] = loop.create_future()
            context = contextvars.copy_context()

            def settle(value: T | None, error: BaseException | None) -> None:
                if future.done():
                    return
                if error is None:
                    future.set_result(value)  # pyright: ignore[reportArgumentType]  (None only where T allows it)
                elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                    future.set_exception(error)
                else:
                    future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

            def work() -> None:
                value: T | None = None
                failure: BaseException | None = None
                try:
                    value = context.run(call)
                except BaseException as error:
                    failure = error
                try:
                    loop.call_soon_threadsafe(settle, value, failure)
                except RuntimeError:
                    pass  # the loop is closed, so there is nobody to notify

            threading.Thread(target=work, name="weftline-handler", daemon=True).start()
            return await future
