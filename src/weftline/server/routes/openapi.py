"""The description of this API for programs."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec.json import encode

from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.http import Request, Response
from weftline.server.router import Route, Router


async def page(app: App, request: Request, principal: Principal) -> Response:
    return Response(_encoded(app.router, app.names.prefix(request)))


@cache
def _encoded(router: Router, prefix: str) -> bytes:
    # Imported here because most servers never need it.
    from weftline.server.openapi import document

    return encode(document(router.routes, prefix=prefix))


ROUTES = (
    Route(
        "GET",
        "/openapi.json",
        page,
        access="public",
        limited=False,
        summary="This description",
        returns=dict[str, Any],
    ),
)
