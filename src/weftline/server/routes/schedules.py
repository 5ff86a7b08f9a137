"""Schedules: runs that a workspace starts automatically."""

from __future__ import annotations

from functools import partial

from msgspec.json import encode

from weftline.api.planning import runnable
from weftline.api.scheduled import checked_work, start_now
from weftline.api.schemas.schedules import (
    Schedule,
    ScheduleChangesModel,
    ScheduleModel,
    Schedules,
    listed_schedule_json,
    parse_schedule,
    parse_schedule_changes,
    schedule_json,
)
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.declared import Body
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.server.routes.runs import idempotency
from weftline.wire.errors import client_names
from weftline.wire.responses import Ok
from weftline.wire.run_responses import CreatedRun, created_run, run_url
from weftline.workspace import schedules
from weftline.workspace.schedules import Changes, Once

_BASE = "/api/v1/workspaces/{slug}/schedules"
_LIMIT_BYTES = 1024 * 1024
_SCHEDULE = Body(ScheduleModel, parse_schedule, _LIMIT_BYTES)
_CHANGES = Body(ScheduleChangesModel, parse_schedule_changes, _LIMIT_BYTES)


async def create(app: App, request: Request, principal: Principal) -> Response:
    raw = await request.body()
    sent = await request.parse(raw, _SCHEDULE)
    key = await idempotency(request, "schedules", raw)
    assert isinstance(sent.fields, ScheduleModel) and sent.spec is not None
    work, plan, unknown = await checked_work(app.workspaces, principal, sent.spec, requested_by=principal.who)
    warnings = await runnable(
        app.engine, principal, plan, [*sent.unknown, *unknown], warn=partial(app.unknown_fields.warnings, request)
    )
    with client_names(sent.unknown):
        row = await schedules.create(
            app.workspaces,
            principal,
            sent.fields.name,
            timing=sent.timing(),
            work=work,
            enabled=sent.fields.enabled is not False,
            once=None if key is None else Once(key.key, key.digest),
        )
    return Response(encode(schedule_json(row, warnings)), status=201)


async def index(app: App, request: Request, principal: Principal) -> Response:
    rows = await schedules.visible(app.workspaces, principal)
    return Response(encode(Schedules([listed_schedule_json(row) for row in rows])))


async def read(app: App, request: Request, principal: Principal) -> Response:
    row = await schedules.find(app.workspaces, principal, request.params["scheduleId"])
    return Response(encode(schedule_json(row)))


async def change(app: App, request: Request, principal: Principal) -> Response:
    row = await schedules.find(app.workspaces, principal, request.params["scheduleId"])
    sent = await request.read(_CHANGES)
    work, unknown = None, sent.unknown
    if sent.spec is not None:
        work, plan, inside = await checked_work(
            app.workspaces, principal, sent.spec, requested_by=principal.who, earlier=row
        )
        warn = partial(app.unknown_fields.warnings, request)
        warnings = await runnable(app.engine, principal, plan, [*unknown, *inside], warn=warn)
    else:
        warnings = app.unknown_fields.warnings(request, unknown)
    app.require_accepting(principal)
    changes = Changes(
        name=sent.fields.name,
        work=work,
        timing=sent.timing if sent.changes_times else None,
        enabled=sent.fields.enabled,
    )
    with client_names():
        row = await schedules.change(app.workspaces, principal, row.id, changes)
    return Response(encode(schedule_json(row, warnings)))


async def delete(app: App, request: Request, principal: Principal) -> Response:
    app.engine.require_writable()
    await schedules.delete(app.workspaces, principal, request.params["scheduleId"])
    return Response(encode(Ok()))


async def run(app: App, request: Request, principal: Principal) -> Response:
    row = await schedules.find(app.workspaces, principal, request.params["scheduleId"])
    once = await idempotency(request, f"schedules/{row.id}", b"")
    run_id = await start_now(app, principal, row, idempotency=once)
    return Response(created_run(run_id, run_url(run_id, principal.slug, root=request.root)), status=202)


_ONE = f"{_BASE}/{{scheduleId}}"
_READ = ("schedules:read",)
_WRITE = ("schedules:write",)
_WRITE_AND_RUN = ("schedules:write", "runs:write")
"""Scheduling creates runs, so it takes the permission for that too."""
ROUTES = (
    Route(
        "GET",
        _BASE,
        index,
        scopes=_READ,
        narrowed="its agents",
        summary="List the schedules",
        returns=Schedules,
    ),
    Route(
        "POST",
        _BASE,
        create,
        scopes=_WRITE_AND_RUN,
        narrowed="its agents",
        summary="Create a schedule",
        body=_SCHEDULE,
        warns=True,
        idempotent=True,
        returns=Schedule,
        status=201,
        errors=(404, 409),
    ),
    Route("GET", _ONE, read, scopes=_READ, narrowed="its agents", summary="Read a schedule", returns=Schedule),
    Route(
        "PATCH",
        _ONE,
        change,
        scopes=_WRITE_AND_RUN,
        narrowed="its agents",
        summary="Change a schedule, or switch it on or off",
        body=_CHANGES,
        warns=True,
        returns=Schedule,
    ),
    Route("DELETE", _ONE, delete, scopes=_WRITE, narrowed="its agents", summary="Remove a schedule", returns=Ok),
    Route(
        "POST",
        f"{_ONE}/run",
        run,
        scopes=_WRITE_AND_RUN,
        narrowed="its agents",
        summary="Start a run of a schedule now",
        idempotent=True,
        returns=CreatedRun,
        status=202,
        errors=(409,),
    ),
)
