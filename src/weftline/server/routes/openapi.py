"""The description of this API for programs."""

from __future__ import annotations

from functools import cache

from msgspec.json import encode

from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Answer, Request
from weftline.server.router import Route


async def page(app: App, request: Request, principal: Principal) -> Answer:
    return Answer(_encoded(app.router.routes))


@cache
def _encoded(routes: tuple[Route, ...]) -> bytes:
    # Imported here because it reads the tables of the other route modules.
    from weftline.server.openapi import document

    return encode(document(routes))


ROUTES = (Route("GET", "/openapi.json", page, access="public", limited=False, summary="This description"),)
