"""Wakes what is due at a time by the wall clock: schedules, and effects of threads.

What is due is in the store, so that nothing is forgotten when the process dies, and changes only there: neither a clock
that is set nor a second look makes anything happen twice.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import suppress

from weftline.errors import StoreError
from weftline.store.database import Query
from weftline.workspace.context import Workspaces

logger = logging.getLogger(__name__)

_MAX_WAIT_S = 30.0
"""Clocks are set and machines sleep, so nothing waits longer without checking the time."""
RETRY_S = 5.0


class Alarm(ABC):
    """Fires what is due; `run` continues until it is cancelled. Call `changed` after something of it has changed.

    Each workspace has its own lane, so that one with much to do does not block the others.
    """

    what = "alarms"
    """What it fires, for the log."""

    def __init__(self, at: Workspaces) -> None:
        self._at = at
        self._wake = asyncio.Event()
        self._lanes: set[int] = set()
        """The workspaces in which something is being fired."""
        self._again: set[int] = set()
        """The workspaces in which something became due meanwhile."""

    @abstractmethod
    def due_workspaces(self, now: int) -> Query[list[int]]:
        """The workspaces in which something is due."""

    @abstractmethod
    def next_due(self, after: int) -> Query[int | None]:
        """The first time after this one at which something is due."""

    @abstractmethod
    async def fire_due(self, workspace: int) -> int | None:
        """Fires what is due in a workspace, and returns how much that was; None if some has to be tried again."""

    def changed(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as lanes:
            while True:
                self._wake.clear()
                now = self._at.clock.now_us()
                wait_s = _MAX_WAIT_S
                try:
                    for workspace in await self._at.records.read(self.due_workspaces(now)):
                        if workspace in self._lanes:
                            self._again.add(workspace)
                        else:
                            self._lanes.add(workspace)
                            lanes.create_task(self._lane(workspace))
                    upcoming = await self._at.records.read(self.next_due(now))
                except StoreError:
                    logger.exception("%s could not be read; trying again", self.what)
                    upcoming, wait_s = None, RETRY_S
                if upcoming is not None:
                    wait_s = min(wait_s, max(0.0, (upcoming - self._at.clock.now_us()) / 1e6))
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()

    async def _lane(self, workspace: int) -> None:
        try:
            while True:
                self._again.discard(workspace)
                fired = await self.fire_due(workspace)
                if fired is None:
                    await asyncio.sleep(RETRY_S)
                elif not fired and workspace not in self._again:
                    return
        finally:
            self._lanes.discard(workspace)
