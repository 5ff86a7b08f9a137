"""Stored tools: create, list, read, change, delete."""

from __future__ import annotations

from functools import partial

from msgspec.json import encode

from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Answer, Request
from weftline.server.router import Route
from weftline.server.stored_tools import MAX_BODY_BYTES, parse_tool, shown_tool, store_changed, store_new
from weftline.store.sqlite import tools
from weftline.wire.json_text import decode_object

_BASE = "/api/v1/workspaces/{slug}/tools"


async def create(app: App, request: Request, principal: Principal) -> Answer:
    draft = parse_tool(decode_object(await request.body(limit=MAX_BODY_BYTES)))
    app.engine.require_accepting()
    now = app.engine.clock.now_us()
    row = await app.engine.store.job(partial(store_new, workspace=principal.workspace, draft=draft, now=now))
    return Answer(encode(shown_tool(row)), status=201)


async def listed(app: App, request: Request, principal: Principal) -> Answer:
    return Answer(encode({"tools": [shown_tool(row) for row in app.engine.read.tools(principal.workspace)]}))


async def read(app: App, request: Request, principal: Principal) -> Answer:
    row = app.engine.read.tool(request.params["toolId"], workspace=principal.workspace)
    if row is None:
        raise tools.no_such_tool()
    return Answer(encode(shown_tool(row)))


async def change(app: App, request: Request, principal: Principal) -> Answer:
    fields = decode_object(await request.body(limit=MAX_BODY_BYTES))
    app.engine.require_accepting()
    row = await app.engine.store.job(
        partial(
            store_changed,
            workspace=principal.workspace,
            id=request.params["toolId"],
            fields=fields,
            now=app.engine.clock.now_us(),
        )
    )
    return Answer(encode(shown_tool(row)))


async def delete(app: App, request: Request, principal: Principal) -> Answer:
    app.engine.require_accepting()
    await app.engine.store.job(partial(tools.delete_tool, id=request.params["toolId"], workspace=principal.workspace))
    return Answer(b'{"ok":true}')


ROUTES = (
    Route("POST", _BASE, create, scopes=("tools:write",), summary="Store a tool"),
    Route("GET", _BASE, listed, scopes=("tools:read",), summary="The stored tools"),
    Route("GET", f"{_BASE}/{{toolId}}", read, scopes=("tools:read",), summary="Read a stored tool"),
    Route("PATCH", f"{_BASE}/{{toolId}}", change, scopes=("tools:write",), summary="Change a stored tool"),
    Route("DELETE", f"{_BASE}/{{toolId}}", delete, scopes=("tools:write",), summary="Delete a stored tool"),
)
