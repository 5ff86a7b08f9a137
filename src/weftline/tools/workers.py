"""Threads for tools that block.

A thread cannot be stopped from outside. When a call is cancelled or times out, its thread is abandoned: the call
continues in it, but another thread takes its place in the pool. The number of abandoned threads is limited, because
each may hold memory and sockets forever; beyond the limit, calls are refused.

Workspaces take turns, and each may use only a part of the threads, so that tools of one that hang delay no other.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, TypeVar

from weftline import prompts
from weftline.concurrency.round_robin import on_behalf_of
from weftline.tools.base import ToolFailed

T = TypeVar("T")

_NOT_STARTED = "_weftline_not_started"
THREADS_PER_WORKSPACE = 32
STUCK_PER_WORKSPACE = 64
WORKSPACES_AT_FULL_USE = 4
"""How many workspaces can use all their threads at once; further ones wait for a turn."""
WORKSPACES_ALL_STUCK = 16
"""How many workspaces can have their full number of stuck threads; then the calls of all workspaces are refused."""

left_behind: ContextVar[Callable[[asyncio.Future[None]], None] | None] = ContextVar("left_behind", default=None)
"""Called with a future for each abandoned call, which is done when the call ends."""


class _Job(Generic[T]):
    __slots__ = ("abandoned", "begun", "call", "context", "done", "ended", "future", "loop", "owner", "tool")

    def __init__(self, call: Callable[[], T], tool: object) -> None:
        self.call = call
        self.tool = tool
        self.owner = on_behalf_of.get()
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
            self.report(None, raised or RuntimeError(f"{type(error).__name__}: {error}"))
        else:
            self.report(value, None)

    def report(self, value: T | None, error: Exception | None) -> None:
        try:
            self.loop.call_soon_threadsafe(_settle, self, value, error)
        except RuntimeError:
            # The loop is closed, so there is nobody to notify.
            pass


class NoThread(ToolFailed):
    """No thread could be started for a call of `tool`, so that it has done nothing."""

    def __init__(self, tool: object) -> None:
        super().__init__(prompts.remote.NO_THREAD, kind="unavailable")
        self.tool = tool


def not_started(error: BaseException | None) -> object:
    """Returns the tool whose call did not start, and so has done nothing, if that is what the error means."""
    return error.tool if isinstance(error, NoThread) else getattr(error, _NOT_STARTED, None)


def _set_not_started(error: asyncio.CancelledError, tool: object) -> None:
    """Marks a cancellation. A class of its own would not be one for `asyncio.timeout` in Python 3.11."""
    setattr(error, _NOT_STARTED, tool)


class ToolWorkers:
    """Daemon threads: `max_per_workspace` for each workspace, and for all together a few times as many.

    Abandoned threads come on top, up to `max_abandoned` for each workspace, plus those of calls that it had begun by
    then. Threads start when they are needed. They are daemons so that a call that never returns cannot keep the process
    from stopping.
    """

    def __init__(
        self, *, max_per_workspace: int = THREADS_PER_WORKSPACE, max_abandoned: int = STUCK_PER_WORKSPACE
    ) -> None:
        self.max_per_workspace = max_per_workspace
        self._max_abandoned = max_abandoned
        self._lock = threading.Condition()
        self._queues: OrderedDict[int | None, deque[_Job[Any]]] = OrderedDict()
        """Calls that may not begin yet, by workspace, in the order of turns."""
        self._ready: deque[_Job[Any]] = deque()
        """Calls that may begin, for the next free thread."""
        self._admitted = _Count()
        """Calls that have or are about to get a thread, without the abandoned ones."""
        self._abandoned = _Count()
        self._idle = 0
        """Threads without a call, including those that have just been started."""

    @property
    def abandoned(self) -> int:
        """The number of threads that still execute abandoned calls."""
        return self._abandoned.total

    async def run(self, call: Callable[[], T], *, tool: object = None) -> T:
        """Runs `call` in a thread, with the caller's contextvars. When cancelled, it returns at once.

        A call that was still queued when it was cancelled never starts. If it is all that `tool` does, `not_started`
        recognizes the error.

        Raises:
            NoThread: if no thread can be started, and there is none to wait for.
            ToolFailed: if too many threads of the workspace, or of all of them, are already stuck.
        """
        job = _Job(call, tool)
        with self._lock:
            if self._is_stuck(job.owner):
                raise self._too_many_stuck(job)
            self._queues.setdefault(job.owner, deque()).append(job)
            self._admit()
        try:
            return await job.future
        except asyncio.CancelledError as cancelled:
            if self._give_up(job):
                _set_not_started(cancelled, tool)
            raise

    def _give_up(self, job: _Job[Any]) -> bool:
        """Abandons a call; returns whether it had not begun."""
        with self._lock:
            job.abandoned = True
            if not job.begun:
                if not job.done:
                    self._withdraw(job)
                return True
            if not job.done:
                self._abandoned.add(job.owner)
                notify = left_behind.get()
                if notify is not None and job.future.cancelled():  # otherwise it has just reported
                    job.ended = job.loop.create_future()
                    notify(job.ended)
                self._admitted.remove(job.owner)
                self._refuse_stuck()
                self._admit()
            return False

    def _is_stuck(self, owner: int | None) -> bool:
        """Returns True if no call of a workspace may begin any more."""
        return bool(self._abandoned.total) and not self._abandoned.has_room(
            owner, self._max_abandoned, workspaces=WORKSPACES_ALL_STUCK
        )

    def _refuse_stuck(self) -> None:
        """Refuses what waits for a thread in workspaces where no call may begin any more."""
        for owner in self._waiting():
            if self._is_stuck(owner):
                self._refuse(owner, self._too_many_stuck)

    def _too_many_stuck(self, job: _Job[Any]) -> ToolFailed:
        own = self._abandoned.of(job.owner)
        return ToolFailed(prompts.remote.too_many_stuck(own if own >= self._max_abandoned else self._abandoned.total))

    def _waiting(self) -> set[int | None]:
        """Returns the workspaces with calls that have not begun."""
        return {*self._queues, *[job.owner for job in self._ready]}

    def _refuse(self, owner: int | None, why: Callable[[_Job[Any]], ToolFailed]) -> None:
        """Refuses all calls of a workspace that have not begun."""
        ready = [job for job in self._ready if job.owner == owner]
        for job in ready:
            self._ready.remove(job)
            self._admitted.remove(owner)
        for job in (*ready, *self._queues.pop(owner, ())):
            job.done = True
            job.report(None, why(job))

    def _withdraw(self, job: _Job[Any]) -> None:
        queue = self._queues.get(job.owner)
        if queue is not None and job in queue:
            queue.remove(job)
            if not queue:
                del self._queues[job.owner]
        else:
            self._ready.remove(job)
            self._admitted.remove(job.owner)
            self._admit()

    def _admit(self) -> None:
        """Lets queued calls begin, one of each workspace at a time, as long as there is room."""
        while self._queues:
            for owner in self._queues:
                if self._admitted.has_room(owner, self.max_per_workspace, workspaces=WORKSPACES_AT_FULL_USE):
                    break
            else:
                break
            queue = self._queues[owner]
            self._ready.append(queue.popleft())
            self._admitted.add(owner)
            self._lock.notify()
            if queue:
                self._queues.move_to_end(owner)
            else:
                del self._queues[owner]
        self._start_threads()

    def _start_threads(self) -> None:
        """Starts a thread for each call that may begin and that no idle thread will take.

        If the system refuses to start one, the calls wait for those that there are. If there are none but stuck ones,
        all calls that wait are refused.
        """
        while self._idle < len(self._ready):
            try:
                threading.Thread(target=self._work, name="weftline-tool", daemon=True).start()
            except Exception as error:  # too many threads, or too little memory
                executing = self._admitted.total - len(self._ready)
                if not executing and not self._idle:
                    for owner in self._waiting():
                        self._refuse(owner, partial(_no_thread, error.with_traceback(None)))
                return
            self._idle += 1

    def _work(self) -> None:
        job: _Job[Any] | None = None
        while True:
            with self._lock:
                if job is not None:
                    self._idle += 1
                    job.done = True
                    (self._abandoned if job.abandoned else self._admitted).remove(job.owner)
                    job = None  # an idle thread must not keep the last call's arguments and result alive
                    self._admit()
                while not self._ready:
                    if self._idle > self.max_per_workspace:
                        self._idle -= 1
                        return
                    self._lock.wait()
                self._idle -= 1
                job = self._ready.popleft()
                job.begun = True
            job.carry_out()


class _Count:
    """The number of threads of each workspace, and in all."""

    def __init__(self) -> None:
        self._by_owner: dict[int | None, int] = {}
        self.total = 0

    def add(self, owner: int | None) -> None:
        self._by_owner[owner] = self._by_owner.get(owner, 0) + 1
        self.total += 1

    def remove(self, owner: int | None) -> None:
        self.total -= 1
        left = self._by_owner[owner] - 1
        if left:
            self._by_owner[owner] = left
        else:
            del self._by_owner[owner]

    def of(self, owner: int | None) -> int:
        return self._by_owner.get(owner, 0)

    def has_room(self, owner: int | None, max_per_workspace: int, *, workspaces: int) -> bool:
        return self.total < max_per_workspace * workspaces and self.of(owner) < max_per_workspace


def _no_thread(cause: Exception, job: _Job[Any]) -> NoThread:
    error = NoThread(job.tool)
    error.__cause__ = cause
    return error


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
