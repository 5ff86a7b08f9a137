"""The deps of a run, which a single task enters, holds and exits.

    entering ──▶ entered ──▶ leaving ──▶ left
        └──────────▶ failed ◀────┘

A factory's context variables and cancel scopes belong to the task that entered it, so the same task must exit it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from weftline.agent import argument_checks
from weftline.agent.results import RunCancelled, RunError, RunResult, failure
from weftline.kernel.bodies import decode_ended
from weftline.kernel.entries import RunEnded
from weftline.work.outcomes import attempt

logger = logging.getLogger(__name__)

LEAVE_S = 5.0
"""How long a result, or the closing of an engine, waits for deps and for the last hooks of a run."""


class OwnedDeps:
    """The deps that an agent's factory created for one run, for as long as the run is in memory."""

    def __init__(self, run_id: str) -> None:
        loop = asyncio.get_running_loop()
        self._run_id = run_id
        self._entered: asyncio.Future[object] = loop.create_future()
        self._over = asyncio.Event()
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self.lost: BaseException | None = None
        """Why the deps ended while the run still needed them."""

    async def enter(self, make: Callable[[], AbstractAsyncContextManager[Any]]) -> object:
        """Enters the factory's context manager and returns its value. Raises what the factory raises."""
        task = self._task = asyncio.create_task(self._own(make), name=f"deps of {self._run_id}")
        try:
            return await asyncio.shield(self._entered)
        except asyncio.CancelledError:
            # The caller is gone: the task that began to enter them also undoes it.
            self.leave()
            if not self._entered.done():
                task.cancel()
            await asyncio.wait({task}, timeout=LEAVE_S)
            raise

    @property
    def is_leaving(self) -> bool:
        return self._over.is_set()

    def leave(self, error: BaseException | None = None) -> None:
        """Starts to exit the deps, with the error that the run ended with. Returns at once; see `left`."""
        if not self._over.is_set():
            self._error = error
            self._over.set()

    async def left(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})

    def abandon(self) -> None:
        """Cancels deps that do not exit in time."""
        if self._task is not None and not self._task.done():
            logger.warning("run %s: its deps did not close in time and are interrupted", self._run_id)
            self._task.cancel()

    async def _own(self, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        try:
            made = make()
            argument_checks.check_deps(made)
            async with made as deps:
                self._entered.set_result(deps)
                await self._over.wait()
                if self._error is not None:
                    raise self._error
        except BaseException as error:
            if not self._entered.done():
                self._failed(error)
            elif error is not self._error and not isinstance(error, asyncio.CancelledError):
                self._exit_failed(error)
        if not self._over.is_set() and self.lost is None and self._entered.done():
            self.lost = RuntimeError("they were closed before the run had ended")

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and self._over.is_set():
            self._entered.cancel()
            return
        self._entered.set_exception(error if isinstance(error, Exception) else RuntimeError(f"it raised {error!r}"))
        self._entered.exception()  # retrieved, as the caller may be gone

    def _exit_failed(self, error: BaseException) -> None:
        if self._over.is_set():
            logger.error("run %s: the deps could not be closed", self._run_id, exc_info=error)
        else:
            self.lost = error
            logger.error("run %s: the deps failed while they were in use", self._run_id, exc_info=error)


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
