"""API keys: create, list, read, revoke."""

from __future__ import annotations

from typing import TypeVar

from msgspec import DecodeError, Struct
from msgspec.json import Decoder, encode

from weftline.errors import InvalidRequest
from weftline.server.app import App
from weftline.server.auth import Principal, require_manager
from weftline.server.credentials import shown_key
from weftline.server.http import Answer, Request
from weftline.server.router import Route
from weftline.store.sqlite import keys

_BASE = "/api/v1/workspaces/{slug}/api-keys"
_LIMIT_BYTES = 256 * 1024

T = TypeVar("T")


class _NewKey(Struct, rename="camel"):
    name: str | None = None
    usage: str | None = None
    agent_ids: list[str] | None = None


_new_key = Decoder(_NewKey)


async def create(app: App, request: Request, principal: Principal) -> Answer:
    require_manager(principal)
    body = await read_body(request, _new_key)
    now = app.engine.clock.now_us()
    identity, secret = await app.engine.store.job(
        lambda db: keys.create_api_key(
            db,
            workspace=principal.slug,
            now=now,
            name=body.name or "",
            usage=body.usage or "developer_api",
            agents=body.agent_ids or (),
        )
    )
    made = shown_key(keys.show_api_key(app.engine.read.db, id=identity))
    return Answer(encode({**made, "key": secret}), status=201, headers=((b"cache-control", b"no-store"),))


async def listed(app: App, request: Request, principal: Principal) -> Answer:
    require_manager(principal)
    found = keys.list_api_keys(app.engine.read.db, workspace=principal.slug)
    return Answer(encode({"keys": [shown_key(key) for key in found]}))


async def read(app: App, request: Request, principal: Principal) -> Answer:
    require_manager(principal)
    return Answer(
        encode(shown_key(keys.show_api_key(app.engine.read.db, id=request.params["keyId"], workspace=principal.slug)))
    )


async def revoke(app: App, request: Request, principal: Principal) -> Answer:
    require_manager(principal)
    now, identity = app.engine.clock.now_us(), request.params["keyId"]
    await app.engine.store.job(lambda db: keys.revoke_api_key(db, id=identity, now=now, workspace=principal.slug))
    app.auth.forget()
    return Answer(b'{"ok":true}')


async def read_body(request: Request, decoder: Decoder[T]) -> T:
    """A JSON body of this shape; `InvalidRequest` tells where it has another."""
    try:
        return decoder.decode(await request.body(limit=_LIMIT_BYTES))
    except (DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body does not fit: {error}.") from None


ROUTES = (
    Route("POST", _BASE, create, summary="Create an API key"),
    Route("GET", _BASE, listed, summary="The workspace's API keys"),
    Route("GET", f"{_BASE}/{{keyId}}", read, summary="Read an API key"),
    Route("DELETE", f"{_BASE}/{{keyId}}", revoke, summary="Revoke an API key"),
)
