"""Forwards calls from other threads and loops to the event loop of an engine."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from weftline.errors import Conflict
from weftline.runtime.engine import Engine, EntryBatch, Follower

T = TypeVar("T")


async def call(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Awaits `work` on another loop, with the caller's context variables; cancelling the call cancels the work."""
    context = copy_context()

    async def there() -> T:
        return await loop.create_task(work(), context=context)

    carried = there()
    try:
        future = asyncio.run_coroutine_threadsafe(carried, loop)
    except RuntimeError:
        carried.close()
        raise Conflict("The event loop that this engine ran on is closed.") from None
    return await asyncio.wrap_future(future)


class LoopProxy:
    """A runtime as seen from another loop: its methods run on its own loop."""

    def __init__(self, host: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._host, name)
        if not inspect.iscoroutinefunction(value):
            return value

        def forwarded(*args: Any, **given: Any) -> Coroutine[Any, Any, Any]:
            return call(self._loop, partial(value, *args, **given))

        return forwarded

    def follow(self, key: int, run_id: str, *, after: int = 0, workspace: int = 0) -> _FollowerProxy:
        return _FollowerProxy(self._loop, partial(self._host.follow, key, run_id, after=after, workspace=workspace))


class _FollowerProxy:
    def __init__(self, loop: asyncio.AbstractEventLoop, follow: Callable[[], Follower]) -> None:
        self._loop = loop
        self._follow = follow
        self._follower: Follower | None = None

    async def next(self) -> Sequence[EntryBatch] | None:
        return await call(self._loop, self._following)

    async def _following(self) -> Sequence[EntryBatch] | None:
        if self._follower is None:
            self._follower = self._follow()
        return await self._follower.next()

    def close(self) -> None:
        if self._follower is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._follower.close)
