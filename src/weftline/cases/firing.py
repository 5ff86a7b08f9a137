"""Starts scheduled runs. The time that a schedule is due is in the store, and advances once its run is durable.

A run is created once for each time of a schedule, under an idempotency key made of both. After a crash between creating
the run and recording it, only the recording is repeated. The same holds for two servers, or a clock that is set back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from msgspec import Raw, Struct, convert
from msgspec.json import decode
from msgspec.structs import replace

from weftline.api.creating import CreatingHost, create_checked
from weftline.errors import LOG_DAMAGED, RateLimited, StoreError, Unavailable, WeftlineError, invalid_field
from weftline.spec.door import SentSpec, parse_run
from weftline.store.database import Query
from weftline.store.records import schedules
from weftline.store.records.schedules import ALL, CATCH_UP, ONCE, SKIP, ScheduleRow, ScheduleSummary
from weftline.store.rows import IdempotencyKey
from weftline.store.sealing import Headers
from weftline.wire.json_text import NULL, decode_fields, encode
from weftline.wire.responses import iso
from weftline.work.heavy import parsed
from weftline.workspace.alarms import Alarm
from weftline.workspace.context import Caller, Workspaces
from weftline.workspace.cron import parse_cron, parse_zone

logger = logging.getLogger(__name__)

SCHEDULE_KEY = "weftline.schedule"
"""The metadata key with the schedule of a run, by which lists find it."""
TIME_KEY = "weftline.scheduledFor"
MAX_CATCH_UP = 100
"""How many missed runs a schedule catches up on at most; these are the latest ones."""
ON_TIME_US = 60_000_000
"""A time that passed no longer ago than this was not missed: the shortest interval is a minute."""
_ROUTE = "schedules"
"""A route of its own, so that no client's idempotency key can collide with a schedule's."""
_AT_ONCE = 2
"""How many runs of one workspace are created at once: each may need CPU time."""
_AT_ONCE_IN_ALL = 16
_LOOK_FOR = 100
"""How many missed times are searched for a run that was created but not recorded."""
_MAX_ERROR_CHARS = 500

Start: TypeAlias = Callable[[ScheduleRow, int], Awaitable[str]]
"""Creates the run of a schedule for a time, or finds the existing one; returns its id. Raises `WeftlineError`."""
Started: TypeAlias = Callable[[ScheduleRow, int], Awaitable[str | None]]
"""The run that a schedule has for a time; None if it has none."""


class Timing(Struct, frozen=True, kw_only=True):
    """When it runs: once `at` a time, or by `cron`."""

    at: int | None = None
    cron: str = ""
    timezone: str = "UTC"
    catch_up: str = ONCE

    def check(self, *, now: int) -> None:
        """Raises `InvalidRequest` for what is not a time, or has passed."""
        if self.catch_up not in CATCH_UP:
            raise invalid_field("catch_up", f"must be one of {', '.join(CATCH_UP)}.")
        parse_zone(self.timezone)
        if (self.at is None) == (not self.cron):
            raise invalid_field("at", "give exactly one of `at` and `cron`.")
        if self.at is not None and self.at <= now:
            raise invalid_field("at", "this time has passed.")
        if self.at is None:
            parse_cron(self.cron, self.timezone)

    def next(self, after: int) -> int | None:
        if self.at is not None:
            return self.at if self.at > after else None
        return parse_cron(self.cron, self.timezone).next(after)

    def due(self, since: int, *, now: int) -> list[int]:
        """The times from `since` to now for which a run still has to be started, in order."""
        if self.at is not None:
            times = [self.at] if since <= self.at <= now else []
        else:
            limit = MAX_CATCH_UP if self.catch_up == ALL else 1
            times = parse_cron(self.cron, self.timezone).latest(since=since, until=now, limit=limit)
        return [time for time in times if self.catch_up != SKIP or now - time <= ON_TIME_US]

    def latest(self, since: int, *, now: int) -> int:
        """The last of its times from `since`, which is one of them, to now."""
        times = (
            [] if self.at is not None else parse_cron(self.cron, self.timezone).latest(since=since, until=now, limit=1)
        )
        return times[-1] if times else since


def timing_of(row: ScheduleSummary) -> Timing:
    return Timing(at=row.at, cron=row.cron, timezone=row.timezone, catch_up=row.catch_up)


class _Owner(Struct, frozen=True):
    """Who defined what the schedule runs, as far as that still matters."""

    workspace: int
    agents: tuple[str, ...]


async def start_now(
    app: CreatingHost, caller: Caller, row: ScheduleRow, *, idempotency: IdempotencyKey | None = None
) -> str:
    """Starts an additional run of a schedule, and records it there.

    Its starter need not know what it does, so it is still the author of the schedule who may not approve its calls.
    """
    body = await _body(app.workspaces, row, {SCHEDULE_KEY: row.id})
    run_id = await create_checked(app, caller, body, requested_by=row.requested_by, idempotency=idempotency)
    at = app.workspaces
    await at.records.write(schedules.fired(row.key, at=at.clock.now_us(), run=run_id, error=""))
    return run_id


async def start(app: CreatingHost, row: ScheduleRow, time: int) -> str:
    """Starts the run of a schedule for one of its times. Repeated calls return the same run."""
    body = await _body(app.workspaces, row, {SCHEDULE_KEY: row.id, TIME_KEY: iso(time)})
    owner = _Owner(row.workspace, row.agents)
    return await create_checked(app, owner, body, requested_by=row.requested_by, idempotency=_once(row, time))


async def started(app: CreatingHost, row: ScheduleRow, time: int) -> str | None:
    """Returns the run of a schedule for one of its times, if there is one."""
    return await app.engine.created_before(row.workspace, _once(row, time))


def _once(row: ScheduleRow, time: int) -> IdempotencyKey:
    return IdempotencyKey(_ROUTE, f"{row.id}@{time}", b"")


async def _body(at: Workspaces, row: ScheduleRow, metadata: dict[str, str]) -> SentSpec:
    body = await parsed(parse_run, stamped(row.spec, metadata))
    return replace(body, secrets=headers_of(at, row))


def stamped(spec: bytes, metadata: dict[str, str]) -> bytes:
    """Returns the spec with more metadata."""
    fields = decode_fields(spec)
    own = fields.get("metadata", NULL)
    declared: dict[str, str] = {} if own == NULL else convert(decode(own), dict[str, str])
    return encode({**fields, "metadata": Raw(encode({**declared, **metadata}))})


def headers_of(at: Workspaces, row: ScheduleRow) -> Headers:
    try:
        return at.vault.open_headers(row.secrets, workspace=row.workspace)
    except StoreError as error:  # a retry would not help
        raise WeftlineError(f"The secrets of its tools cannot be read: {error.message}", code="conflict") from None


class _NotNow(Exception):
    """The run has to be tried again."""


class _NoneNow(_NotNow):
    """The workspace cannot have any further run at the moment."""


class ScheduleAlarm(Alarm):
    """Starts what is due. Call `changed` after schedules have changed."""

    what = "schedules"

    def __init__(self, at: Workspaces, *, start: Start, started: Started) -> None:
        super().__init__(at)
        self._start = start
        self._started = started
        self._places = asyncio.Semaphore(_AT_ONCE_IN_ALL)
        self._reported: set[int] = set()
        """The damaged schedules that have been logged."""

    def due_workspaces(self, now: int) -> Query[list[int]]:
        return schedules.due_workspaces(now)

    def next_due(self, after: int) -> Query[int | None]:
        return schedules.next_due(after)

    async def fire_due(self, workspace: int) -> int | None:
        """Returns how many schedules of the workspace have handled what was due; None if some have to be tried
        again.
        """
        now = self._at.clock.now_us()
        after, fired, again = (0, 0), 0, False
        try:
            while due := await self._due(workspace, now, after):
                after = due[-1]
                for result in await asyncio.gather(*(self._fire(key, now) for _, key in due), return_exceptions=True):
                    match result:
                        case bool():
                            fired += result
                        case _NoneNow() | StoreError():
                            raise result
                        case _NotNow():
                            again = True
                        case _:
                            logger.error("a schedule cannot be fired", exc_info=result)
        except _NoneNow:  # the remaining ones are not tried
            return None
        except StoreError as error:
            logger.warning("schedules: the store rejects writes: %s", error.message)
            return None
        return None if again else fired

    async def _due(self, workspace: int, now: int, after: tuple[int, int]) -> list[tuple[int, int]]:
        return await self._at.records.read(schedules.due(now, workspace=workspace, after=after, limit=_AT_ONCE))

    async def _fire(self, key: int, now: int) -> bool:
        """Returns True if something of the schedule was due and has been handled."""
        row = await self._at.records.read(schedules.by_key(key))
        if row is None or row.next_at is None or row.next_at > now:
            return False  # changed in the meantime
        if row.damaged:  # nothing is written to it, because it may become readable again
            if key not in self._reported:
                self._reported.add(key)
                logger.error("schedule %s starts nothing: its %s is damaged", row.id, row.damaged)
            return False
        try:
            times = timing_of(row).due(row.next_at, now=now)
        except WeftlineError as error:  # a time zone that this machine no longer has
            await self._settle(row, row.next_at, error=error.message, now=now)
            return True
        if not times:
            time, run = await self._begun(row, row.next_at, now=now)
            error = "Skipped: its time was missed." if run is None else ""
            await self._settle(row, time, run=run, error=error, now=now)
            return True
        for time in times:
            async with self._places:
                await self._fire_once(row, time, now=now if time == times[-1] else time)
        return True

    async def _begun(self, row: ScheduleRow, first: int, *, now: int) -> tuple[int, str | None]:
        """The time that has a run among those from `first` to `now`, and that run: its process may have died before
        recording it. If none has, the last of those times.
        """
        timing, time = timing_of(row), first
        for _ in range(_LOOK_FOR):
            if (run := await self._started(row, time)) is not None:
                return time, run
            following = timing.next(time)
            if following is None or following > now:
                break
            time = following
        return timing.latest(first, now=now), None

    async def _fire_once(self, row: ScheduleRow, time: int, *, now: int) -> None:
        run, error = None, ""
        try:
            run = await self._start(row, time)
        except WeftlineError as failed:
            if isinstance(failed, StoreError) and failed.code != LOG_DAMAGED:
                raise
            if failed.retryable:
                logger.warning("schedule %s: cannot start its run now: %s", row.id, failed.message)
                raise _NoneNow if isinstance(failed, (RateLimited, Unavailable)) else _NotNow from None
            error = failed.message
        except Exception:
            logger.exception("schedule %s: starting its run failed", row.id)
            error = "The server failed to start the run; its log has the details."
        if error:
            logger.warning("schedule %s: could not start a run: %s", row.id, error)
        await self._settle(row, time, run=run, error=error, now=now)

    async def _settle(
        self, fired: ScheduleRow, time: int, *, now: int, run: str | None = None, error: str = ""
    ) -> None:
        """Records the outcome of a time and advances to the next one after `now`, unless the schedule was changed."""

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
