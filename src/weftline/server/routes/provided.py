"""The client calls of a turn, answered together."""

from __future__ import annotations

from msgspec.json import encode

from weftline.api.client_calls import answer_calls
from weftline.api.schemas.provided import ResultsModel, parse_results
from weftline.cases.base import locate_run
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.bodies import object_body
from weftline.server.http import Request, Response, idempotency_key
from weftline.server.router import Route
from weftline.server.routes.runs import PATH, RESULT_BODY_BYTES
from weftline.wire.run_responses import AcceptedResult

_RESULTS = object_body(ResultsModel, parse_results, limit_bytes=RESULT_BODY_BYTES)


async def provide(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, principal, request.params["runId"])
    sent = await request.read(_RESULTS)
    warnings = app.unknown_fields.warnings(request, sent.unknown)
    await_id, once = request.params["awaitId"], idempotency_key(request) or ""
    with request.may_end_waits():
        accepted = await answer_calls(app.engine, key, await_id, sent, idempotency_key=once, warnings=warnings)
    return Response(encode(accepted))


ROUTES = (
    Route(
        "POST",
        f"{PATH}/{{runId}}/tool-results/{{awaitId}}",
        provide,
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        live=True,
        summary="Answer all client-side tool calls of a turn",
        body=_RESULTS,
        warns=True,
        idempotent=True,
        returns=AcceptedResult,
        errors=(409,),
    ),
)
