"""Forks: new runs that continue from a turn of one that has ended."""

from __future__ import annotations

from weftline.api.creating import Created
from weftline.api.forking import fork_run, log_bytes, parse_fork
from weftline.cases.base import find_run
from weftline.server.app import App
from weftline.server.auth import Principal, require_scopes
from weftline.server.bodies import object_body
from weftline.server.creating import FOLLOWED, respond_created
from weftline.server.http import Request, Response, StreamedResponse, idempotency
from weftline.server.router import EventStream, Route
from weftline.server.routes.runs import PATH
from weftline.server.sse import LAST_EVENT_ID
from weftline.spec.fields import ForkModel
from weftline.wire.run_responses import CreatedRun

_FORK = object_body(ForkModel, parse_fork)


async def fork(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    row = await find_run(app, principal, request.params["runId"])
    if row.thread is not None:
        require_scopes(principal, "sessions:write", to="fork a run of a session, which makes a session")
    raw = await request.body()
    once = await idempotency(request, f"fork/{request.params['runId']}", raw)
    asked, unknown = await request.parse(raw, _FORK)
    warnings = app.unknown_fields.warnings(request, unknown)

    async def create() -> Created:
        who = principal.who
        size = await log_bytes(app.engine.stored.logs, row)
        async with app.large.room_to_work(principal.slug, size):
            run_id = await fork_run(app.engine, app.workspaces, row, asked, requested_by=who, idempotency=once)
        return Created(run_id, warnings)

    return await respond_created(app, request, principal, create)


ROUTES = (
    Route(
        "POST",
        f"{PATH}/{{runId}}/fork",
        fork,
        scopes=("runs:write",),
        narrowed="its agents",
        summary="Continue from a turn of a run that has ended, as a new run",
        query=FOLLOWED,
        headers=(LAST_EVENT_ID,),
        body=_FORK,
        warns=True,
        idempotent=True,
        returns=CreatedRun | EventStream,
        status=202,
        errors=(409,),
    ),
)
