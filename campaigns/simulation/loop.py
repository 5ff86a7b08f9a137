"""An event loop with virtual time: it stands still while anything can run, then jumps to the next timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar

from campaigns.simulation.trace import Violation

T = TypeVar("T")

STANDSTILL = 20_000


class _Jump:
    """Takes the place of a selector: instead of waiting it advances the time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise Violation("C6", "nothing is left to happen, but the history is not over")
        self._turns = 0 if timeout else self._turns + 1
        if self._turns > STANDSTILL:
            self._turns = 0
            raise Violation("C6", f"after {STANDSTILL} iterations of the loop no time has passed: {self._at_work()}")
        self._loop.now_s += timeout
        return []

    def _at_work(self) -> str:
        names = [getattr(task.get_coro(), "__qualname__", "?") for task in self._loop.tasks()]
        return ", ".join(sorted({name for name in names if "Server" not in name}))


class VirtualLoop(asyncio.BaseEventLoop):
    """Callbacks run in the order that asyncio promises; a seed varies only the delays of everything outside."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._selector = _Jump(self)
        self._alive: dict[asyncio.Task[Any], None] = {}

    def time(self) -> float:
        return self.now_s

    def tasks(self) -> list[asyncio.Task[Any]]:
        """All tasks that are not done, oldest first; the order of a set would differ between processes."""
        self._alive = {task: None for task in self._alive if not task.done()}
        return list(self._alive)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = super().create_task(coro, name=name, context=context)
        self._alive[task] = None
        return task

    def _process_events(self, event_list: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Runs right here: there are no threads."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        pass
