"""Agents for code without an event loop: one daemon thread with a loop, for the whole process."""

# pyright: reportPrivateUsage=false
# This module and the engine know each other.

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import Context, copy_context
from typing import Any, Generic, Protocol, TypeVar

from weftline.agent.results import OutputT
from weftline.agent.run import Run
from weftline.errors import short_traceback
from weftline.work.loop_thread import LoopThread

T = TypeVar("T")
FaceT = TypeVar("FaceT")

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


class Wait(Protocol):
    """Runs `work` on the background loop and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T: ...


class RunFace(Generic[OutputT]):
    """A `Run` without `await`. Iterating over it yields its events."""

    def __init__(self, core: Run[OutputT], wait: Wait) -> None:
        self.id = core.id
        self._core = core
        self._wait = wait

    def _each(self, items: AsyncGenerator[T]) -> Generator[T]:
        async def following() -> tuple[T, ...]:
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return ()

        try:
            while found := self._wait(following()):
                yield found[0]
        finally:
            self._wait(items.aclose())


@contextmanager
def watched(
    stream: Callable[[], AbstractAsyncContextManager[Run[Any]]],
    face: Callable[[Run[Any], Wait], FaceT],
    *,
    engine: HasLoop | None = None,
) -> Generator[FaceT]:
    loop = _loop(engine)
    manager = stream()
    context = copy_context()

    def wait(work: Coroutine[Any, Any, T]) -> T:
        with short_traceback:
            return loop.run(work)

    run = wait(_in(context, manager.__aenter__))
    try:
        yield face(run, wait)
    finally:
        loop.run(_in(context, lambda: manager.__aexit__(None, None, None)))


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
    """Returns True if the running loop is a notebook's, which cells may block."""
    import sys

    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


async def _in(context: Context, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await asyncio.get_running_loop().create_task(work(), context=context)
