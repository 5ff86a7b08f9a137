"""Webhooks and their deliveries as JSON."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType
from pydantic import Field

from weftline.errors import NotFound
from weftline.runtime import ids
from weftline.store.records.deliveries import DeliveryRow
from weftline.store.records.webhooks import WebhookRow
from weftline.text.redaction import redact_url
from weftline.wire.errors import error_code
from weftline.wire.limits import URL_PATTERN
from weftline.wire.models import Part
from weftline.wire.responses import Time, iso
from weftline.workspace.delivering import delivery_id, event_of
from weftline.workspace.webhooks import DELIVERY_STATUSES, EVENTS, MAX_URL_CHARS

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


def parse_delivery_id(text: str) -> tuple[int, str]:
    """Returns the key and salt of a delivery; older ones have no salt. Raises `NotFound`."""
    known = ids.parse(text, prefix="dlv_")
    if known is not None:
        return known
    match = re.fullmatch("dlv_([0-9a-f]{1,12})", text)
    if match is None:
        raise NotFound("There is no such delivery.")
    return int(match[1], 16), ""


def webhook_json(row: WebhookRow) -> Webhook:
    return Webhook(row.id, redact_url(row.url), row.events, row.enabled, iso(row.created_at), error_code(row.damaged))


def created_webhook_json(row: WebhookRow, secret: str) -> CreatedWebhook:
    return CreatedWebhook(row.id, redact_url(row.url), row.events, row.enabled, iso(row.created_at), secret=secret)


def delivery_json(row: DeliveryRow, *, run_id: str) -> Delivery:
    return Delivery(
        delivery_id(row),
        run_id,
        row.status,
        row.attempts,
        iso(row.created_at),
        None if row.due_at is None else iso(row.due_at),
        None if row.last_at is None else iso(row.last_at),
        row.last_status,
        row.last_error,
        event_of(row),
        row.about or None,
        error_code(row.damaged),
    )
