"""Health of the process: it is alive, and it accepts work."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.json import encode

from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Request, Response
from weftline.server.router import Route


class Health(Struct):
    status: Literal["ok", "ready"]


async def healthz(app: App, request: Request, principal: Principal) -> Response:
    return Response(encode(Health("ok")))


async def readyz(app: App, request: Request, principal: Principal) -> Response:
    app.engine.require_accepting()
    return Response(encode(Health("ready")))


ROUTES = (
    Route(
        "GET",
        "/healthz",
        healthz,
        access="public",
        limited=False,
        summary="Whether the process is alive",
        returns=Health,
    ),
    Route(
        "GET",
        "/readyz",
        readyz,
        access="public",
        limited=False,
        summary="Whether the server accepts work",
        returns=Health,
        errors=(503,),
    ),
)
