"""Ends a run's stay in memory: its last hooks, then its deps. Callers wait for it no longer than `LEAVE_S`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from weftline.agent.results import RunCancelled, RunError, RunResult, failure
from weftline.agent.running.deps import LEAVE_S, OwnedDeps
from weftline.kernel.bodies import decode_ended
from weftline.kernel.entries import RunEnded
from weftline.work.outcomes import attempt

logger = logging.getLogger(__name__)


class Teardown:
    """The end of one run's stay. It has a task of its own, which continues when the runtime stops."""

    def __init__(self, run_id: str, deps: OwnedDeps | None, on_left: Callable[[], object]) -> None:
        self.left = asyncio.Event()
        """Set when the last hook has returned and the deps are exited."""
        self._run_id = run_id
        self._deps = deps
        self._on_left = on_left
        self._settled_by: float | None = None
        self._late = False
        self._task: asyncio.Task[None] | None = None
        self.begun = False

    def begin(self, last: Coroutine[Any, Any, None] | None = None, error: BaseException | None = None) -> None:
        """Starts to run `last` and then exits the deps with `error`. Returns at once."""
        self.begun = True
        if last is None and self._deps is None:
            self.left.set()
            self._on_left()
            return
        self._settled_by = asyncio.get_running_loop().time() + LEAVE_S
        self._task = asyncio.create_task(self._run(last, error), name=f"end of {self._run_id}")

    async def settled(self) -> None:
        """Waits until the run has left memory, or until that takes too long."""
        if self.left.is_set():
            return
        by = self._settled_by or asyncio.get_running_loop().time() + LEAVE_S
        try:
            async with asyncio.timeout_at(by):
                await self.left.wait()
        except TimeoutError:
            if not self._late:
                self._late = True
                logger.warning("run %s: its last hooks or its deps hang and are abandoned", self._run_id)

    def abandon(self) -> None:
        """Cancels what does not finish: the last hooks, or else the deps."""
        if self._deps is not None and self._deps.is_leaving:
            self._deps.abandon()
        elif self._task is not None:
            self._task.cancel()

    async def _run(self, last: Coroutine[Any, Any, None] | None, error: BaseException | None) -> None:
        try:
            if last is not None:
                with attempt(logger, "run %s: its observers could not be notified of its end", self._run_id):
                    await last
        finally:
            try:
                if self._deps is not None:
                    self._deps.leave(error)
                    await self._deps.left()
            finally:
                self.left.set()
                self._on_left()


def error_of(run_id: str, fact: RunEnded, body: bytes) -> RunError | None:
    """Returns the error of a run that did not succeed, from its last entry."""
    if fact.status == "succeeded":
        return None
    ended = decode_ended(body)
    result: RunResult[Any] = RunResult(
        run_id=run_id,
        status=fact.status,
        text=ended.text or ended.partial_text or "",
        usage=fact.usage,
        turns=fact.turns,
        attempts=fact.attempts,
        error=ended.error,
        code=fact.code,
        reason=fact.reason,
    )
    return RunCancelled(result) if fact.status == "cancelled" else failure(result)
