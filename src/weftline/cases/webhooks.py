"""Webhooks: who is notified when a workspace's runs end or ask people something, and the outcome of each delivery."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Annotated, NamedTuple, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType
from pydantic import Field

from weftline.api.cursors import cursor_of
from weftline.api.principal import Principal
from weftline.cases.base import Host, Sent, require_accepting
from weftline.errors import InvalidRequest, NotFound, invalid_field
from weftline.net.address import InvalidAddress, parse
from weftline.runtime import ids
from weftline.store.database import Query
from weftline.store.records import deliveries as delivery_rows
from weftline.store.records import pages, webhooks
from weftline.store.records.deliveries import DeliveryRow
from weftline.store.records.webhooks import WAITING, WebhookRow
from weftline.text.redaction import redact_url
from weftline.wire.errors import error_code
from weftline.wire.limits import URL_PATTERN
from weftline.wire.models import Part
from weftline.wire.responses import Time, iso, iso_or_none
from weftline.workspace.context import Change, Workspaces
from weftline.workspace.delivering import delivery_id, event_of, sealed

ENDS = ("succeeded", "failed", "cancelled")
EVENTS = (*ENDS, WAITING)
DELIVERY_STATUSES = ("pending", "delivered", "failed")
MAX_PER_WORKSPACE = 100
"""Each of them is told of every run that it is for, so it is fewer than of other things."""
MAX_URL_CHARS = 2048
_URL = re.compile(r"https?://[^\s/?#\x00-\x1f]+[^\s\x00-\x1f]*", re.IGNORECASE)
Event: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(EVENTS)})]
DeliveryStatus: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(DELIVERY_STATUSES)})]


class WebhookModel(Part):
    """The body that creates a webhook."""

    url: str = Field(max_length=MAX_URL_CHARS, pattern=f"^(?:{URL_PATTERN})$")
    events: list[str] | None = Field(default=None, max_length=len(EVENTS))


class WebhookChange(Part):
    enabled: bool


class Webhook(Struct, rename="camel"):
    id: str
    url: str
    events: tuple[Event, ...]
    enabled: bool
    created_at: Time
    error_code: str | UnsetType = UNSET
    """`log_damaged` if its stored data is unreadable, so that nothing is delivered; left out otherwise."""


class CreatedWebhook(Webhook, rename="camel", kw_only=True):
    secret: str


class Delivery(Struct, rename="camel"):
    id: str
    run_id: str
    status: DeliveryStatus
    attempts: int
    created_at: Time
    next_attempt_at: Time | None
    last_attempt_at: Time | None
    last_status: int | None
    last_error: str
    type: str
    """`run.ended` or `await.opened`."""
    await_id: str | None
    """The await that it is about, unless it is about the end of the run."""
    error_code: str | UnsetType = UNSET
    """`log_damaged` if its stored data is unreadable; left out otherwise."""


class Webhooks(Struct):
    webhooks: list[Webhook]


class DeliveryPage(Struct, rename="camel"):
    deliveries: list[Delivery]
    next_cursor: str | None


async def create(on: Host, by: Principal, sent: Sent[WebhookModel]) -> CreatedWebhook:
    fields = (await sent.read()).fields
    require_accepting(on, by)
    row, secret = await add(
        on.workspaces, by.workspace, fields.url, events=ENDS if fields.events is None else fields.events
    )
    return CreatedWebhook(row.id, redact_url(row.url), row.events, row.enabled, iso(row.created_at), secret=secret)


async def index(on: Host, by: Principal) -> Webhooks:
    return Webhooks([_shown(row) for row in await on.workspaces.records.read(webhooks.of_workspace(by.workspace))])


async def read(on: Host, by: Principal, webhook_id: str) -> Webhook:
    return _shown(await find(on.workspaces, by.workspace, webhook_id))


async def change(on: Host, by: Principal, webhook_id: str, sent: Sent[WebhookChange]) -> Webhook:
    row = await find(on.workspaces, by.workspace, webhook_id)
    body = await sent.read()
    require_accepting(on, by)
    return _shown(await enable(on.workspaces, by.workspace, row.id, enabled=body.fields.enabled))


async def delete(on: Host, by: Principal, webhook_id: str) -> None:
    row = await find(on.workspaces, by.workspace, webhook_id)
    on.engine.require_writable()
    await remove(on.workspaces, by.workspace, row.id)


async def deliveries(
    on: Host, webhook: WebhookRow, *, status: str | None, before: int | None, limit: int
) -> DeliveryPage:
    """Newest first, below the key `before`."""
    rows = await deliveries_of(on.workspaces, webhook, status=status, before=before, limit=limit + 1)
    page = rows[:limit]
    following = cursor_of(page[-1].key) if len(rows) > limit else None
    return DeliveryPage([await _delivery(on, row) for row in page], following)


async def redeliver(on: Host, by: Principal, webhook_id: str, delivery_id: str) -> Delivery:
    webhook = await find(on.workspaces, by.workspace, webhook_id)
    key, salt = parse_delivery_id(delivery_id)
    require_accepting(on, by)
    return await _delivery(on, await make_due(on.workspaces, webhook, key, salt=salt))


def parse_delivery_id(text: str) -> tuple[int, str]:
    """Returns the key and salt of a delivery; older ones have no salt. Raises `NotFound`."""
    known = ids.parse(text, prefix="dlv_")
    if known is not None:
        return known
    match = re.fullmatch("dlv_([0-9a-f]{1,12})", text)
    if match is None:
        raise NotFound("There is no such delivery.")
    return int(match[1], 16), ""


class Added(NamedTuple):
    webhook: WebhookRow
    secret: str
    """What deliveries are signed with; shown only once."""


async def add(at: Workspaces, workspace: int, url: str, *, events: Sequence[str] = ENDS) -> Added:
    """`events` are the final statuses of runs to report, and `waiting` for open awaits."""
    if len(url) > MAX_URL_CHARS or not _URL.fullmatch(url):
        raise invalid_field("url", "must be an http or https address.")
    try:
        parse(url)
    except InvalidAddress as error:  # nothing could ever be delivered there
        raise invalid_field("url", f"{error}") from None
    if not events or any(event not in EVENTS for event in events):
        raise invalid_field("events", f"must be some of {', '.join(EVENTS)}.")
    identity = "wh_" + secrets.token_hex(10)
    secret = "whsec_" + secrets.token_urlsafe(32)
    redacted, encrypted = redact_url(url), sealed(at, identity, secret, url)

    def query() -> Query[WebhookRow]:
        if (yield from pages.count("webhooks", workspace=workspace)) >= MAX_PER_WORKSPACE:
            raise InvalidRequest(f"A workspace can have at most {MAX_PER_WORKSPACE} webhooks.")
        return (
            yield from webhooks.insert(
                identity,
                workspace=workspace,
                url=redacted,
                events=sorted(set(events)),
                secret=encrypted,
                now=at.clock.now_us(),
            )
        )

    row = await at.records.write(query())
    await at.changed(Change("webhooks", workspace))
    return Added(row, secret)


async def enable(at: Workspaces, workspace: int, id: str, *, enabled: bool) -> WebhookRow:
    """Switches a webhook on or off. While off, it is not notified of runs that end, and its pending deliveries wait."""

    def query() -> Query[WebhookRow]:
        row = yield from _existing(id, workspace=workspace)
        changed = yield from webhooks.enable(row.key, enabled=enabled)
        assert changed is not None
        return changed

    row = await at.records.write(query())
    await at.changed(Change("webhooks", workspace))
    return row


async def remove(at: Workspaces, workspace: int, id: str) -> None:
    """Removes a webhook with its deliveries, pending ones too."""

    def query() -> Query[None]:
        row = yield from _existing(id, workspace=workspace)
        yield from webhooks.delete(row.key)

    await at.records.write(query())
    await at.changed(Change("webhooks", workspace))


async def find(at: Workspaces, workspace: int, id: str) -> WebhookRow:
    """Raises `NotFound`."""
    return await at.records.read(_existing(id, workspace=workspace))


async def deliveries_of(
    at: Workspaces, webhook: WebhookRow, *, status: str | None = None, before: int | None = None, limit: int = 50
) -> list[DeliveryRow]:
    """Newest first, below the key `before`."""
    query = delivery_rows.of_webhook(webhook.key, status=status, before=before, limit=limit)
    return await at.records.read(query, heavy=status is not None)


async def make_due(at: Workspaces, webhook: WebhookRow, key: int, *, salt: str) -> DeliveryRow:
    """Makes a delivery due again, whatever its status. Raises `NotFound`."""
    row = await at.records.write(delivery_rows.redeliver(key, salt=salt, webhook=webhook.key, now=at.clock.now_us()))
    if row is None:
        raise NotFound("There is no such delivery.")
    await at.changed(Change("webhooks", webhook.workspace))
    return row


def _existing(id: str, *, workspace: int) -> Query[WebhookRow]:
    row = yield from webhooks.by_id(id, workspace=workspace)
    if row is None:
        raise NotFound("There is no such webhook.")
    return row


def _shown(row: WebhookRow) -> Webhook:
    return Webhook(row.id, redact_url(row.url), row.events, row.enabled, iso(row.created_at), error_code(row.damaged))


async def _delivery(on: Host, row: DeliveryRow) -> Delivery:
    run = await on.engine.stored.row(row.run)
    return Delivery(
        delivery_id(row),
        ids.run_id(run.key, run.salt) if run is not None else "",
        row.status,
        row.attempts,
        iso(row.created_at),
        iso_or_none(row.due_at),
        iso_or_none(row.last_at),
        row.last_status,
        row.last_error,
        event_of(row),
        row.about or None,
        error_code(row.damaged),
    )
