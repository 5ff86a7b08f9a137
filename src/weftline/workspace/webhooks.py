"""Webhooks: who is notified when a workspace's runs end or ask people something, and the outcome of each delivery."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from weftline.errors import InvalidRequest, NotFound, invalid_field
from weftline.net.address import InvalidAddress, parse
from weftline.store.database import Query
from weftline.store.records import deliveries, pages, webhooks
from weftline.store.records.deliveries import DeliveryRow
from weftline.store.records.webhooks import WAITING, WebhookRow
from weftline.text.redaction import redact_url
from weftline.workspace.context import Change, Workspaces

ENDS = ("succeeded", "failed", "cancelled")
EVENTS = (*ENDS, WAITING)
DeliveryStatus: TypeAlias = Literal["pending", "delivered", "failed"]
DELIVERY_STATUSES: tuple[str, ...] = get_args(DeliveryStatus)
MAX_PER_WORKSPACE = 100
"""Each of them is told of every run that it is for, so it is fewer than of other things."""
MAX_URL_CHARS = 2048
_URL = re.compile(r"https?://[^\s/?#\x00-\x1f]+[^\s\x00-\x1f]*", re.IGNORECASE)


class CreatedWebhook(NamedTuple):
    webhook: WebhookRow
    secret: str
    """What deliveries are signed with; shown only once."""


async def create(at: Workspaces, workspace: int, url: str, *, events: Sequence[str] = ENDS) -> CreatedWebhook:
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
    redacted = redact_url(url)
    # An address that may contain a token is a secret too.
    sealed = at.vault.seal(f"{secret}\n{url}".encode() if redacted != url else secret.encode(), place=_place(identity))

    def query() -> Query[WebhookRow]:
        if (yield from pages.count("webhooks", workspace=workspace)) >= MAX_PER_WORKSPACE:
            raise InvalidRequest(f"A workspace can have at most {MAX_PER_WORKSPACE} webhooks.")
        return (
            yield from webhooks.insert(
                identity,
                workspace=workspace,
                url=redacted,
                events=sorted(set(events)),
                secret=sealed,
                now=at.clock.now_us(),
            )
        )

    row = await at.records.write(query())
    await at.changed(Change("webhooks", workspace))
    return CreatedWebhook(row, secret)


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


async def delete(at: Workspaces, workspace: int, id: str) -> None:
    """Removes a webhook with its deliveries, pending ones too."""

    def query() -> Query[None]:
        row = yield from _existing(id, workspace=workspace)
        yield from webhooks.delete(row.key)

    await at.records.write(query())
    await at.changed(Change("webhooks", workspace))


async def find(at: Workspaces, workspace: int, id: str) -> WebhookRow:
    """Raises `NotFound`."""
    return await at.records.read(_existing(id, workspace=workspace))


async def of_workspace(at: Workspaces, workspace: int) -> list[WebhookRow]:
    """Oldest first."""
    return await at.records.read(webhooks.of_workspace(workspace))


async def deliveries_of(
    at: Workspaces, webhook: WebhookRow, *, status: str | None = None, before: int | None = None, limit: int = 50
) -> list[DeliveryRow]:
    """Newest first, below the key `before`."""
    query = deliveries.of_webhook(webhook.key, status=status, before=before, limit=limit)
    return await at.records.read(query, heavy=status is not None)


async def redeliver(at: Workspaces, webhook: WebhookRow, key: int, *, salt: str) -> DeliveryRow:
    """Makes a delivery due again, whatever its status. Raises `NotFound`."""
    row = await at.records.write(deliveries.redeliver(key, salt=salt, webhook=webhook.key, now=at.clock.now_us()))
    if row is None:
        raise NotFound("There is no such delivery.")
    await at.changed(Change("webhooks", webhook.workspace))
    return row


class Sealed(NamedTuple):
    secret: bytes
    """The secret that deliveries are signed with."""
    url: str
    """The complete address."""


def opened(at: Workspaces, webhook: WebhookRow) -> Sealed:
    """Raises `StoreError` if it was encrypted with another key."""
    secret, _, url = at.vault.open(webhook.secret, place=_place(webhook.id)).partition(b"\n")
    return Sealed(secret, url.decode() or webhook.url)


def _place(id: str) -> str:
    return f"webhook:{id}"


def _existing(id: str, *, workspace: int) -> Query[WebhookRow]:
    row = yield from webhooks.by_id(id, workspace=workspace)
    if row is None:
        raise NotFound("There is no such webhook.")
    return row


_BATCH = 1000
"""Rows in one transaction, so that active runs do not wait long."""


async def forget_deliveries(at: Workspaces, *, before: int, workspace: int | None = None) -> int:
    """Removes some settled deliveries from before that time, of one workspace or of all; returns how many."""
    return await at.records.write(deliveries.forget_settled(before, workspace=workspace, limit=_BATCH))
