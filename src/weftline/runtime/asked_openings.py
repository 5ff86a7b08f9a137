"""Openings of tools that requests wait for: one for each run, however many wait, and only as long as somebody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from weftline.errors import Unavailable
from weftline.runtime.live import LiveRun
from weftline.work.turns import current_caller

OPEN_S = 90.0
"""How long a request waits for the tools of its run: longer than the slowest MCP server may take to start."""


class _Opening(Struct, eq=False):
    opening: asyncio.Task[None]
    ended: asyncio.Task[None]
    """Done when the run has ended."""
    waiters: dict[asyncio.Future[None], None]


class AskedOpenings:
    """`open_tools` opens the tools of a run; `until_ended` returns when the run has ended."""

    def __init__(
        self,
        open_tools: Callable[[LiveRun], Coroutine[Any, Any, None]],
        *,
        until_ended: Callable[[LiveRun], Coroutine[Any, Any, None]],
    ) -> None:
        self._open_tools = open_tools
        self._until_ended = until_ended
        self._loop = asyncio.get_running_loop()
        self._openings: dict[LiveRun, _Opening] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """With those that were cancelled, until they have ended."""
        self._stopped = False

    async def wait(self, run: LiveRun) -> None:
        """Returns when the tools of the run are open, or when it has ended without them.

        Raises `Unavailable` after `OPEN_S` and when the engine stops, and `ConnectionResetError` when the caller goes
        away. Others keep waiting then.
        """
        if self._stopped:
            raise _stopping()
        opening = self._openings.get(run) or self._begin(run)
        waiter = self._loop.create_future()
        opening.waiters[waiter] = None
        caller = current_caller.get()
        if caller is not None:
            caller.then(lambda: waiter.done() or waiter.set_exception(ConnectionResetError()))
        limit = asyncio.timeout(OPEN_S)
        try:
            async with limit:
                await waiter
        except TimeoutError:
            if not limit.expired():
                raise  # the opening's own
            raise Unavailable("The tools of this run take too long to open.", retry_after_s=5) from None
        finally:
            del opening.waiters[waiter]
            if not opening.waiters:
                self._end(run, opening)

    def stop(self) -> None:
        """Refuses everybody who waits, or comes later."""
        self._stopped = True
        for run, opening in list(self._openings.items()):
            self._notify(opening, _stopping())
            self._end(run, opening)

    def _begin(self, run: LiveRun) -> _Opening:
        opening = _Opening(
            self._loop.create_task(self._open_tools(run)), self._loop.create_task(self._until_ended(run)), {}
        )
        self._openings[run] = opening

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if task is opening.ended and error is not None:
                return  # the end goes unnoticed, but the tools may still open
            if task.cancelled() or isinstance(error, ConnectionResetError):
                # Neither the request was cancelled nor its client gone: the code that opens the tools has failed.
                failure = RuntimeError("the tools could not be opened")
                failure.__cause__ = asyncio.CancelledError() if error is None else error
                error = failure
            self._notify(opening, error)
            self._end(run, opening)

        for task in (opening.opening, opening.ended):
            self._tasks.add(task)
            task.add_done_callback(done)
        return opening

    def _notify(self, opening: _Opening, error: BaseException | None) -> None:
        for waiter in opening.waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    def _end(self, run: LiveRun, opening: _Opening) -> None:
        """Cancels what is still under way, unless that has happened."""
        if self._openings.get(run) is opening:
            del self._openings[run]
            opening.opening.cancel()
            opening.ended.cancel()


def _stopping() -> Unavailable:
    return Unavailable("The server is stopping.", retry_after_s=1)
