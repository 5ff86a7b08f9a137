"""Webhooks. Their secrets are encrypted for the place `webhook:<id>`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.json import encode

from weftline.store.database import Columns, Query, Row, one, statement

WAITING = "waiting"
"""The event of a run that asks people something; the other events are the final statuses of runs."""
_COLUMNS = "key, id, workspace, url, events, secret, enabled, created_at"
_WEBHOOK = f"SELECT {_COLUMNS} FROM webhooks"


class WebhookRow(Struct, frozen=True):
    key: int
    id: str
    workspace: int
    url: str
    events: tuple[str, ...]
    """What it subscribes to."""
    secret: bytes
    """The encrypted secret that deliveries are signed with."""
    enabled: bool
    created_at: int
    damaged: str = ""
    """The first damaged column, or ""; see `weftline.store.database`."""


def by_id(id: str, *, workspace: int) -> Query[WebhookRow | None]:
    row = yield from one(f"{_WEBHOOK} WHERE id = $1 AND workspace = $2", id, workspace)
    return _webhook(row)


def by_key(key: int) -> Query[WebhookRow | None]:
    row = yield from one(f"{_WEBHOOK} WHERE key = $1", key)
    return _webhook(row)


def of_workspace(workspace: int) -> Query[list[WebhookRow]]:
    """Oldest first."""
    rows = yield from statement(f"{_WEBHOOK} WHERE workspace = $1 ORDER BY key", workspace)
    return [_row(row) for row in rows]


def any_enabled() -> Query[bool]:
    row = yield from one("SELECT 1 FROM webhooks WHERE enabled = 1 LIMIT 1")
    return row is not None


def subscriptions(workspace: int) -> Query[list[tuple[int, tuple[str, ...]]]]:
    """The enabled webhooks of a workspace, by key, each with what it subscribes to: nothing, if that is damaged."""
    rows = yield from statement(
        "SELECT key, events FROM webhooks WHERE workspace = $1 AND enabled = 1 ORDER BY key", workspace
    )
    return [(key, Columns().texts("events", events)) for key, events in rows]


def insert(id: str, *, workspace: int, url: str, events: Sequence[str], secret: bytes, now: int) -> Query[WebhookRow]:
    row = yield from one(
        "INSERT INTO webhooks (id, workspace, url, events, secret, enabled, created_at)"
        f" VALUES ($1, $2, $3, $4, $5, 1, $6) RETURNING {_COLUMNS}",
        id,
        workspace,
        url,
        encode(events).decode(),
        secret,
        now,
    )
    assert row is not None
    return _row(row)


def enable(key: int, *, enabled: bool) -> Query[WebhookRow | None]:
    yield from statement("UPDATE webhooks SET enabled = $1 WHERE key = $2", int(enabled), key)
    return (yield from by_key(key))


def delete(key: int) -> Query[None]:
    """Removes a webhook with all its deliveries."""
    yield from statement("DELETE FROM deliveries WHERE webhook = $1", key)
    yield from statement("DELETE FROM webhooks WHERE key = $1", key)


def _webhook(row: Row | None) -> WebhookRow | None:
    return None if row is None else _row(row)


def _row(row: Row) -> WebhookRow:
    key, id, workspace, url, events, secret, enabled, created_at = row
    read = Columns()
    return WebhookRow(
        key,
        id,
        workspace,
        read.text("url", url),
        read.texts("events", events),
        secret,
        bool(enabled),
        read.time("created_at", created_at),
        read.damaged,
    )
