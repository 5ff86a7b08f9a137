"""The webhooks of a workspace, and the state of their deliveries."""

from __future__ import annotations

from msgspec.json import encode

from weftline.api.cursors import cursor_of, key_of
from weftline.api.schemas.webhooks import (
    CreatedWebhook,
    Delivery,
    DeliveryPage,
    Webhook,
    WebhookChange,
    WebhookModel,
    Webhooks,
    created_webhook_json,
    delivery_json,
    parse_delivery_id,
    webhook_json,
)
from weftline.cases.base import require_accepting
from weftline.runtime import ids
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.bodies import model_body
from weftline.server.declared import QueryParameter
from weftline.server.http import Request, Response
from weftline.server.router import Route
from weftline.server.routes.lists import CURSOR, LIMIT, one_of, page_limit
from weftline.store.records.deliveries import DeliveryRow
from weftline.store.records.webhooks import WebhookRow
from weftline.wire.responses import Ok
from weftline.workspace import webhooks
from weftline.workspace.webhooks import DeliveryStatus

_BASE = "/api/v1/workspaces/{slug}/webhooks"
_LIMIT_BYTES = 64 * 1024
_WEBHOOK = model_body(WebhookModel, limit_bytes=_LIMIT_BYTES)
_CHANGE = model_body(WebhookChange, limit_bytes=_LIMIT_BYTES)
_STATUS = QueryParameter("status", DeliveryStatus, "With this status.")


async def create(app: App, request: Request, principal: Principal) -> Response:
    sent, _ = await request.read(_WEBHOOK)
    require_accepting(app, principal)
    events = webhooks.ENDS if sent.events is None else sent.events
    made = await webhooks.create(app.workspaces, principal.workspace, sent.url, events=events)
    headers = ((b"cache-control", b"no-store"),)
    return Response(encode(created_webhook_json(made.webhook, made.secret)), status=201, headers=headers)


async def index(app: App, request: Request, principal: Principal) -> Response:
    rows = await webhooks.of_workspace(app.workspaces, principal.workspace)
    return Response(encode(Webhooks([webhook_json(row) for row in rows])))


async def read(app: App, request: Request, principal: Principal) -> Response:
    return Response(encode(webhook_json(await _find(app, request, principal))))


async def change(app: App, request: Request, principal: Principal) -> Response:
    row = await _find(app, request, principal)
    sent, _ = await request.read(_CHANGE)
    require_accepting(app, principal)
    row = await webhooks.enable(app.workspaces, principal.workspace, row.id, enabled=sent.enabled)
    return Response(encode(webhook_json(row)))


async def delete(app: App, request: Request, principal: Principal) -> Response:
    row = await _find(app, request, principal)
    app.engine.require_writable()
    await webhooks.delete(app.workspaces, principal.workspace, row.id)
    return Response(encode(Ok()))


async def deliveries(app: App, request: Request, principal: Principal) -> Response:
    webhook = await _find(app, request, principal)
    status = one_of(request, _STATUS)
    cursor = request.query_value("cursor")
    limit = page_limit(request)
    before = None if cursor is None else key_of(cursor)
    rows = await webhooks.deliveries_of(app.workspaces, webhook, status=status, before=before, limit=limit + 1)
    page = rows[:limit]
    following = cursor_of(page[-1].key) if len(rows) > limit else None
    return Response(encode(DeliveryPage([await _delivery(app, row) for row in page], following)))


async def redeliver(app: App, request: Request, principal: Principal) -> Response:
    webhook = await _find(app, request, principal)
    key, salt = parse_delivery_id(request.params["deliveryId"])
    require_accepting(app, principal)
    row = await webhooks.redeliver(app.workspaces, webhook, key, salt=salt)
    return Response(encode(await _delivery(app, row)), status=202)


async def _find(app: App, request: Request, principal: Principal) -> WebhookRow:
    return await webhooks.find(app.workspaces, principal.workspace, request.params["webhookId"])


async def _delivery(app: App, row: DeliveryRow) -> Delivery:
    run = await app.engine.stored.row(row.run)
    return delivery_json(row, run_id=ids.run_id(run.key, run.salt) if run is not None else "")


_ONE = f"{_BASE}/{{webhookId}}"
ROUTES = (
    Route("GET", _BASE, index, summary="List the webhooks", returns=Webhooks),
    Route("POST", _BASE, create, summary="Create a webhook", body=_WEBHOOK, returns=CreatedWebhook, status=201),
    Route("GET", _ONE, read, summary="Read a webhook", returns=Webhook),
    Route("PATCH", _ONE, change, summary="Switch a webhook on or off", body=_CHANGE, returns=Webhook),
    Route("DELETE", _ONE, delete, summary="Remove a webhook", returns=Ok),
    Route(
        "GET",
        f"{_ONE}/deliveries",
        deliveries,
        summary="List the deliveries of a webhook",
        query=(_STATUS, LIMIT, CURSOR),
        returns=DeliveryPage,
    ),
    Route(
        "POST",
        f"{_ONE}/deliveries/{{deliveryId}}/redeliver",
        redeliver,
        summary="Deliver once more",
        returns=Delivery,
        status=202,
    ),
)
