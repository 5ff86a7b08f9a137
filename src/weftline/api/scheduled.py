"""Runs of schedules: checked when the schedule is created, and created like any other run when it is due."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Raw, Struct, convert
from msgspec.json import decode
from msgspec.structs import replace

from weftline.api.agent_specs import RunSpec, effective
from weftline.api.creating import CreatingHost, create_checked
from weftline.api.parsing import parsed
from weftline.api.planning import plan_of
from weftline.errors import InvalidRequest, Issue, StoreError, WeftlineError, invalid
from weftline.plan import RunPlan
from weftline.spec.door import Sent, parse_run
from weftline.spec.tools import dialled_urls
from weftline.store.records.schedules import ScheduleRow
from weftline.store.rows import IdempotencyKey
from weftline.store.sealing import Headers
from weftline.wire.json_text import NULL, decode_fields, decode_object, encode
from weftline.wire.limits import KB
from weftline.wire.responses import iso
from weftline.wire.unknown_fields import UnknownField
from weftline.workspace import agents, schedules
from weftline.workspace.agents import kept_secrets
from weftline.workspace.context import Caller, Workspaces
from weftline.workspace.schedules import Work

SCHEDULE_KEY = "weftline.schedule"
"""The metadata key with the schedule of a run, by which lists find it."""
TIME_KEY = "weftline.scheduledFor"
MAX_SPEC_BYTES = 256 * KB
_ROUTE = "schedules"
"""A route of its own, so that no client's idempotency key can collide with a schedule's."""
_EXAMPLE = {SCHEDULE_KEY: "sch_" + 20 * "0", TIME_KEY: iso(0)}


class _Owner(Struct, frozen=True):
    """Who defined what the schedule runs, as far as that still matters."""

    workspace: int
    agents: tuple[str, ...]


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


async def start_now(
    app: CreatingHost, caller: Caller, row: ScheduleRow, *, idempotency: IdempotencyKey | None = None
) -> str:
    """Starts an additional run of a schedule, and records it there.

    Its starter need not know what it does, so it is still the author of the schedule who may not approve its calls.
    """
    body = await _body(app.workspaces, row, {SCHEDULE_KEY: row.id})
    run_id = await create_checked(app, caller, body, requested_by=row.requested_by, idempotency=idempotency)
    await schedules.record_start(app.workspaces, row, run_id)
    return run_id


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
        await parsed(parse_run, _stamped(body.spec, _EXAMPLE))
    except InvalidRequest as error:
        raise InvalidRequest(f"spec: {error.message}", **error.details) from None
    headers: Headers = body.secrets
    if earlier is not None:
        headers = kept_secrets(
            headers,
            urls=dialled_urls(body.spec),
            earlier=_headers(at, earlier),
            earlier_urls=dialled_urls(earlier.spec),
        )
    agent, stored = body.agent_id, body.spec
    if agent is not None:
        agent = await agents.id_of(at, caller.workspace, agent)
        stored = encode({**decode_fields(stored), "agentId": agent})
    whole = await effective(at, caller, agent, RunSpec(stored, headers))
    plan = await parsed(partial(plan_of, at, requested_by=requested_by), whole.spec)
    work = Work(
        agent=agent,
        spec=stored,
        secrets=at.vault.seal_headers(headers, workspace=caller.workspace),
        requested_by=requested_by,
        agents=tuple(caller.agents),
    )
    return work, plan, [replace(field, path=f"spec.{field.path}") for field in body.unknown]


async def _body(at: Workspaces, row: ScheduleRow, metadata: dict[str, str]) -> Sent:
    body = await parsed(parse_run, _stamped(row.spec, metadata))
    return replace(body, secrets=_headers(at, row))


def _stamped(spec: bytes, metadata: dict[str, str]) -> bytes:
    fields = decode_fields(spec)
    own = fields.get("metadata", NULL)
    declared: dict[str, str] = {} if own == NULL else convert(decode(own), dict[str, str])
    return encode({**fields, "metadata": Raw(encode({**declared, **metadata}))})


def _require_no_attachments(spec: bytes) -> None:
    """Refuses attachments: signed addresses expire before the schedule does, and files belong to runs."""
    fields = decode_object(spec)
    holders = [("", fields), *((f"messages[{n}].", one) for n, one in enumerate(fields.get("messages") or ()))]
    issues = [Issue(f"{at}attachments", "a schedule cannot have any") for at, one in holders if one.get("attachments")]
    if issues:
        raise invalid(issues)


def _headers(at: Workspaces, row: ScheduleRow) -> Headers:
    try:
        return at.vault.open_headers(row.secrets, workspace=row.workspace)
    except StoreError as error:  # a retry would not help
        raise WeftlineError(f"The secrets of its tools cannot be read: {error.message}", code="conflict") from None
