"""Schedules: what a workspace runs automatically, and when.

The runs of a schedule are checked when it is stored, and created like any other run when it is due: see `firing`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import asdict, replace
from pydantic import Field, StringConstraints

from weftline.api.planning import SpecAndHeaders, effective, plan_of, runnable
from weftline.api.principal import Principal
from weftline.cases.agents import kept_secrets
from weftline.cases.base import Host, Repeatable, Sent, require_accepting
from weftline.cases.firing import SCHEDULE_KEY, TIME_KEY, Timing, headers_of, stamped, start_now, timing_of
from weftline.errors import (
    LOG_DAMAGED,
    Conflict,
    InvalidRequest,
    Issue,
    NotFound,
    StoreError,
    invalid,
)
from weftline.plan import RunPlan
from weftline.spec.door import parse_run
from weftline.spec.tools import dialled_urls
from weftline.store.database import Query
from weftline.store.records import pages, schedules
from weftline.store.records.schedules import CATCH_UP, ScheduleColumns, ScheduleRow, ScheduleSummary
from weftline.store.rows import IdempotencyKey
from weftline.store.sealing import Headers
from weftline.wire.errors import client_names, error_code
from weftline.wire.json_text import decode_fields, decode_object, encode
from weftline.wire.limits import KB
from weftline.wire.models import NO_NUL, Part
from weftline.wire.responses import JsonObject, Time, Warnings, iso, iso_or_none
from weftline.wire.run_responses import CreatedRun, run_url
from weftline.wire.unknown_fields import UnknownField
from weftline.work.heavy import parsed
from weftline.workspace import agents
from weftline.workspace.agents import owns
from weftline.workspace.context import Caller, Change, Workspaces
from weftline.workspace.cron import MAX_CHARS

MAX_PER_WORKSPACE = 1_000
MAX_SPEC_BYTES = 256 * KB
FOLDER = "folder"
"""Who requests the runs of schedules that a folder of agents defines."""
_EXAMPLE = {SCHEDULE_KEY: "sch_" + 20 * "0", TIME_KEY: iso(0)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_YEAR = 9000
CatchUp: TypeAlias = Literal["skip", "once", "all"]
_Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=NO_NUL)]
_At: TypeAlias = Annotated[str, Field(max_length=64, description="A time with a time zone: 2030-01-31T12:00:00Z.")]
_Cron: TypeAlias = Annotated[str, Field(max_length=MAX_CHARS, description="Minute, hour, day, month, day of week.")]
_Zone: TypeAlias = Annotated[str, Field(max_length=64, description="Of the cron expression: Europe/Berlin.")]
_Spec: TypeAlias = Annotated[dict[str, Any], Field(description="The body that creates such a run.")]


class ScheduleModel(Part):
    """The body that creates a schedule: `at` or `cron`, and what to run."""

    name: _Name
    spec: _Spec
    at: _At | None = None
    cron: _Cron | None = None
    timezone: _Zone | None = None
    catchUp: CatchUp | None = None
    enabled: bool | None = None


class ScheduleChangesModel(Part):
    """Changes to a schedule. Absent fields stay as they are."""

    name: _Name | None = None
    spec: _Spec | None = None
    at: _At | None = None
    cron: _Cron | None = None
    timezone: _Zone | None = None
    catchUp: CatchUp | None = None
    enabled: bool | None = None


class _Known(Struct, rename="camel"):
    id: str
    name: str
    agent_id: str | None
    at: Time | None
    cron: str | None
    timezone: str
    catch_up: Annotated[str, Meta(extra_json_schema={"enum": list(CATCH_UP)})]
    enabled: bool
    next_at: Time | None
    last_at: Time | None
    last_run_id: str | None
    last_error: str
    requested_by: str
    created_at: Time
    updated_at: Time


class ListedSchedule(_Known, rename="camel"):
    error_code: str | UnsetType = UNSET
    """`log_damaged` if its stored data is unreadable, so that it starts nothing; left out otherwise."""


class Schedule(_Known, rename="camel"):
    spec: JsonObject
    """As it was sent, with header values of its tools as `[redacted]`."""
    warnings: Warnings = UNSET


class Schedules(Struct):
    schedules: list[ListedSchedule]


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


async def create(on: Host, by: Principal, sent: Repeatable[ScheduleModel]) -> Schedule:
    body = await sent.read()
    fields = body.fields
    once = await sent.once("schedules", body.raw)
    spec = await parsed(_spec_in, body.raw)
    work, plan, unknown = await checked_work(on.workspaces, by, spec, requested_by=by.who)
    warnings = await runnable(on.engine, by, plan, [*body.unknown, *unknown], warn=sent.warn)
    with client_names(body.unknown):
        row = await add(
            on.workspaces,
            by,
            fields.name,
            timing=_timing(fields),
            work=work,
            enabled=fields.enabled is not False,
            once=once,
        )
    return _shown(row, warnings)


async def index(on: Host, by: Caller) -> Schedules:
    return Schedules([_listed(row) for row in await rows_of(on.workspaces, by)])


async def read(on: Host, by: Caller, schedule_id: str) -> Schedule:
    return _shown(await find(on.workspaces, by, schedule_id))


async def change(on: Host, by: Principal, schedule_id: str, sent: Sent[ScheduleChangesModel]) -> Schedule:
    earlier = await find(on.workspaces, by, schedule_id)
    body = await sent.read()
    if body.fields.spec is not None:
        spec = await parsed(_spec_in, body.raw)
        work, plan, unknown = await checked_work(on.workspaces, by, spec, requested_by=by.who, earlier=earlier)
        warnings = await runnable(on.engine, by, plan, [*body.unknown, *unknown], warn=sent.warn)
    else:
        work, warnings = None, sent.warn(body.unknown)
    require_accepting(on, by)
    with client_names():
        row = await amend(on.workspaces, by, earlier.id, body.fields, work=work)
    return _shown(row, warnings)


async def delete(on: Host, by: Caller, schedule_id: str) -> None:
    """Deletes a schedule; its runs are kept."""
    on.engine.require_writable()

    def query() -> Query[None]:
        row = yield from _existing(schedule_id, caller=by)
        yield from schedules.delete(row.key)

    await on.workspaces.records.write(query())


async def run(on: Host, by: Principal, schedule_id: str, sent: Repeatable[None]) -> CreatedRun:
    row = await find(on.workspaces, by, schedule_id)
    run_id = await start_now(on, by, row, idempotency=await sent.once(f"schedules/{row.id}", b""))
    return CreatedRun(run_id, f"{run_url(run_id, by.slug, root=sent.root)}/stream")


async def checked_work(
    at: Workspaces, caller: Caller, spec: bytes, *, requested_by: str, earlier: ScheduleRow | None = None
) -> tuple[Work, RunPlan, Sequence[UnknownField]]:
    """Returns what a schedule runs, its current plan, and its unknown fields.

    A secret that is sent back as `[redacted]` keeps its value in the `earlier` schedule.
    """
    if len(spec) > MAX_SPEC_BYTES:
        raise invalid([Issue("spec", f"has more than {MAX_SPEC_BYTES:,} bytes of JSON")])
    try:
        body = await parsed(parse_run, spec)
        _require_no_attachments(body.spec)
        if body.run_id is not None:
            raise invalid([Issue("runId", "a schedule starts many runs, and each gets its own id")])
        await parsed(parse_run, stamped(body.spec, _EXAMPLE))
    except InvalidRequest as error:
        raise InvalidRequest(f"spec: {error.message}", **error.details) from None
    headers: Headers = body.secrets
    if earlier is not None:
        headers = kept_secrets(
            headers,
            urls=dialled_urls(body.spec),
            earlier=headers_of(at, earlier),
            earlier_urls=dialled_urls(earlier.spec),
        )
    agent, stored = body.agent_id, body.spec
    if agent is not None:
        agent = await agents.id_of(at, caller.workspace, agent)
        stored = encode({**decode_fields(stored), "agentId": agent})
    whole = await effective(at, caller, agent, SpecAndHeaders(stored, headers))
    plan = await parsed(partial(plan_of, at, requested_by=requested_by), whole.spec)
    work = Work(
        agent=agent,
        spec=stored,
        secrets=at.vault.seal_headers(headers, workspace=caller.workspace),
        requested_by=requested_by,
        agents=tuple(caller.agents),
    )
    return work, plan, [replace(field, path=f"spec.{field.path}") for field in body.unknown]


def _require_no_attachments(spec: bytes) -> None:
    """Refuses attachments: signed addresses expire before the schedule does, and files belong to runs."""
    fields = decode_object(spec)
    holders = [("", fields), *((f"messages[{n}].", one) for n, one in enumerate(fields.get("messages") or ()))]
    issues = [Issue(f"{at}attachments", "a schedule cannot have any") for at, one in holders if one.get("attachments")]
    if issues:
        raise invalid(issues)


def _spec_in(body: bytes) -> bytes:
    return bytes(decode_fields(body)["spec"])


def _timing(sent: ScheduleModel | ScheduleChangesModel, earlier: Timing | None = None) -> Timing:
    """Returns the times; fields that were not sent stay as they were."""
    timing = earlier or Timing()
    if sent.at is not None and sent.cron is not None:
        raise invalid([Issue("cron", "give exactly one of `at` and `cron`")])
    if sent.at is not None:
        timing = replace(timing, at=_time(sent.at), cron="")
    if sent.cron is not None:
        timing = replace(timing, at=None, cron=sent.cron)
    if sent.timezone is not None:
        timing = replace(timing, timezone=sent.timezone)
    return timing if sent.catchUp is None else replace(timing, catch_up=sent.catchUp)


def _time(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        time = None
    if time is None or time.tzinfo is None:
        raise invalid([Issue("at", "must be a time with a time zone, such as 2030-01-31T12:00:00Z")])
    if time.year >= _MAX_YEAR:
        raise invalid([Issue("at", f"must be before the year {_MAX_YEAR}")])
    if time.year <= _EPOCH.year:
        raise invalid([Issue("at", "this time has passed")])
    return (time - _EPOCH) // timedelta(microseconds=1)


async def add(
    at: Workspaces,
    caller: Caller,
    name: str,
    *,
    timing: Timing,
    work: Work,
    enabled: bool = True,
    once: IdempotencyKey | None = None,
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


async def amend(
    at: Workspaces, caller: Caller, id: str, sent: ScheduleChangesModel, *, work: Work | None = None
) -> ScheduleRow:
    """A schedule that is switched on again, or gets new times, starts over and catches up on nothing."""
    now = at.clock.now_us()
    new_times = any(value is not None for value in (sent.at, sent.cron, sent.timezone, sent.catchUp))

    def query() -> Query[ScheduleRow]:
        row = yield from _existing(id, caller=caller)
        require_whole(row)
        timing, next_at = timing_of(row), row.next_at
        if new_times:
            timing = _timing(sent, timing)
        enabled = row.enabled if sent.enabled is None else sent.enabled
        if not enabled:
            next_at = None
        elif not row.enabled or new_times:
            timing.check(now=now)
            next_at = timing.next(now)
        name = row.name if sent.name is None else sent.name
        columns = _columns(name, timing, work or work_of(row), enabled=enabled, next_at=next_at)
        changed = yield from schedules.update(row.key, columns, now=now)
        assert changed is not None
        return changed

    row = await at.records.write(query())
    await at.changed(Change("schedules", caller.workspace))
    return row


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


async def rows_of(at: Workspaces, caller: Caller) -> list[ScheduleSummary]:
    """Those of the agents on the caller's allow-list, or else all; oldest first."""
    found = await at.records.read(schedules.of_workspace(caller.workspace))
    return [row for row in found if owns(caller, row.agent)]


