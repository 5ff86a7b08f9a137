"""Threads for tools that block.

A thread cannot be stopped from outside. When a call is cancelled or times out, its thread is abandoned: the call
continues in it, but another thread takes its place in the pool. The number of abandoned threads is limited, because
each may hold memory and sockets forever; beyond the limit, calls are refused.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from weftline import prompts
from weftline.tools.base import ToolFailed

T = TypeVar("T")

left_behind: ContextVar[Callable[[asyncio.Future[None]], None] | None] = ContextVar("left_behind", default=None)
"""Called with a future for each abandoned call, which is done when the call ends."""


class _Job(Generic[T]):
    __slots__ = ("abandoned", "begun", "call", "context", "done", "ended", "future", "loop")

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.context = contextvars.copy_context()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self.begun = False
        self.done = False
        self.abandoned = False
        self.ended: asyncio.Future[None] | None = None
        """Done when an abandoned call ends, if somebody wants to know."""

    def carry_out(self) -> None:
        try:
            value = self.context.run(self.call)
        except BaseException as error:
            # A future refuses StopIteration, and SystemExit in a tool must not stop the server.
            raised = error if isinstance(error, Exception) and not isinstance(error, StopIteration) else None
            self._report(None, raised or RuntimeError(f"{type(error).__name__}: {error}"))
        else:
            self._report(value, None)

    def _report(self, value: T | None, error: Exception | None) -> None:
        try:
            self.loop.call_soon_threadsafe(_settle, self, value, error)
        except RuntimeError:
            # The loop is closed, so there is nobody to notify.
            pass


class NeverBegan(asyncio.CancelledError):
    """The cancellation of a call of `tool` that was still waiting for a thread, so that it has done nothing."""

    def __init__(self, tool: str, *args: object) -> None:
        super().__init__(*args)
        self.tool = tool


class ToolWorkers:
    """A pool of `size` daemon threads, plus one for each abandoned thread up to `max_abandoned`.

    Threads start when they are needed. They are daemons so that a call that never returns cannot keep the process
    from stopping.
    """

    def __init__(self, *, size: int = 32, max_abandoned: int = 64) -> None:
        self._size = size
        self._max_abandoned = max_abandoned
        self._lock = threading.Condition()
        self._jobs: deque[_Job[Any]] = deque()
        self._idle = 0
        self._threads = 0
        self._abandoned = 0

    @property
    def abandoned(self) -> int:
        """How many threads still execute abandoned calls."""
        return self._abandoned

    async def run(self, call: Callable[[], T], *, tool: str = "") -> T:
        """Runs `call` in a thread, with the caller's contextvars. When cancelled, it returns at once.

        A call that was still queued when it was cancelled never starts.

        Raises:
            NeverBegan: if it was cancelled before it began, and is all that `tool` does.
            ToolFailed: if too many threads are already stuck.
        """
        job = _Job(call)
        with self._lock:
            if self._abandoned >= self._max_abandoned:
                raise ToolFailed(prompts.remote.too_many_stuck(self._abandoned))
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._lock.notify()
            else:
                self._grow()
        try:
            return await job.future
        except asyncio.CancelledError as cancelled:
            if self._give_up(job) and tool:
                raise NeverBegan(tool, *cancelled.args) from None
            raise

    def _give_up(self, job: _Job[Any]) -> bool:
        """Abandons a call; returns whether it had not begun."""
        with self._lock:
            job.abandoned = True
            if not job.begun:
                self._jobs.remove(job)
                return True
            if not job.done:
                self._abandoned += 1
                notify = left_behind.get()
                if notify is not None and job.future.cancelled():  # otherwise it has just reported
                    job.ended = job.loop.create_future()
                    notify(job.ended)
                if len(self._jobs) > self._idle:
                    self._grow()
            return False

    def _grow(self) -> None:
        if self._threads < self._size + self._abandoned:
            self._threads += 1
            threading.Thread(target=self._work, name="weftline-tool", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._jobs:
                    self._idle += 1
                    self._lock.wait()
                    self._idle -= 1
                job = self._jobs.popleft()
                job.begun = True
            job.carry_out()
            with self._lock:
                job.done = True
                if job.abandoned:
                    self._abandoned -= 1
                surplus = self._threads > self._size + self._abandoned
                if surplus:
                    self._threads -= 1
            # An idle thread must not keep the last call's arguments and result alive.
            del job
            if surplus:
                return


def _settle(job: _Job[Any], value: object, error: Exception | None) -> None:
    if job.ended is not None:
        job.ended.set_result(None)
    if job.future.done():
        return
    if error is None:
        job.future.set_result(value)
    else:
        job.future.set_exception(error)


_shared: list[ToolWorkers] = []


def shared_workers() -> ToolWorkers:
    """Returns the pool of this process."""
    if not _shared:
        _shared.append(ToolWorkers())
    return _shared[0]


os.register_at_fork(after_in_child=_shared.clear)  # the threads, and any lock that they hold, are the parent's
