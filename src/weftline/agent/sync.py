"""Agents for code without an event loop: one daemon thread with a loop, for the whole process."""

# pyright: reportPrivateUsage=false
# This module and the engine know each other.

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import Context, copy_context
from typing import Any, Generic, Protocol, TypeVar

from weftline.agent.budget import Budget
from weftline.agent.engine.budget_methods import BudgetUse
from weftline.agent.results import OutputT, RunResult
from weftline.agent.run import Run, Status
from weftline.agent.stored_messages import SavedMessage
from weftline.errors import short_traceback
from weftline.events import AnyEvent
from weftline.runtime.tool_calls.provided import Provided
from weftline.work.loop_thread import LoopThread

T = TypeVar("T")

_PATIENCE_S = 2.0
"""How long the exit of the process waits for runs in memory to be cancelled."""

_shared: tuple[int, LoopThread] | None = None
_making = threading.Lock()


class HasLoop(Protocol):
    """An engine, as this module needs it."""

    @property
    def _lives_here(self) -> bool: ...


def blocking(work: Callable[[], Coroutine[Any, Any, T]], *, engine: HasLoop | None = None) -> T:
    """Runs `work` on the background loop and waits for it, with the caller's context variables."""
    return _loop(engine).run(_in(copy_context(), work))


@contextmanager
def watched(
    stream: Callable[[], AbstractAsyncContextManager[Run[OutputT]]], *, engine: HasLoop | None = None
) -> Generator[SyncRun[OutputT]]:
    loop = _loop(engine)
    manager = stream()
    context = copy_context()
    with short_traceback:
        run = loop.run(_in(context, manager.__aenter__))
    try:
        yield SyncRun(loop, run)
    finally:
        loop.run(_in(context, lambda: manager.__aexit__(None, None, None)))


class SyncRun(Generic[OutputT]):
    """A `Run` without `await`. Iterating over it yields its events."""

    def __init__(self, loop: LoopThread, run: Run[OutputT]) -> None:
        self.id = run.id
        self._loop = loop
        self._run = run

    def __iter__(self) -> Iterator[AnyEvent]:
        return self.events()

    def events(self, *, after: int = 0, children: bool = False) -> Iterator[AnyEvent]:
        return self._each(self._run.events(after=after, children=children))

    def text(self) -> Iterator[str]:
        return self._each(self._run.text())

    def result(self) -> RunResult[OutputT]:
        return self._wait(self._run.result())

    def messages(self) -> list[SavedMessage]:
        return self._wait(self._run.messages())

    def status(self) -> Status:
        return self._wait(self._run.status())

    def steer(self, text: str, *, by: str = "", labels: Mapping[str, str] | None = None) -> None:
        self._wait(self._run.steer(text, by=by, labels=labels))

    def follow_up(self, text: str, *, by: str = "", labels: Mapping[str, str] | None = None) -> None:
        self._wait(self._run.follow_up(text, by=by, labels=labels))

    def pause(self, reason: str = "", *, by: str = "", labels: Mapping[str, str] | None = None) -> None:
        self._wait(self._run.pause(reason, by=by, labels=labels))

    def resume(
        self, notes: str = "", *, messages: Sequence[str] = (), by: str = "", labels: Mapping[str, str] | None = None
    ) -> None:
        self._wait(self._run.resume(notes, messages=messages, by=by, labels=labels))

    def cancel(self) -> None:
        self._wait(self._run.cancel())

    def approve(
        self,
        await_id: str,
        *,
        args: Mapping[str, Any] | None = None,
        remember: bool | Mapping[str, object] = False,
        comment: str = "",
        by: str = "library",
    ) -> None:
        self._wait(self._run.approve(await_id, args=args, remember=remember, comment=comment, by=by))

    def deny(self, await_id: str, reason: str = "", *, by: str = "library") -> None:
        self._wait(self._run.deny(await_id, reason, by=by))

    def answer(self, await_id: str, value: Any, *, by: str = "library") -> None:
        self._wait(self._run.answer(await_id, value, by=by))

    def provide(self, await_id: str, results: Sequence[Provided]) -> None:
        self._wait(self._run.provide(await_id, results))

    def budgets(self) -> list[BudgetUse]:
        return self._wait(self._run.budgets())

    def set_budget(self, budget: Budget | None, *, by: str = "library") -> BudgetUse:
        return self._wait(self._run.set_budget(budget, by=by))

    def below(self, run_id: str) -> SyncRun[object]:
        return SyncRun(self._loop, self._run.below(run_id))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        with short_traceback:
            return self._loop.run(work)

    def _each(self, items: Any) -> Iterator[Any]:
        async def following() -> tuple[bool, Any]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        try:
            while True:
                more, item = self._loop.run(following())
                if not more:
                    return
                yield item
        finally:
            closing: AsyncGenerator[Any] = items
            self._loop.run(closing.aclose())


def _loop(engine: HasLoop | None) -> LoopThread:
    global _shared
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        # A notebook's cell may block its loop, unless it waits for something on that very loop.
        if not _in_notebook() or (engine is not None and engine._lives_here):
            raise RuntimeError(
                "an event loop is already running here: await the async call instead of this blocking one"
            )
    pid = os.getpid()
    shared = _shared
    if shared is None or shared[0] != pid:
        with _making:
            shared = _shared
            if shared is None or shared[0] != pid:  # a forked child does not have its parent's thread
                shared = _shared = pid, LoopThread("weftline")
                atexit.register(shared[1].stop, patience_s=_PATIENCE_S)
    return shared[1]


def _unlocked() -> None:
    """Replaces the lock after a fork, as a thread of the parent may have held it."""
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlocked)


def _in_notebook() -> bool:
    """Whether the running loop is a notebook's, which cells may block."""
    import sys

    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


async def _in(context: Context, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await asyncio.get_running_loop().create_task(work(), context=context)
