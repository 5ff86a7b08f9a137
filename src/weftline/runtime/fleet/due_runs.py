"""Parked runs that are due: found in the store, loaded a few at a time, and given the time. Workspaces take turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from weftline.errors import Conflict, NotFound
from weftline.runtime.fleet.alarm import STALL_US
from weftline.runtime.fleet.roles import RunLoader, RunMover
from weftline.runtime.fleet.task_set import TaskSet
from weftline.runtime.live import LiveRun
from weftline.runtime.reads.finding import public_id
from weftline.runtime.supported import unsupported
from weftline.store.base import LogReader
from weftline.work.turns import RoundRobin, on_behalf_of

logger = logging.getLogger(__name__)

MAX_LOADING = 16
"""How many due runs are loaded at once."""
_PAGE = 1000
_LAST_KEY = 2**63 - 1


class DueRuns:
    """`fire` gives a run the time, and `ring_at` has `look` called at some time."""

    def __init__(
        self,
        store: LogReader,
        loader: RunLoader,
        mover: RunMover,
        *,
        fire: Callable[[LiveRun, int], None],
        ring_at: Callable[[int], None],
    ) -> None:
        self._store = store
        self._loader = loader
        self._mover = mover
        self._fire = fire
        self._ring_at = ring_at
        self._tasks = TaskSet("continuing the due runs")
        self._queue: RoundRobin[tuple[int, int]] = RoundRobin()
        """Workspace and key of each run that is still to be loaded."""
        self._workers = 0
        self._looking = False
        self._now = 0
        """All runs that were due at this time have been found."""
        self._rang = False
        """Whether the alarm rang during a look, which may have missed the reason."""
        self._rang_at_work = False
        """Whether it rang while runs were loaded: one may have been given a time that has passed."""

    def look(self, now: int) -> None:
        """Fires the parked runs that are due at `now`."""
        if self._looking:
            self._rang = True
        else:
            self._looking = True
            self._tasks.spawn(self._find_all(now))

    def stop(self) -> None:
        self._tasks.cancel()

    async def _find_all(self, now: int) -> None:
        try:
            if self._workers:
                # The earlier ones are queued, and reading thousands of them again would take long.
                self._rang_at_work = True
                await self._find(now, after=(self._now, _LAST_KEY))
            else:
                self._queue = RoundRobin()
                await self._find(now, after=(0, 0))
            self._now = now
            upcoming = await self._store.next_due(now)
            if upcoming is not None:
                self._ring_at(upcoming)
        except Exception:
            logger.exception("due runs could not be read; trying again")
            self._ring_at(now + STALL_US)
        finally:
            self._looking = False
        if self._rang:
            self._rang = False
            self._ring_at(now)
        self._work()

    async def _find(self, now: int, *, after: tuple[int, int]) -> None:
        while due := await self._store.due(now, after=after, limit=_PAGE):
            after = due[-1].due_at, due[-1].key
            for one in due:
                if not unsupported(one):
                    self._queue.put((one.workspace, one.key), owner=one.workspace)
            await asyncio.sleep(0)  # others have a turn: a store may have each page at once

    def _work(self) -> None:
        while self._workers < min(MAX_LOADING, len(self._queue)) and not self._mover.halted:
            self._workers += 1
            self._tasks.spawn(self._fire_queued()).add_done_callback(self._worker_done)

    def _worker_done(self, task: asyncio.Task[None]) -> None:
        self._workers -= 1
        if task.cancelled():
            return
        if self._queue:
            self._work()
        elif self._rang_at_work and not self._workers:
            self._rang_at_work = False
            self._ring_at(self._now)

    async def _fire_queued(self) -> None:
        while self._queue and not self._mover.halted:
            workspace, key = self._queue.take()
            on_behalf_of.set(workspace)
            await self._fire_one(key)

    async def _fire_one(self, key: int) -> None:
        """Fires one run. A run that cannot be loaded does not delay the others."""
        try:
            run = await self._loader.load(key)
        except (Conflict, NotFound):
            return  # from a newer version, or no longer there
        except Exception:
            logger.exception("run %s is due and could not be loaded; trying again", await public_id(self._store, key))
            self._ring_at(self._now + STALL_US)
            return
        now = self._now
        if not run.active and not run.gone and run.log.due_at and run.log.due_at <= now:
            self._fire(run, now)
