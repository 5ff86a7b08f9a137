"""Runs: create, read, follow, answer, cancel."""

from __future__ import annotations

from functools import partial

from msgspec.json import encode

from weftline.api.cancelling import cancel_run
from weftline.api.client_calls import answer_call
from weftline.api.creating import create_run
from weftline.api.snapshots import snapshot_of
from weftline.api.views import awaits_of, receipt_of, run_view
from weftline.cases.base import find_run, locate_run
from weftline.events.profiles import parse_profile
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.creating import FOLLOWED, respond_created
from weftline.server.declared import Body
from weftline.server.http import Request, Response, StreamedResponse, idempotency, idempotency_key
from weftline.server.large import LARGE_BYTES
from weftline.server.router import EventStream, Route
from weftline.server.sse import LAST_EVENT_ID, is_event_source, resume_point, send_events, stream_view
from weftline.spec.fields import RunModel
from weftline.store.rows import LargeEntry, RunRow
from weftline.wire.limits import MAX_BODY_BYTES_WITH_FILES
from weftline.wire.requests import ToolResult, parse_tool_result
from weftline.wire.run_responses import AcceptedResult, Cancelled, CreatedRun, Run, snapshot
from weftline.wire.run_snapshots import WireSnapshot, to_wire_snapshot
from weftline.work.heavy import in_turn

PATH = "/api/v1/workspaces/{slug}/agent-runs"
RESULT_BODY_BYTES = 32 * 1024 * 1024
"""More than any valid result needs, so that the model can still be told about one that is too large."""
_RUN = Body[bytes](RunModel, limit_bytes=MAX_BODY_BYTES_WITH_FILES)
_RESULT = Body(ToolResult, parse_tool_result, RESULT_BODY_BYTES, repaired=True)


async def create(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    raw = await request.body()
    once = None if idempotency_key(request) is None else await idempotency(request, "agent-runs", raw)
    warn = partial(app.unknown_fields.warnings, request)
    return await respond_created(
        app, request, principal, lambda: create_run(app, principal, raw, idempotency=once, warn=warn)
    )


async def read(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    row = await find_run(app, principal, request.params["runId"])
    try:
        view = await run_view(app.engine.stored, row, max_bytes=LARGE_BYTES)
    except LargeEntry as large:
        make = partial(_make_large, app, row)
        return partial(app.large.make_and_send, request, principal.slug, size=large.size, make=make)
    stored = app.engine.stored
    return Response(snapshot(view, receipt=await receipt_of(stored, row), awaits=await awaits_of(stored, row)))


async def _make_large(app: App, row: RunRow) -> Response:
    receipt, awaits = await receipt_of(app.engine.stored, row), await awaits_of(app.engine.stored, row)
    view = await run_view(app.engine.stored, row)
    return Response(await in_turn(snapshot, view, receipt=receipt, awaits=awaits))


async def get_snapshot(app: App, request: Request, principal: Principal) -> Response:
    row = await find_run(app, principal, request.params["runId"])
    found = await snapshot_of(app.engine.stored.logs, row, thread=await app.engine.stored.session_id(row.listed_under))
    return Response(encode(to_wire_snapshot(found)))


async def stream(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    run_id = request.params["runId"]
    types = parse_profile(request.query_value("profile"))
    key = await locate_run(app, principal, request.params["runId"])
    after = resume_point(request)
    if after and is_event_source(request):
        row = await app.engine.stored.row(key)
        if row is not None and row.ended_at is not None and after >= row.next_seq - 1:
            # An EventSource reconnects whenever its stream ends, until it is told that there is nothing more.
            return Response(b"", status=204)
    view = await stream_view(app, key, run_id, types, workspace=principal.slug)
    follower = app.engine.follow(key, run_id, after=after, workspace=principal.workspace)
    return partial(send_events, request, app.engine, key, follower, app.backlog, view=view)


async def tool_results(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, principal, request.params["runId"])
    body = await request.read(_RESULT, user_agent=request.header(b"user-agent") or "")
    warnings = app.unknown_fields.warnings(request, body.unknown)
    once = idempotency_key(request) or ""
    with request.may_end_waits():
        return Response(encode(await answer_call(app.engine, key, body, idempotency_key=once, warnings=warnings)))


async def cancel(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, principal, request.params["runId"])
    return Response(encode(await cancel_run(app.engine, key, by=principal.who)))


ROUTES = (
    Route(
        "POST",
        PATH,
        create,
        scopes=("runs:write",),
        narrowed="its agents",
        live=True,
        summary="Create a run, and follow its events if the client accepts those",
        query=FOLLOWED,
        headers=(LAST_EVENT_ID,),
        body=_RUN,
        warns=True,
        idempotent=True,
        returns=CreatedRun | EventStream,
        status=202,
        errors=(409,),
    ),
    Route(
        "GET",
        f"{PATH}/{{runId}}",
        read,
        scopes=("runs:read",),
        narrowed="its agents",
        summary="Read a run",
        returns=Run,
        errors=(409,),
    ),
    Route(
        "GET",
        f"{PATH}/{{runId}}/snapshot",
        get_snapshot,
        scopes=("runs:read",),
        narrowed="its agents",
        summary="Read a run as it stands: phase, usage, calls, children and open questions",
        returns=WireSnapshot,
    ),
    Route(
        "GET",
        f"{PATH}/{{runId}}/stream",
        stream,
        scopes=("runs:read",),
        narrowed="its agents",
        limited=False,
        live=True,
        summary="Follow a run's events",
        query=FOLLOWED,
        headers=(LAST_EVENT_ID,),
        returns=EventStream,
        silent=True,
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/tool-results",
        tool_results,
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        live=True,
        summary="Answer a client-side tool call",
        body=_RESULT,
        warns=True,
        idempotent=True,
        returns=AcceptedResult,
        errors=(409,),
    ),
    Route(
        "POST",
        f"{PATH}/{{runId}}/cancel",
        cancel,
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        summary="Cancel a run",
        returns=Cancelled,
        errors=(409,),
    ),
)
