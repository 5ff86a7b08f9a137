"""Webhooks of a workspace, and what became of their deliveries."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import encode
from pydantic import Field, ValidationError

from weftline.errors import InvalidRequest, NotFound
from weftline.runtime import ids
from weftline.server.app import App
from weftline.server.auth import Principal, require_manager
from weftline.server.http import Answer, Request
from weftline.server.router import Route
from weftline.server.routes.lists import cursor_of, key_of, one_of, page_limit
from weftline.store.sqlite import webhooks
from weftline.store.sqlite.reads import Reader
from weftline.store.sqlite.webhooks import DeliveryRow, WebhookRow
from weftline.wire.json_text import decode_object
from weftline.wire.limits import URL_PATTERN
from weftline.wire.responses import iso
from weftline.wire.run_spec import Part

_BASE = "/api/v1/workspaces/{slug}/webhooks"
_URL_CHARS = 2048
DELIVERY_STATUSES = ("pending", "delivered", "failed")


class WebhookModel(Part):
    """The body that creates a webhook."""

    url: str = Field(max_length=_URL_CHARS, pattern=f"^(?:{URL_PATTERN})$")
    events: list[str] | None = Field(default=None, max_length=len(webhooks.EVENTS))


class WebhookChange(Part):
    enabled: bool


def webhook_url(url: str) -> str:
    """Raises `InvalidRequest` for what is no address that can be posted to."""
    if len(url) > _URL_CHARS or not re.fullmatch(URL_PATTERN, url):
        raise InvalidRequest("url: must be an http or https address.")
    return url


class _Webhook(Struct, rename="camel"):
    id: str
    url: str
    events: Raw
    enabled: bool
    created_at: str


class _Delivery(Struct, rename="camel"):
    id: str
    run_id: str
    status: str
    attempts: int
    created_at: str
    next_attempt_at: str | None
    last_attempt_at: str | None
    last_status: int | None
    last_error: str


def shown(row: WebhookRow) -> Any:
    return _Webhook(row.id, row.url, Raw(row.events.encode()), bool(row.enabled), iso(row.created_at))


def shown_delivery(read: Reader, row: DeliveryRow) -> Any:
    run = read.run(row.run)
    return _Delivery(
        f"dlv_{row.key:x}",
        ids.run_id(row.run, run.salt) if run is not None else "",
        row.status,
        row.attempts,
        iso(row.created_at),
        None if row.due_at is None else iso(row.due_at),
        None if row.last_at is None else iso(row.last_at),
        row.last_status,
        row.last_error,
    )


async def create(app: App, request: Request, principal: Principal) -> Answer:
    require_manager(principal)
    fields = decode_object(await request.body())
    try:
        sent = WebhookModel.model_validate(fields)
    except ValidationError as error:
        raise _invalid(error) from None
    app.engine.require_accepting()
    now = app.engine.clock.now_us()
    row, secret = await app.engine.store.job(
        lambda db: webhooks.create_webhook(
            db,
            workspace=principal.workspace,
            url=webhook_url(sent.url),
            events=webhooks.EVENTS if sent.events is None else sent.events,
            now=now,
        )
    )
    app.webhooks_changed()
    body = encode(shown(row))[:-1] + b',"secret":' + encode(secret) + b"}"
    return Answer(body, status=201, headers=((b"cache-control", b"no-store"),))


async def index(app: App, request: Request, principal: Principal) -> Answer:
    require_manager(principal)
    rows = webhooks.of_workspace(app.engine.read.db, principal.workspace)
    return Answer(encode({"webhooks": [shown(row) for row in rows]}))


async def read(app: App, request: Request, principal: Principal) -> Answer:
    return Answer(encode(shown(find(app, request, principal))))


async def change(app: App, request: Request, principal: Principal) -> Answer:
    row = find(app, request, principal)
    try:
        sent = WebhookChange.model_validate(decode_object(await request.body()))
    except ValidationError as error:
        raise _invalid(error) from None
    app.engine.require_accepting()
    row = await app.engine.store.job(
        lambda db: webhooks.enable_webhook(db, id=row.id, workspace=principal.workspace, enabled=sent.enabled)
    )
    app.webhooks_changed()
    return Answer(encode(shown(row)))


async def delete(app: App, request: Request, principal: Principal) -> Answer:
    row = find(app, request, principal)
    app.engine.log.require_well()
    await app.engine.store.job(lambda db: webhooks.delete_webhook(db, id=row.id, workspace=principal.workspace))
    app.webhooks_changed()
    return Answer(b'{"ok":true}')


async def deliveries(app: App, request: Request, principal: Principal) -> Answer:
    webhook = find(app, request, principal)
    status = one_of(request, "status", DELIVERY_STATUSES)
    cursor = request.query_value("cursor")
    limit = page_limit(request)
    rows = webhooks.deliveries(
        app.engine.read.db,
        webhook.key,
        status=status,
        before=None if cursor is None else key_of(cursor),
        limit=limit + 1,
    )
    page = rows[:limit]
    following = cursor_of(page[-1].key) if len(rows) > limit else None
    shown_page = [shown_delivery(app.engine.read, row) for row in page]
    return Answer(encode({"deliveries": shown_page, "nextCursor": following}))


async def redeliver(app: App, request: Request, principal: Principal) -> Answer:
    webhook = find(app, request, principal)
    match = re.fullmatch("dlv_([0-9a-f]{1,15})", request.params["deliveryId"])
    if match is None:
        raise NotFound("There is no such delivery.")
    app.engine.require_accepting()
    key, now = int(match[1], 16), app.engine.clock.now_us()
    row = await app.engine.store.job(lambda db: webhooks.redeliver(db, key=key, webhook=webhook.key, now=now))
    app.webhooks_changed()
    return Answer(encode(shown_delivery(app.engine.read, row)), status=202)


def find(app: App, request: Request, principal: Principal) -> WebhookRow:
    require_manager(principal)
    row = webhooks.by_id(app.engine.read.db, request.params["webhookId"], workspace=principal.workspace)
    if row is None:
        raise webhooks.no_such_webhook()
    return row


def _invalid(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(step) for step in first["loc"])
    return InvalidRequest(f"{where}: {first['msg']}", issues=[{"path": where, "message": first["msg"]}])


_ONE = f"{_BASE}/{{webhookId}}"
ROUTES = (
    Route("GET", _BASE, index, summary="List the webhooks"),
    Route("POST", _BASE, create, summary="Create a webhook"),
    Route("GET", _ONE, read, summary="Read a webhook"),
    Route("PATCH", _ONE, change, summary="Switch a webhook on or off"),
    Route("DELETE", _ONE, delete, summary="Remove a webhook"),
    Route("GET", f"{_ONE}/deliveries", deliveries, summary="List what was or will be delivered"),
    Route("POST", f"{_ONE}/deliveries/{{deliveryId}}/redeliver", redeliver, summary="Deliver once more"),
)
