"""The model providers that a workspace brings: create, list, read, change, delete."""

from __future__ import annotations

from functools import partial

from msgspec.json import encode

from weftline.server.app import App
from weftline.server.auth import Principal, require_manager
from weftline.server.http import Answer, Request
from weftline.server.router import Route
from weftline.server.stored_providers import (
    MAX_BODY_BYTES,
    parse_provider,
    shown_provider,
    store_changed,
    store_new,
)
from weftline.store.sqlite import providers
from weftline.wire.json_text import decode_object

_BASE = "/api/v1/workspaces/{slug}/providers"


async def create(app: App, request: Request, principal: Principal) -> Answer:
    require_manager(principal)
    draft = parse_provider(decode_object(await request.body(limit=MAX_BODY_BYTES)))
    app.engine.require_accepting()
    now = app.engine.clock.now_us()
    row = await app.engine.store.job(partial(store_new, workspace=principal.workspace, draft=draft, now=now))
    app.engine.models.forget(principal.workspace)
    return Answer(encode(shown_provider(row)), status=201)


async def listed(app: App, request: Request, principal: Principal) -> Answer:
    rows = providers.of_workspace(app.engine.read.db, principal.workspace)
    return Answer(encode({"providers": [shown_provider(row) for row in rows]}))


async def read(app: App, request: Request, principal: Principal) -> Answer:
    row = providers.known(app.engine.read.db, request.params["providerId"], workspace=principal.workspace)
    return Answer(encode(shown_provider(row)))


async def change(app: App, request: Request, principal: Principal) -> Answer:
    require_manager(principal)
    fields = decode_object(await request.body(limit=MAX_BODY_BYTES))
    app.engine.require_accepting()
    row = await app.engine.store.job(
        partial(
            store_changed,
            workspace=principal.workspace,
            id=request.params["providerId"],
            fields=fields,
            vault=app.engine.store.vault,
            now=app.engine.clock.now_us(),
        )
    )
    app.engine.models.forget(principal.workspace)
    return Answer(encode(shown_provider(row)))


async def delete(app: App, request: Request, principal: Principal) -> Answer:
    require_manager(principal)
    app.engine.require_accepting()
    await app.engine.store.job(
        partial(providers.delete_provider, id=request.params["providerId"], workspace=principal.workspace)
    )
    app.engine.models.forget(principal.workspace)
    return Answer(b'{"ok":true}')


# Writing has no scope: whoever may point the workspace's runs at another address holds a developer API key.
ROUTES = (
    Route("POST", _BASE, create, summary="Bring a model provider"),
    Route("GET", _BASE, listed, scopes=("models:read",), summary="The workspace's own model providers"),
    Route("GET", f"{_BASE}/{{providerId}}", read, scopes=("models:read",), summary="Read a model provider"),
    Route("PATCH", f"{_BASE}/{{providerId}}", change, summary="Change a model provider"),
    Route("DELETE", f"{_BASE}/{{providerId}}", delete, summary="Delete a model provider"),
)
