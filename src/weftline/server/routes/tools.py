"""Stored tools: create, list, read, change, delete."""

from __future__ import annotations

import asyncio

from msgspec.json import encode

from weftline.api.schemas.tools import (
    MAX_BODY_BYTES,
    Tool,
    ToolChangesModel,
    ToolModel,
    Tools,
    parse_tool,
    parse_tool_changes,
    tool_json,
)
from weftline.cases.base import require_accepting
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.bodies import object_body
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.server.routes.lists import CURSOR, STORED_LIMIT, next_cursor, stored_page
from weftline.wire.errors import client_names
from weftline.wire.responses import Ok
from weftline.workspace import tools

_BASE = "/api/v1/workspaces/{slug}/tools"
_TOOL = object_body(ToolModel, parse_tool, limit_bytes=MAX_BODY_BYTES)
_CHANGES = object_body(ToolChangesModel, parse_tool_changes, limit_bytes=MAX_BODY_BYTES)


async def create(app: App, request: Request, principal: Principal) -> Response:
    spec, values, unknown = await request.read(_TOOL)
    warnings = app.unknown_fields.warnings(request, unknown)
    require_accepting(app, principal)
    with client_names():
        row = await tools.create(app.workspaces, principal.workspace, spec, values=values)
    return Response(encode(tool_json(row, warnings)), status=201)


async def index(app: App, request: Request, principal: Principal) -> Response:
    after, limit = stored_page(app, request, principal)
    page = await tools.page(app.workspaces, principal.workspace, after=after, limit=limit)
    items = await asyncio.to_thread(lambda: [tool_json(row) for row in page.rows])
    return Response(encode(Tools(items, next_cursor(app, page, principal))))


async def read(app: App, request: Request, principal: Principal) -> Response:
    row = await tools.find(app.workspaces, principal.workspace, request.params["toolId"])
    return Response(encode(tool_json(row)))


async def change(app: App, request: Request, principal: Principal) -> Response:
    changes, unknown = await request.read(_CHANGES)
    warnings = app.unknown_fields.warnings(request, unknown)
    require_accepting(app, principal)
    with client_names():
        row = await tools.change(app.workspaces, principal.workspace, request.params["toolId"], changes)
    return Response(encode(tool_json(row, warnings)))


async def delete(app: App, request: Request, principal: Principal) -> Response:
    require_accepting(app, principal)
    await tools.delete(app.workspaces, principal.workspace, request.params["toolId"])
    return Response(encode(Ok()))


ROUTES = (
    Route(
        "POST",
        _BASE,
        create,
        scopes=("tools:write",),
        summary="Store a tool",
        body=_TOOL,
        warns=True,
        returns=Tool,
        status=201,
        errors=(409,),
    ),
    Route(
        "GET",
        _BASE,
        index,
        scopes=("tools:read",),
        narrowed="yes",
        summary="The stored tools",
        query=(STORED_LIMIT, CURSOR),
        returns=Tools,
    ),
    Route(
        "GET",
        f"{_BASE}/{{toolId}}",
        read,
        scopes=("tools:read",),
        narrowed="yes",
        summary="Read a stored tool",
        returns=Tool,
    ),
    Route(
        "PATCH",
        f"{_BASE}/{{toolId}}",
        change,
        scopes=("tools:write",),
        summary="Change a stored tool",
        body=_CHANGES,
        warns=True,
        returns=Tool,
        errors=(409,),
    ),
    Route("DELETE", f"{_BASE}/{{toolId}}", delete, scopes=("tools:write",), summary="Delete a stored tool", returns=Ok),
)
