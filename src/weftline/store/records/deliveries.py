"""Webhook deliveries. A row is added by the transaction that ends its run, or that opens an await."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from weftline.store.database import Columns, Query, SqlValue, one, statement
from weftline.store.records import webhooks

STATUSES = ("failed", "pending", "delivered")
_COLUMNS = "key, webhook, run, status, attempts, due_at, created_at, last_at, last_status, last_error, about, salt"
_DELIVERY = f"SELECT {_COLUMNS} FROM deliveries"
_ENABLED = "webhook IN (SELECT key FROM webhooks WHERE enabled = 1)"


class DeliveryRow(Struct, frozen=True):
    key: int
    webhook: int
    run: int
    status: str
    """`pending`, `delivered` or `failed`."""
    attempts: int
    due_at: int | None
    """None once it is delivered or given up."""
    created_at: int
    last_at: int | None
    last_status: int | None
    """The HTTP status; None if there was no response."""
    last_error: str
    about: str = ""
    """The await that it is about; empty for the end of the run."""
    salt: str = ""
    """The random part of its id; empty in rows written before there was one."""
    damaged: str = ""
    """The first damaged column, or ""; see `weftline.store.database`."""


class Event(Struct, frozen=True):
    """Something that a commit of the log does and that webhooks may subscribe to."""

    name: str
    """`WAITING` or the final status of a run."""
    run: int
    at: int
    about: str = ""
    """As in `DeliveryRow`."""


class Attempt(Struct, frozen=True, kw_only=True):
    """The outcome of an attempt."""

    status: str
    attempts: int
    due_at: int | None
    at: int
    http_status: int | None
    error: str


def add(events: Sequence[Event], *, workspace: int) -> Query[None]:
    """Adds a delivery of each event for each enabled webhook that subscribes to it, unless there is one already."""
    subscriptions = yield from webhooks.subscriptions(workspace)
    for event in events:
        for webhook, names in subscriptions:
            if event.name in names:
                yield from statement(
                    "INSERT INTO deliveries (webhook, run, about, status, attempts, due_at, created_at, last_error,"
                    " salt) VALUES ($1, $2, $3, 'pending', 0, $4, $4, '', $5) ON CONFLICT DO NOTHING",
                    webhook,
                    event.run,
                    event.about,
                    event.at,
                    secrets.token_hex(6),
                )


def due(
    now: int, *, limit: int, without_webhooks: Sequence[int] = (), without_workspaces: Sequence[int] = ()
) -> Query[list[tuple[int, DeliveryRow]]]:
    """The earliest that are due, each with its workspace, except those of some webhooks and workspaces."""
    excluded: list[str] = []
    values: list[SqlValue] = [now]
    for column, keys in (("w.key", without_webhooks), ("w.workspace", without_workspaces)):
        if keys:
            marks = ", ".join(f"${len(values) + number}" for number in range(1, len(keys) + 1))
            excluded.append(f" AND {column} NOT IN ({marks})")
            values += keys
    columns = ", ".join(f"d.{column}" for column in _COLUMNS.split(", "))
    rows = yield from statement(
        f"SELECT w.workspace, {columns} FROM deliveries d JOIN webhooks w ON w.key = d.webhook"
        f" WHERE d.due_at <= $1 AND w.enabled = 1{''.join(excluded)} ORDER BY d.due_at LIMIT ${len(values) + 1}",
        *values,
        limit,
    )
    return [(workspace, _to_row(row)) for workspace, *row in rows]


def next_due(after: int) -> Query[int | None]:
    """The next time after `after` at which a delivery is due."""
    row = yield from one(f"SELECT min(due_at) FROM deliveries WHERE due_at > $1 AND {_ENABLED}", after)
    return None if row is None else row[0]


def settle(key: int, attempt: Attempt) -> Query[None]:
    yield from statement(
        "UPDATE deliveries SET status = $1, attempts = $2, due_at = $3, last_at = $4, last_status = $5,"
        " last_error = $6 WHERE key = $7",
        attempt.status,
        attempt.attempts,
        attempt.due_at,
        attempt.at,
        attempt.http_status,
        attempt.error,
        key,
    )


def of_webhook(
    webhook: int, *, status: str | None = None, before: int | None = None, limit: int = 50
) -> Query[list[DeliveryRow]]:
    """Deliveries of a webhook, newest first, below the key `before`."""
    where, values = "webhook = $1", list[SqlValue]([webhook])
    if before is not None:
        values.append(before)
        where += f" AND key < ${len(values)}"
    if status is not None:
        values.append(status)
        where += f" AND status = ${len(values)}"
    values.append(limit)
    rows = yield from statement(f"{_DELIVERY} WHERE {where} ORDER BY key DESC LIMIT ${len(values)}", *values)
    return [_to_row(row) for row in rows]


def redeliver(key: int, *, salt: str, webhook: int, now: int) -> Query[DeliveryRow | None]:
    """Makes a delivery due again, whatever its status."""
    row = yield from one(
        "UPDATE deliveries SET status = 'pending', attempts = 0, due_at = $1 WHERE key = $2 AND webhook = $3"
        " AND salt = $4 RETURNING key",
        now,
        key,
        webhook,
        salt,
    )
    found = None if row is None else (yield from one(f"{_DELIVERY} WHERE key = $1", key))
    return None if found is None else _to_row(found)


def forget_settled(before: int, *, workspace: int | None = None, limit: int) -> Query[int]:
    """Removes settled deliveries from before that time; returns how many."""
    where, values = "due_at IS NULL AND created_at < $1", list[SqlValue]([before])
    if workspace is not None:
        values.append(workspace)
        where += f" AND webhook IN (SELECT key FROM webhooks WHERE workspace = ${len(values)})"
    values.append(limit)
    rows = yield from statement(
        f"DELETE FROM deliveries WHERE key IN (SELECT key FROM deliveries WHERE {where} LIMIT ${len(values)})"
        " RETURNING key",
        *values,
    )
    return len(rows)


def _to_row(row: Sequence[Any]) -> DeliveryRow:
    delivery, read = DeliveryRow(*row), Columns()
    return replace(
        delivery,
        status=read.one_of("status", delivery.status, STATUSES),
        due_at=read.time_or_none("due_at", delivery.due_at),
        created_at=read.time("created_at", delivery.created_at),
        last_at=read.time_or_none("last_at", delivery.last_at),
        last_error=read.text("last_error", delivery.last_error),
        about=read.text("about", delivery.about),
        salt=read.text("salt", delivery.salt),
        damaged=read.damaged,
    )
