"""One bounded pool of threads for calls that block.

A thread cannot be stopped from outside. When a call is cancelled or times out, its thread is abandoned: the call
continues in it, but another thread takes its place in the pool. The number of abandoned threads is limited, because
each may hold memory and sockets forever; beyond the limit, calls are refused.

Workspaces take turns, and each may use only a part of the threads, so that calls of one that hang delay no other.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, TypeVar

from weftline import prompts
from weftline.work.turns import Places, Turns, on_behalf_of

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
            # A future refuses StopIteration, and SystemExit in a call must not stop the process.
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


def not_started(error: BaseException | None) -> object:
    """Returns the tool whose call did not start, and so has done nothing, if that is what the error means."""
    return getattr(error, _NOT_STARTED, None)


def set_not_started(error: BaseException, tool: object) -> None:
    """Marks an error. A class of its own would not be a cancellation for `asyncio.timeout` in Python 3.11."""
    setattr(error, _NOT_STARTED, tool)


class Threads:
    """Daemon threads: `max_per_workspace` for each workspace, and for all together a few times as many.

    Abandoned threads come on top, up to `max_abandoned` for each workspace, plus those of calls that it had begun by
    then. Threads start when they are needed, and at most `max_idle` are kept. They are daemons so that a call that
    never returns cannot keep the process from stopping.
    """

    def __init__(
        self,
        *,
        max_per_workspace: int = THREADS_PER_WORKSPACE,
        max_abandoned: int = STUCK_PER_WORKSPACE,
        max_idle: int | None = None,
        name: str = "weftline-work",
    ) -> None:
        self._name = name
        self._max_idle = max_idle
        self._lock = threading.Condition()
        self._turns: Turns[_Job[Any]] = Turns(lambda job: job.owner)
        """Calls that may not begin yet; those that have or are about to get a thread have a place, unless abandoned."""
        self._ready: deque[_Job[Any]] = deque()
        """Calls that may begin, for the next free thread."""
        self._abandoned = Places(max_abandoned * WORKSPACES_ALL_STUCK, per_owner=max_abandoned)
        self._idle = 0
        """Threads without a call, including those that have just been started."""
        self.max_per_workspace = max_per_workspace

    @property
    def max_per_workspace(self) -> int:
        return self._max_per_workspace

    @max_per_workspace.setter
    def max_per_workspace(self, count: int) -> None:
        self._max_per_workspace = self._turns.places.per_owner = count
        self._turns.places.limit = count * WORKSPACES_AT_FULL_USE

    @property
    def abandoned(self) -> int:
        """The number of threads that still execute abandoned calls."""
        return self._abandoned.taken

    async def run(self, call: Callable[[], T], *, tool: object = None) -> T:
        """Runs `call` in a thread, with the caller's contextvars. When cancelled, it returns at once.

        A call that was still queued when it was cancelled never starts. If it is all that `tool` does, `not_started`
        recognizes the error.

        Raises what `no_thread` returns if no thread can be started, and there is none to wait for, and what
        `too_many_stuck` returns if too many threads of the workspace, or of all of them, are already stuck.
        """
        job = _Job(call, tool)
        with self._lock:
            if self._is_stuck(job.owner):
                raise self._stuck(job)
            self._turns.queue.put(job, owner=job.owner)
            self._admit()
        try:
            return await job.future
        except asyncio.CancelledError as cancelled:
            if self._give_up(job):
                set_not_started(cancelled, tool)
            raise

    def no_thread(self) -> Exception:
        return RuntimeError(prompts.remote.NO_THREAD)

    def too_many_stuck(self, count: int) -> Exception:
        return RuntimeError(prompts.remote.too_many_stuck(count))

    def _refused(self, cause: Exception, job: _Job[Any]) -> Exception:
        error = self.no_thread()
        error.__cause__ = cause
        set_not_started(error, job.tool)
        return error

    def _give_up(self, job: _Job[Any]) -> bool:
        """Abandons a call; returns whether it had not begun."""
        with self._lock:
            job.abandoned = True
            if not job.begun:
                if not job.done and not self._turns.queue.withdraw(job, owner=job.owner):
                    self._ready.remove(job)
                    self._turns.places.remove(job.owner)
                    self._admit()
                return True
            if not job.done:
                self._abandoned.add(job.owner)
                notify = left_behind.get()
                if notify is not None and job.future.cancelled():  # otherwise it has just reported
                    job.ended = job.loop.create_future()
                    notify(job.ended)
                self._turns.places.remove(job.owner)
                for owner in self._waiting():
                    if self._is_stuck(owner):
                        self._refuse(owner, self._stuck)
                self._admit()
            return False

    def _is_stuck(self, owner: Hashable) -> bool:
        """Returns True if no call of a workspace may begin any more."""
        return bool(self._abandoned.taken) and not self._abandoned.has_room(owner)

    def _stuck(self, job: _Job[Any]) -> Exception:
        own = self._abandoned.of(job.owner)
        return self.too_many_stuck(own if own >= (self._abandoned.per_owner or 0) else self._abandoned.taken)

    def _waiting(self) -> set[Hashable]:
        """Returns the workspaces with calls that have not begun."""
        return {*self._turns.queue.owners, *[job.owner for job in self._ready]}

    def _refuse(self, owner: Hashable, why: Callable[[_Job[Any]], Exception]) -> None:
        """Refuses all calls of a workspace that have not begun."""
        ready = [job for job in self._ready if job.owner == owner]
        for job in ready:
            self._ready.remove(job)
            self._turns.places.remove(owner)
        for job in (*ready, *self._turns.queue.withdraw_all(owner)):
            job.done = True
            job.report(None, why(job))

    def _admit(self) -> None:
        """Lets queued calls begin, one of each workspace at a time, as long as there is room.

        Starts a thread for each call that may begin and that no idle thread will take. If the system refuses to start
        one, the calls wait for those that there are. If there are none but stuck ones, all calls that wait are refused.
        """
        while (admitted := self._turns.admit()) is not None:
            self._ready.append(admitted)
            self._lock.notify()
        while self._idle < len(self._ready):
            try:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            except Exception as error:  # too many threads, or too little memory
                executing = self._turns.places.taken - len(self._ready)
                if not executing and not self._idle:
                    for owner in self._waiting():
                        self._refuse(owner, partial(self._refused, error.with_traceback(None)))
                return
            self._idle += 1

    def _work(self) -> None:
        job: _Job[Any] | None = None
        while True:
            with self._lock:
                if job is not None:
                    self._idle += 1
                    job.done = True
                    (self._abandoned if job.abandoned else self._turns.places).remove(job.owner)
                    job = None  # an idle thread must not keep the last call's arguments and result alive
                    self._admit()
                while not self._ready:
                    if self._idle > (self.max_per_workspace if self._max_idle is None else self._max_idle):
                        self._idle -= 1
                        return
                    self._lock.wait()
                self._idle -= 1
                job = self._ready.popleft()
                job.begun = True
            job.carry_out()


def _settle(job: _Job[Any], value: object, error: Exception | None) -> None:
    if job.ended is not None:
        job.ended.set_result(None)
    if job.future.done():
        return
    if error is None:
        job.future.set_result(value)
    else:
        job.future.set_exception(error)
