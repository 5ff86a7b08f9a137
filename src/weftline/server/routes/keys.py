"""API keys: create, list, read, revoke."""

from __future__ import annotations

from typing import Literal

from msgspec.json import encode

from weftline.api.schemas.keys import CreatedKey, Key, Keys, NewKey, created_key_json, key_json
from weftline.errors import InvalidRequest
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.bodies import struct_body
from weftline.server.declared import QueryParameter
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.server.routes.lists import CURSOR, STORED_LIMIT, next_cursor, one_of, stored_page
from weftline.wire.errors import client_names
from weftline.wire.responses import Ok
from weftline.workspace import keys

_BASE = "/api/v1/workspaces/{slug}/api-keys"
_REVOKED = QueryParameter("revoked", Literal["true", "false"], "`true`: revoked keys too.")
_NEW_KEY = struct_body(NewKey, limit_bytes=256 * 1024)


async def create(app: App, request: Request, principal: Principal) -> Response:
    body = await request.read(_NEW_KEY)
    if body.agent_ids is not None and not body.agent_ids:
        # Somebody who computes the list and finds no agents must not get a key for all of them.
        raise InvalidRequest("agentIds: must name an agent. Leave it out for a key that may use all agents.")
    with client_names():
        made = await keys.create(
            app.workspaces,
            principal.slug,
            name=body.name or "",
            usage=body.usage or "developer_api",
            agents=body.agent_ids or (),
            agents_exist=not principal.operator,
            made_by="" if principal.operator else principal.who,
        )
    headers = ((b"cache-control", b"no-store"),)
    return Response(encode(created_key_json(made.key, made.secret)), status=201, headers=headers)


async def index(app: App, request: Request, principal: Principal) -> Response:
    after, limit = stored_page(app, request, principal)
    revoked = one_of(request, _REVOKED) == "true"
    page = await keys.page(app.workspaces, principal.workspace, after=after, limit=limit, revoked=revoked)
    return Response(encode(Keys([key_json(key) for key in page.rows], next_cursor(app, page, principal))))


async def read(app: App, request: Request, principal: Principal) -> Response:
    key = await keys.find(app.workspaces, request.params["keyId"], workspace=principal.workspace)
    return Response(encode(key_json(key)))


async def revoke(app: App, request: Request, principal: Principal) -> Response:
    await keys.revoke(app.workspaces, request.params["keyId"], workspace=principal.workspace)
    return Response(encode(Ok()))


ROUTES = (
    Route("POST", _BASE, create, summary="Create an API key", body=_NEW_KEY, returns=CreatedKey, status=201),
    Route(
        "GET", _BASE, index, summary="The workspace's API keys", query=(STORED_LIMIT, CURSOR, _REVOKED), returns=Keys
    ),
    Route("GET", f"{_BASE}/{{keyId}}", read, summary="Read an API key", returns=Key),
    Route("DELETE", f"{_BASE}/{{keyId}}", revoke, summary="Revoke an API key", returns=Ok),
)
