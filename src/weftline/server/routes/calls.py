"""The calls of a run, its approvals, and the calls in doubt of a workspace."""

from __future__ import annotations

from typing import Literal

from msgspec.json import encode

from weftline.api.cursors import cursor_of, key_of
from weftline.api.views import call_views, grant_views
from weftline.server.access import find_run
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.declared import QueryParameter
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.server.routes.lists import CURSOR, LIMIT, one_of, page_limit
from weftline.server.routes.runs import PATH
from weftline.wire.calls import CallPage
from weftline.wire.grants import GrantList

_STATE = QueryParameter("state", Literal["in_doubt"], "Must be `in_doubt`.")


async def of_run(app: App, request: Request, principal: Principal) -> Response:
    row = await find_run(app, request, principal)
    calls = await app.engine.stored.calls(row)
    limit = page_limit(request)
    cursor = request.query_value("cursor")
    first = 0 if cursor is None else key_of(cursor)
    page = calls[first : first + limit]
    more = cursor_of(first + limit) if first + limit < len(calls) else None
    return Response(encode(CallPage(call_views(page), more)))


async def grants(app: App, request: Request, principal: Principal) -> Response:
    row = await find_run(app, request, principal)
    return Response(encode(GrantList(await grant_views(app.workspaces, await app.engine.stored.grants(row)))))


async def in_doubt(app: App, request: Request, principal: Principal) -> Response:
    one_of(request, _STATE)
    cursor = request.query_value("cursor")
    before = None if cursor is None else key_of(cursor)
    page = await app.engine.stored.calls_in_doubt(principal.workspace, before=before, limit=page_limit(request))
    more = None if page.before is None else cursor_of(page.before)
    return Response(encode(CallPage(call_views(page.calls), more)))


ROUTES = (
    Route(
        "GET",
        f"{PATH}/{{runId}}/calls",
        of_run,
        scopes=("runs:read",),
        narrowed="its agents",
        summary="List the calls of a run",
        query=(LIMIT, CURSOR),
        returns=CallPage,
    ),
    Route(
        "GET",
        f"{PATH}/{{runId}}/grants",
        grants,
        scopes=("runs:read",),
        narrowed="its agents",
        summary="List what people allowed a run to do",
        returns=GrantList,
    ),
    Route(
        "GET",
        "/api/v1/workspaces/{slug}/calls",
        in_doubt,
        scopes=("runs:read",),
        summary="List the calls of a workspace that may or may not have happened",
        query=(_STATE, LIMIT, CURSOR),
        returns=CallPage,
    ),
)
