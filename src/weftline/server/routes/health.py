"""Whether the process is alive, and whether it takes work."""

from __future__ import annotations

from weftline.errors import Unavailable
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Answer, Request
from weftline.server.router import Route


async def healthz(app: App, request: Request, principal: Principal) -> Answer:
    return Answer(b'{"status":"ok"}')


async def readyz(app: App, request: Request, principal: Principal) -> Answer:
    if not app.engine.ready:
        raise Unavailable("The server is starting or stopping.", retry_after_s=1)
    app.engine.require_well()
    return Answer(b'{"status":"ready"}')


ROUTES = (
    Route("GET", "/healthz", healthz, access="public", limited=False, summary="Whether the process is alive"),
    Route("GET", "/readyz", readyz, access="public", limited=False, summary="Whether the server takes work"),
)
