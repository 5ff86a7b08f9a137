"""Runs: create, read, follow, answer, cancel."""

from __future__ import annotations

import asyncio
from functools import partial
from hashlib import blake2b

from msgspec import UNSET
from msgspec.json import encode

from weftline import prompts
from weftline.agent.snapshots import snapshot_of
from weftline.api.creating import create_run
from weftline.api.parsing import off_loop, parsed
from weftline.api.views import await_views, cancelled, receipt_view, run_view
from weftline.errors import InvalidRequest
from weftline.server.access import find_run, locate_run
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.creating import answer_created
from weftline.server.http import Request, Response, StreamedResponse
from weftline.server.large import LARGE_BYTES
from weftline.server.profiles import profile_view
from weftline.server.router import EventStream, QueryParameter, Route
from weftline.server.sse import is_event_source, resume_point, send_events
from weftline.store.awaits import AwaitFilter
from weftline.store.base import IdempotencyKey, LargeEntry, RunRow
from weftline.store.records.pages import PAGE_BYTES
from weftline.tools.base import ToolOutput
from weftline.wire.awaits import OpenAwait
from weftline.wire.details import parse_profile
from weftline.wire.requests import ToolResult, parse_tool_result
from weftline.wire.responses import AcceptedResult, Cancelled, CancelReceipt, CreatedRun, Run, snapshot
from weftline.wire.run_snapshots import WireSnapshot, to_wire_snapshot

PATH = "/api/v1/workspaces/{slug}/agent-runs"
PROFILE = "Which events: `default`, `all`, `metrics`, or event types separated by commas."
_KEY_LIMIT = 255
_RESULT_BODY_BYTES = 32 * 1024 * 1024
"""More than any valid result needs, so that the model can still be told about one that is too large."""


async def create(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    raw = await request.body()
    once = None if idempotency_key(request) is None else await idempotency(request, "agent-runs", raw)
    warn = partial(app.unknown_fields.warnings, request)
    return await answer_created(
        app, request, principal, lambda: create_run(app, principal, raw, idempotency=once, warn=warn)
    )


async def read(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    row = await find_run(app, request, principal)
    try:
        view = await run_view(app.engine.stored, row, max_bytes=LARGE_BYTES)
    except LargeEntry as large:
        make = partial(_make_large, app, row)
        return partial(app.large.make_and_send, request, principal.slug, size=large.size, make=make)
    return Response(snapshot(view, receipt=await _receipt(app, row), awaits=await _awaits(app, row)))


async def _make_large(app: App, row: RunRow) -> Response:
    receipt, awaits = await _receipt(app, row), await _awaits(app, row)
    view = await run_view(app.engine.stored, row)
    return Response(await asyncio.to_thread(snapshot, view, receipt=receipt, awaits=awaits))


async def _awaits(app: App, row: RunRow) -> list[OpenAwait]:
    if row.ended_at is not None:
        return []
    found = await app.engine.stored.awaits(AwaitFilter(workspace=row.workspace, root=row.key, max_bytes=PAGE_BYTES))
    return await await_views([one for one in found if not one.unread], app.engine.stored.session_id)


async def _receipt(app: App, row: RunRow) -> CancelReceipt | None:
    if row.status != "cancelled":
        return None
    try:
        known = await app.engine.stored.entry(row.key, 1, max_bytes=LARGE_BYTES) is not None
    except LargeEntry:
        known = True
    # Retention has removed the calls of a run together with its spec.
    receipt = await app.engine.stored.receipt(row.key) if known else None
    return None if receipt is None else receipt_view(receipt)


async def get_snapshot(app: App, request: Request, principal: Principal) -> Response:
    row = await find_run(app, request, principal)
    found = await snapshot_of(app.engine.stored.logs, row, thread=await app.engine.stored.session_id(row.listed_under))
    return Response(encode(to_wire_snapshot(found)))


async def stream(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    run_id = request.params["runId"]
    types = parse_profile(request.query_value("profile"))
    key = await locate_run(app, request, principal)
    if is_event_source(request):
        row = await app.engine.stored.row(key)
        if row is not None and row.ended_at is not None and resume_point(request) >= row.next_seq - 1:
            # An EventSource reconnects whenever its stream ends, until it is told that there is nothing more.
            return Response(b"", status=204)
    view = app.view
    if types is not None:
        view = await profile_view(app, key, run_id, types, workspace=principal.slug)
    follower = app.engine.follow(key, run_id, after=resume_point(request), workspace=principal.workspace)
    return partial(send_events, request, app.engine, key, follower, app.backlog, view=view)


async def tool_results(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, request, principal)
    raw = await request.body(limit=_RESULT_BODY_BYTES)
    body = await parsed(partial(parse_tool_result, user_agent=request.header(b"user-agent") or ""), raw)
    warnings = app.unknown_fields.warnings(request, body.unknown)
    once = idempotency_key(request) or ""
    if body.oversize:
        # The client may give up after this, so the model is told too, and the run does not wait for the timeout.
        output = ToolOutput.of(prompts.calls.RESULT_TOO_LARGE, is_error=True)
        await app.engine.answer(key, body.tool_use_id, output, idempotency_key=once, token=body.token)
        raise InvalidRequest("result or error: larger than the limit; the call was closed with an error.")
    failed = body.error is not None
    failure = None if body.failure is None else body.failure.failure(body.error or "")
    output = ToolOutput.of(body.error or body.result or "", is_error=failed, failure=failure)
    accepted = await app.engine.answer(key, body.tool_use_id, output, idempotency_key=once, token=body.token)
    return Response(encode(AcceptedResult(ignored=UNSET if accepted else True, warnings=warnings)))


async def cancel(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, request, principal)
    receipt = await app.engine.cancel(key, requested_by=principal.who)
    return Response(encode(cancelled(receipt)))


async def idempotency(request: Request, route: str, body: bytes) -> IdempotencyKey | None:
    """Returns the idempotency key; None for a request without an `Idempotency-Key`."""
    key = idempotency_key(request)
    if key is None:
        return None
    hashing = partial(blake2b, body, digest_size=16)
    return IdempotencyKey(route, key, (await off_loop(hashing, size=len(body))).digest())


def idempotency_key(request: Request) -> str | None:
    key = request.header(b"idempotency-key")
    if key is not None and (not 1 <= len(key) <= _KEY_LIMIT or not key.isprintable()):
        raise InvalidRequest(f"Idempotency-Key: must have 1 to {_KEY_LIMIT} printable characters.")
    return key


ROUTES = (
    Route(
        "POST",
        PATH,
        create,
        scopes=("runs:write",),
        narrowed="its agents",
        summary="Create a run, and follow its events if the client accepts those",
        query=(QueryParameter("profile", str, PROFILE),),
        body="weftline.wire.run_spec:RunModel",
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
        summary="Follow a run's events",
        query=(
            QueryParameter("lastSeq", str, "The last event that was seen."),
            QueryParameter("profile", str, PROFILE),
        ),
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
        summary="Answer a client-side tool call",
        body=ToolResult,
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
    ),
)
