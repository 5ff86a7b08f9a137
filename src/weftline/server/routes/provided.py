"""The client calls of a turn, answered together."""

from __future__ import annotations

from functools import partial

from msgspec import UNSET
from msgspec.json import encode

from weftline.api.parsing import parsed
from weftline.api.schemas.provided import ResultsModel, parse_results
from weftline.server.access import locate_run
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.server.routes.runs import PATH, idempotency_key
from weftline.wire.json_text import decode_object
from weftline.wire.responses import AcceptedResult

_BODY_BYTES = 32 * 1024 * 1024


async def provide(app: App, request: Request, principal: Principal) -> Response:
    key = await locate_run(app, request, principal)
    fields = await parsed(decode_object, await request.body(limit=_BODY_BYTES))
    sent = parse_results(fields)
    warnings = app.unknown_fields.warnings(request, sent.unknown)
    give = partial(app.engine.provide, key, request.params["awaitId"], sent.results, problems=sent.problems)
    accepted = await give(idempotency_key=idempotency_key(request) or "")
    return Response(encode(AcceptedResult(ignored=UNSET if accepted else True, warnings=warnings)))


ROUTES = (
    Route(
        "POST",
        f"{PATH}/{{runId}}/tool-results/{{awaitId}}",
        provide,
        scopes=("runs:write",),
        narrowed="its agents",
        limited=False,
        summary="Answer all client-side tool calls of a turn",
        body=ResultsModel,
        warns=True,
        idempotent=True,
        returns=AcceptedResult,
        errors=(409,),
    ),
)
