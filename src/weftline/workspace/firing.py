"""Starting what is scheduled: when it is due is in the store, and moves on once its run is durable.

A run is created once for each time of a schedule, under a key made of both. A crash between the run and the note that
it began repeats the note and not the run, and so do two servers, or a clock that is set back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from weftline.errors import StoreError, WeftlineError
from weftline.store.database import Query
from weftline.store.records import schedules
from weftline.store.records.schedules import ScheduleRow
from weftline.workspace.context import Workspaces
from weftline.workspace.schedules import timing_of

logger = logging.getLogger(__name__)

_MAX_WAIT_S = 30.0
"""Clocks are set and machines sleep: nothing waits longer without a look at the time."""
_RETRY_S = 5.0
_AT_ONCE = 16
_MAX_ERROR_CHARS = 500

Start: TypeAlias = Callable[[ScheduleRow, int], Awaitable[str]]
"""Creates the run of a schedule for a time, or finds the one that it has; returns its id. Raises `WeftlineError`."""


class ScheduleAlarm:
    """Starts what is due; `run` goes on until it is cancelled. Call `changed` after schedules have changed."""

    def __init__(self, at: Workspaces, *, start: Start) -> None:
        self._at = at
        self._start = start
        self._wake = asyncio.Event()

    def changed(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            now = self._at.clock.now_us()
            wait_s = _MAX_WAIT_S
            try:
                if not await self.fire_due():
                    wait_s = _RETRY_S
                upcoming = await self._at.records.read(schedules.next_due(now))
            except StoreError:
                logger.exception("schedules could not be read; trying again")
                upcoming, wait_s = None, _RETRY_S
            if upcoming is not None:
                wait_s = min(wait_s, max(0.0, (upcoming - self._at.clock.now_us()) / 1e6))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    async def fire_due(self) -> bool:
        """Starts everything that is due now. Returns False if some of it has to be tried again."""
        now = self._at.clock.now_us()
        after, settled = (0, 0), True
        while due := await self._at.records.read(schedules.due(now, after=after, limit=_AT_ONCE)):
            after = due[-1]
            settled &= all(await asyncio.gather(*(self._fire(key, now) for _, key in due)))
        return settled

    async def _fire(self, key: int, now: int) -> bool:
        """Whether nothing of the schedule is left to do at this time."""
        try:
            return await self._fire_all(key, now)
        except StoreError as error:
            logger.warning("schedule %d: the store refuses: %s", key, error.message)
            return False

    async def _fire_all(self, key: int, now: int) -> bool:
        row = await self._at.records.read(schedules.by_key(key))
        if row is None or row.next_at is None or row.next_at > now:
            return True  # changed in the meantime
        try:
            times = timing_of(row).due(row.next_at, now=now)
        except WeftlineError as error:  # a time zone that this machine does not have any more
            await self._settle(row, row.next_at, error=error.message, now=now)
            return True
        if not times:
            await self._settle(row, row.next_at, error="Skipped: its time was missed.", now=now)
            return True
        for time in times:
            run, error = None, ""
            try:
                run = await self._start(row, time)
            except WeftlineError as failed:
                if isinstance(failed, StoreError):
                    raise
                if failed.retryable:
                    logger.warning("schedule %s: cannot start its run now: %s", row.id, failed.message)
                    return False
                error = failed.message
            except Exception:
                logger.exception("schedule %s: starting its run failed", row.id)
                error = "The server failed to start the run; its log has the details."
            if error:
                logger.warning("schedule %s: no run: %s", row.id, error)
            await self._settle(row, time, run=run, error=error, now=now if time == times[-1] else time)
        return True

    async def _settle(
        self, fired: ScheduleRow, time: int, *, now: int, run: str | None = None, error: str = ""
    ) -> None:
        """Records what became of a time and moves on to the next one after `now`, unless the schedule was changed."""

        def query() -> Query[None]:
            row = yield from schedules.by_key(fired.key)
            if row is None:
                return
            yield from schedules.fired(row.key, at=time, run=run, error=error[:_MAX_ERROR_CHARS])
            if row.next_at is not None and row.next_at <= now:
                try:
                    following = timing_of(row).next(now)
                except WeftlineError:
                    following = None
                yield from schedules.move(row.key, next_at=following)

        await self._at.records.write(query())
