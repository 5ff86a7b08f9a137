"""The calls of a run, its turns and its approvals; and the calls in doubt of a workspace."""

from __future__ import annotations

from functools import partial
from typing import Literal

from msgspec.json import encode

from weftline.api.cursors import cursor_of, key_of
from weftline.api.turns import turn_view
from weftline.api.views import call_views, grant_views
from weftline.cases.base import find_run
from weftline.errors import NotFound
from weftline.runtime.reads.calls import PAGE_BYTES, Contents
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.declared import QueryParameter
from weftline.server.http import Request, Response, StreamedResponse
from weftline.server.large import LARGE_BYTES
from weftline.server.paging import CURSOR, LIMIT, one_of, page_limit
from weftline.server.router import Route
from weftline.server.routes.runs import PATH
from weftline.store.rows import LargeEntry, RunRow
from weftline.wire.awaits import GrantList
from weftline.wire.run_responses import CallPage
from weftline.wire.turns import Turn
from weftline.work.heavy import in_turn

_STATE = QueryParameter("state", Literal["in_doubt"], "Must be `in_doubt`.")
_CONTENTS = QueryParameter("contents", Literal["true", "false"], "`true`: with arguments and results.")
_MAX_DIGITS = 9


async def of_run(app: App, request: Request, principal: Principal) -> Response:
    row = await find_run(app, principal, request.params["runId"])
    limit = page_limit(request)
    cursor = request.query_value("cursor")
    first = 0 if cursor is None else key_of(cursor)
    contents = Contents(PAGE_BYTES, first, first + limit) if one_of(request, _CONTENTS) == "true" else None
    calls = await app.engine.stored.calls(row, contents=contents)
    end = first + limit if contents is None else contents.end
    more = cursor_of(end) if end < len(calls) else None
    return Response(encode(CallPage(call_views(calls[first:end]), more)))


async def turn(app: App, request: Request, principal: Principal) -> Response | StreamedResponse:
    row = await find_run(app, principal, request.params["runId"])
    asked = request.params["turn"]
    if asked != "last" and not (asked.isascii() and asked.isdigit() and len(asked) <= _MAX_DIGITS):
        raise NotFound("A turn is a number, or `last`.", code="unknown_turn")
    wanted = None if asked == "last" else int(asked)
    try:
        return Response(encode(turn_view(await app.engine.stored.turn(row, wanted, max_bytes=LARGE_BYTES))))
    except LargeEntry as large:
        make = partial(_large_turn, app, row, wanted)
        return partial(app.large.make_and_send, request, principal.slug, size=large.size, make=make)


async def _large_turn(app: App, row: RunRow, wanted: int | None) -> Response:
    found = await app.engine.stored.turn(row, wanted)
    return Response(await in_turn(lambda: encode(turn_view(found))))


async def grants(app: App, request: Request, principal: Principal) -> Response:
    row = await find_run(app, principal, request.params["runId"])
    return Response(encode(GrantList(await grant_views(app.workspaces, await app.engine.stored.grants(row)))))


async def in_doubt(app: App, request: Request, principal: Principal) -> Response:
    one_of(request, _STATE)
    cursor = request.query_value("cursor")
    before = None if cursor is None else key_of(cursor)
    contents = one_of(request, _CONTENTS) == "true"
    limit = page_limit(request)
    page = await app.engine.stored.calls_in_doubt(principal.workspace, before=before, limit=limit, contents=contents)
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
        query=(LIMIT, CURSOR, _CONTENTS),
        returns=CallPage,
    ),
    Route(
        "GET",
        f"{PATH}/{{runId}}/turns/{{turn}}",
        turn,
        scopes=("runs:read",),
        narrowed="its agents",
        summary="Read a turn of a run: what the model was sent, what it answered, and what it cost",
        returns=Turn,
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
        query=(_STATE, LIMIT, CURSOR, _CONTENTS),
        returns=CallPage,
    ),
)
