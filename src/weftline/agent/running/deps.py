"""The deps of a run, which a single task enters, holds and exits.

    entering ──▶ entered ──▶ leaving ──▶ left
        └──────────▶ failed ◀────┘

A factory's context variables and cancel scopes belong to the task that entered it, so the same task must exit it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from weftline.agent import argument_checks

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
