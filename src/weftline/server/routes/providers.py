"""The model providers that a workspace brings: create, list, read, change, delete."""

from __future__ import annotations

import asyncio

from msgspec.json import encode

from weftline.api.schemas.providers import (
    MAX_BODY_BYTES,
    Provider,
    ProviderChangesModel,
    ProviderModel,
    Providers,
    parse_provider,
    parse_provider_changes,
    provider_json,
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
from weftline.workspace import providers

_BASE = "/api/v1/workspaces/{slug}/providers"
_PROVIDER = object_body(ProviderModel, parse_provider, limit_bytes=MAX_BODY_BYTES)
_CHANGES = object_body(ProviderChangesModel, parse_provider_changes, limit_bytes=MAX_BODY_BYTES)


async def create(app: App, request: Request, principal: Principal) -> Response:
    name, spec, values = await request.read(_PROVIDER)
    require_accepting(app, principal)
    with client_names():
        row = await providers.create(app.workspaces, principal.workspace, name, spec, values)
    return Response(encode(provider_json(row)), status=201)


async def index(app: App, request: Request, principal: Principal) -> Response:
    after, limit = stored_page(app, request, principal)
    page = await providers.page(app.workspaces, principal.workspace, after=after, limit=limit)
    items = await asyncio.to_thread(lambda: [provider_json(row) for row in page.rows])
    return Response(encode(Providers(items, next_cursor(app, page, principal))))


async def read(app: App, request: Request, principal: Principal) -> Response:
    row = await providers.find(app.workspaces, principal.workspace, request.params["providerId"])
    return Response(encode(provider_json(row)))


async def change(app: App, request: Request, principal: Principal) -> Response:
    changes = await request.read(_CHANGES)
    require_accepting(app, principal)
    with client_names():
        row = await providers.change(app.workspaces, principal.workspace, request.params["providerId"], changes)
    return Response(encode(provider_json(row)))


async def delete(app: App, request: Request, principal: Principal) -> Response:
    require_accepting(app, principal)
    await providers.delete(app.workspaces, principal.workspace, request.params["providerId"])
    return Response(encode(Ok()))


# There is no scope for writing: pointing the workspace's runs at another address takes a developer API key.
ROUTES = (
    Route(
        "POST",
        _BASE,
        create,
        summary="Add a model provider",
        body=_PROVIDER,
        returns=Provider,
        status=201,
        errors=(409,),
    ),
    Route(
        "GET",
        _BASE,
        index,
        scopes=("models:read",),
        narrowed="yes",
        summary="The workspace's own model providers",
        query=(STORED_LIMIT, CURSOR),
        returns=Providers,
    ),
    Route(
        "GET",
        f"{_BASE}/{{providerId}}",
        read,
        scopes=("models:read",),
        narrowed="yes",
        summary="Read a model provider",
        returns=Provider,
    ),
    Route(
        "PATCH",
        f"{_BASE}/{{providerId}}",
        change,
        summary="Change a model provider",
        body=_CHANGES,
        returns=Provider,
        errors=(409,),
    ),
    Route("DELETE", f"{_BASE}/{{providerId}}", delete, summary="Delete a model provider", returns=Ok),
)
