"""Shares one call among many callers, on any loop or thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """While one call is in progress, every caller gets its outcome instead of making another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flight: Future[T] | None = None
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        with self._lock:
            flight = self._flight
            mine = flight is None
            if flight is None:
                flight = self._flight = Future()
        if mine:
            # A separate task: the first caller may be cancelled while the others still wait.
            self._task = asyncio.get_running_loop().create_task(self._fly(flight, call))
        return await asyncio.shield(asyncio.wrap_future(flight))

    async def _fly(self, flight: Future[T], call: Callable[[], Awaitable[T]]) -> None:
        try:
            value = await call()
        except asyncio.CancelledError:
            self._land(flight)
            flight.cancel()
            raise
        except Exception as error:
            self._land(flight)
            flight.set_exception(error)
        else:
            self._land(flight)
            flight.set_result(value)

    def _land(self, flight: Future[T]) -> None:
        with self._lock:
            if self._flight is flight:
                self._flight = None