class DefinedSchedule(Protocol):
    """A schedule that a folder of agents defines."""

    @property
    def name(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def cron(self) -> str: ...
    @property
    def timezone(self) -> str: ...
    @property
    def prompt(self) -> str: ...


class _Everybody(Struct, frozen=True):
    """Who may use all agents of a workspace."""

    workspace: int
    agents: tuple[str, ...] = ()


async def keep_defined(at: Workspaces, workspace: int, wanted: Iterable[DefinedSchedule]) -> None:
    """Makes the schedules that the server's folder defines those of a workspace.

    One that was defined earlier, but is not any more, is removed. One that a person has paused stays so.
    """
    by, now = _Everybody(workspace), at.clock.now_us()
    columns: dict[str, ScheduleColumns] = {}
    for one in wanted:
        spec = encode({"agentId": one.agent, "prompt": one.prompt})
        work, _, _ = await checked_work(at, by, spec, requested_by=FOLDER)
        timing = Timing(cron=one.cron, timezone=one.timezone)
        id = _id_of(IdempotencyKey(FOLDER, f"{FOLDER}:{one.name}", b""), workspace=workspace)
        columns[id] = _columns(one.name, timing, work, enabled=True, next_at=timing.next(now))

    def query() -> Query[None]:
        for row in (yield from schedules.of_workspace(workspace)):
            if row.requested_by == FOLDER and row.id not in columns:
                yield from schedules.delete(row.key)
        for id, new in columns.items():
            row = yield from schedules.by_id(id, workspace=workspace)
            if row is None:
                yield from schedules.insert(id, new, workspace=workspace, digest=b"", now=now)
            elif any(getattr(row, one) != getattr(new, one) for one in ("name", "agent", "spec", "cron", "timezone")):
                kept = new if row.enabled else replace(new, enabled=False, next_at=None)
                yield from schedules.update(row.key, kept, now=now)

    await at.records.write(query())


def work_of(row: ScheduleRow) -> Work:
    return Work(agent=row.agent, spec=row.spec, secrets=row.secrets, requested_by=row.requested_by, agents=row.agents)


def _id_of(once: IdempotencyKey, *, workspace: int) -> str:
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


def _listed(row: ScheduleSummary) -> ListedSchedule:
    return ListedSchedule(**asdict(_known(row)), error_code=error_code(row.damaged))


def _shown(row: ScheduleRow, warnings: Warnings = UNSET) -> Schedule:
    return Schedule(**asdict(_known(row)), spec=Raw(row.spec), warnings=warnings)


def _known(row: ScheduleSummary) -> _Known:
    return _Known(
        row.id,
        row.name,
        row.agent,
        iso_or_none(row.at),
        row.cron or None,
        row.timezone,
        row.catch_up,
        row.enabled,
        iso_or_none(row.next_at),
        iso_or_none(row.last_at),
        row.last_run,
        row.last_error,
        row.requested_by,
        iso(row.created_at),
        iso(row.updated_at),
    )
