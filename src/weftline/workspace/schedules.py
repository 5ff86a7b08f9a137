"""Schedules: what a workspace runs automatically, and when."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import blake2b

from msgspec import Struct

from weftline.errors import LOG_DAMAGED, Conflict, InvalidRequest, NotFound, StoreError, invalid_field
from weftline.store.database import Query
from weftline.store.records import pages, schedules
from weftline.store.records.schedules import ALL, CATCH_UP, ONCE, SKIP, ScheduleColumns, ScheduleRow, ScheduleSummary
from weftline.workspace.agents import owns
from weftline.workspace.context import Caller, Change, Workspaces
from weftline.workspace.cron import parse_cron, parse_zone

MAX_PER_WORKSPACE = 1_000
MAX_CATCH_UP = 100
"""How many missed runs a schedule catches up on at most; these are the latest ones."""
ON_TIME_US = 60_000_000
"""A time that passed no longer ago than this was not missed: the shortest interval is a minute."""


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


class Work(Struct, frozen=True, kw_only=True):
    """The work of a schedule, and for whom it is done."""

    agent: str | None
    spec: bytes
    """The JSON that creates such a run, checked, with header values `[redacted]`."""
    secrets: bytes | None
    """The encrypted header values."""
    requested_by: str
    agents: tuple[str, ...] = ()
    """The allow-list of the requester; empty for all."""


class Changes(Struct, frozen=True, kw_only=True):
    """Changes to a schedule; None leaves a field unchanged."""

    name: str | None = None
    work: Work | None = None
    timing: Callable[[Timing], Timing] | None = None
    enabled: bool | None = None


class Once(Struct, frozen=True):
    """Identifies a repeated request."""

    key: str
    digest: bytes
    """Digest of its body."""


async def create(
    at: Workspaces,
    caller: Caller,
    name: str,
    *,
    timing: Timing,
    work: Work,
    enabled: bool = True,
    once: Once | None = None,
) -> ScheduleRow:
    """With `once`, a repeated request gets the schedule of the first one, in its current form.

    Raises `Conflict` (`idempotency_conflict`) if the first one had another body.
    """
    now, workspace = at.clock.now_us(), caller.workspace
    id = f"sch_{secrets.token_hex(10)}" if once is None else _id_of(once, workspace=workspace)

    def query() -> Query[ScheduleRow]:
        earlier = None if once is None else (yield from schedules.digest_of(id, workspace=workspace))
        if once is not None and earlier is not None:
            row = yield from schedules.by_id(id, workspace=workspace)
            # It may have been moved to another agent since, which this caller must not learn about.
            if row is None or earlier != once.digest or not owns(caller, row.agent):
                raise Conflict("This Idempotency-Key was used for another request.", code="idempotency_conflict")
            return row
        timing.check(now=now)
        if (yield from pages.count("schedules", workspace=workspace)) >= MAX_PER_WORKSPACE:
            raise InvalidRequest(f"A workspace can have at most {MAX_PER_WORKSPACE:,} schedules.")
        columns = _columns(name, timing, work, enabled=enabled, next_at=timing.next(now) if enabled else None)
        digest = b"" if once is None else once.digest
        return (yield from schedules.insert(id, columns, workspace=workspace, digest=digest, now=now))

    row = await at.records.write(query())
    await at.changed(Change("schedules", workspace))
    return row


async def change(at: Workspaces, caller: Caller, id: str, changes: Changes) -> ScheduleRow:
    """A schedule that is switched on again, or gets new times, starts over and catches up on nothing."""
    now = at.clock.now_us()

    def query() -> Query[ScheduleRow]:
        row = yield from _existing(id, caller=caller)
        require_whole(row)
        timing, enabled, next_at = timing_of(row), row.enabled, row.next_at
        if changes.timing is not None:
            timing = changes.timing(timing)
        if changes.enabled is not None:
            enabled = changes.enabled
        if not enabled:
            next_at = None
        elif not row.enabled or changes.timing is not None:
            timing.check(now=now)
            next_at = timing.next(now)
        name = row.name if changes.name is None else changes.name
        work = changes.work or work_of(row)
        columns = _columns(name, timing, work, enabled=enabled, next_at=next_at)
        changed = yield from schedules.update(row.key, columns, now=now)
        assert changed is not None
        return changed

    row = await at.records.write(query())
    await at.changed(Change("schedules", caller.workspace))
    return row


async def delete(at: Workspaces, caller: Caller, id: str) -> None:
    """Deletes a schedule; its runs are kept."""

    def query() -> Query[None]:
        row = yield from _existing(id, caller=caller)
        yield from schedules.delete(row.key)

    await at.records.write(query())


async def find(at: Workspaces, caller: Caller, id: str) -> ScheduleRow:
    """Raises `NotFound`, including for a schedule of an agent that the caller may not use, and `StoreError`
    (`log_damaged`).
    """
    row = await at.records.read(_existing(id, caller=caller))
    require_whole(row)
    return row


def require_whole(row: ScheduleSummary) -> None:
    """Raises `StoreError` (`log_damaged`): a damaged schedule must not run something else, or for somebody else."""
    if row.damaged:
        raise StoreError(f"The schedule {row.id} is damaged: its {row.damaged} cannot be read.", code=LOG_DAMAGED)


async def of_workspace(at: Workspaces, workspace: int) -> list[ScheduleSummary]:
    """Oldest first."""
    return await at.records.read(schedules.of_workspace(workspace))


async def visible(at: Workspaces, caller: Caller) -> list[ScheduleSummary]:
    """Those of the agents on the caller's allow-list, or else all; oldest first."""
    return [row for row in await of_workspace(at, caller.workspace) if owns(caller, row.agent)]


def timing_of(row: ScheduleSummary) -> Timing:
    return Timing(at=row.at, cron=row.cron, timezone=row.timezone, catch_up=row.catch_up)


def work_of(row: ScheduleRow) -> Work:
    return Work(agent=row.agent, spec=row.spec, secrets=row.secrets, requested_by=row.requested_by, agents=row.agents)


async def record_start(at: Workspaces, row: ScheduleRow, run: str) -> None:
    """Records a run that somebody started manually."""
    await at.records.write(schedules.fired(row.key, at=at.clock.now_us(), run=run, error=""))


def _id_of(once: Once, *, workspace: int) -> str:
    return f"sch_{blake2b(f'{workspace}:{once.key}'.encode(), digest_size=10).hexdigest()}"


def _columns(name: str, timing: Timing, work: Work, *, enabled: bool, next_at: int | None) -> ScheduleColumns:
    return ScheduleColumns(
        name=name,
        agent=work.agent,
        at=timing.at,
        cron=timing.cron,
        timezone=timing.timezone,
        catch_up=timing.catch_up,
        enabled=enabled,
        next_at=next_at,
        requested_by=work.requested_by,
        agents=work.agents,
        spec=work.spec,
        secrets=work.secrets,
    )


def _existing(id: str, *, caller: Caller) -> Query[ScheduleRow]:
    row = yield from schedules.by_id(id, workspace=caller.workspace)
    if row is None or not owns(caller, row.agent):
        raise NotFound("There is no such schedule.")
    return row
