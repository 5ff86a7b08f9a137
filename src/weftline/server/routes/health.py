"""Health of the process: it is alive, it accepts work, and its metrics."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.json import encode

from weftline.server.app import App
from weftline.server.auth import Principal, credential_of
from weftline.server.http import Request, Response
from weftline.server.metrics import CONTENT_TYPE
from weftline.server.router import PlainText, Route


class Health(Struct):
    status: Literal["ok", "ready"]


async def healthz(app: App, request: Request, principal: Principal) -> Response:
    return Response(encode(Health("ok")))


async def readyz(app: App, request: Request, principal: Principal) -> Response:
    app.engine.require_accepting()
    return Response(encode(Health("ready")))


async def metrics(app: App, request: Request, principal: Principal) -> Response:
    app.metrics.check(credential_of(request))
    return Response(await app.metrics.text(), headers=((b"content-type", CONTENT_TYPE),))


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
    Route(
        "GET",
        "/metrics",
        metrics,
        access="public",
        limited=False,
        summary="What the server does, for Prometheus",
        returns=PlainText,
        errors=(401, 403),
    ),
)
