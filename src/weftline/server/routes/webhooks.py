"""The webhooks of a workspace, and the state of their deliveries."""

from __future__ import annotations

from typing import Literal

from msgspec.json import encode

from weftline.api.cursors import key_of
from weftline.cases import webhooks
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.case import case
from weftline.server.declared import QueryParameter
from weftline.server.http import Request, Response
from weftline.server.paging import CURSOR, LIMIT, one_of, page_limit
from weftline.server.router import Route

_BASE = "/api/v1/workspaces/{slug}/webhooks"
_ONE = f"{_BASE}/{{webhookId}}"
_LIMIT_BYTES = 64 * 1024
_STATUS = QueryParameter("status", Literal["pending", "delivered", "failed"], "With this status.")


async def deliveries(app: App, request: Request, principal: Principal) -> Response:
    webhook = await webhooks.find(app.workspaces, principal.workspace, request.params["webhookId"])
    status = one_of(request, _STATUS)
    cursor = request.query_value("cursor")
    limit = page_limit(request)
    before = None if cursor is None else key_of(cursor)
    return Response(encode(await webhooks.deliveries(app, webhook, status=status, before=before, limit=limit)))


ROUTES = (
    Route("GET", _BASE, **case(webhooks.index), summary="List the webhooks"),
    Route(
        "POST",
        _BASE,
        **case(webhooks.create, status=201, limit_bytes=_LIMIT_BYTES, headers=((b"cache-control", b"no-store"),)),
        summary="Create a webhook",
    ),
    Route("GET", _ONE, **case(webhooks.read), summary="Read a webhook"),
    Route("PATCH", _ONE, **case(webhooks.change, limit_bytes=_LIMIT_BYTES), summary="Switch a webhook on or off"),
    Route("DELETE", _ONE, **case(webhooks.delete), summary="Remove a webhook"),
    Route(
        "GET",
        f"{_ONE}/deliveries",
        deliveries,
        summary="List the deliveries of a webhook",
        query=(_STATUS, LIMIT, CURSOR),
        returns=webhooks.DeliveryPage,
    ),
    Route(
        "POST",
        f"{_ONE}/deliveries/{{deliveryId}}/redeliver",
        **case(webhooks.redeliver, status=202),
        summary="Deliver once more",
    ),
)
