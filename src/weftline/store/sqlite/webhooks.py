# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Webhooks and what is to be delivered to them. Deliveries are written in the transaction that ends their run."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
from msgspec import Struct
from msgspec.json import encode

from weftline.errors import InvalidRequest, NotFound
from weftline.store.secrets import Vault

ID_PREFIX = "wh_"
SECRET_PREFIX = "whsec_"
EVENTS = ("succeeded", "failed", "cancelled")
MOST_PER_WORKSPACE = 20


class WebhookRow(Struct, frozen=True):
    """`events` is JSON, `secret` is sealed for the place `webhook:<id>`."""

    key: int
    id: str
    workspace: int
    url: str
    events: str
    secret: bytes
    enabled: int
    created_at: int


class DeliveryRow(Struct, frozen=True):
    key: int
    webhook: int
    run: int
    status: str
    attempts: int
    due_at: int | None
    created_at: int
    last_at: int | None
    last_status: int | None
    last_error: str


_WEBHOOK = "SELECT key, id, workspace, url, events, secret, enabled, created_at FROM webhooks"
_DELIVERY = (
    "SELECT key, webhook, run, status, attempts, due_at, created_at, last_at, last_status, last_error FROM deliveries"
)


def by_id(db: apsw.Connection, id: str, *, workspace: int) -> WebhookRow | None:
    return _webhook(db, f"{_WEBHOOK} WHERE id = ? AND workspace = ?", id, workspace)


def by_key(db: apsw.Connection, key: int) -> WebhookRow | None:
    return _webhook(db, f"{_WEBHOOK} WHERE key = ?", key)


def of_workspace(db: apsw.Connection, workspace: int) -> list[WebhookRow]:
    rows: list[Any] = db.execute(f"{_WEBHOOK} WHERE workspace = ? ORDER BY key", (workspace,)).fetchall()
    return [WebhookRow(*row) for row in rows]


def create_webhook(
    db: apsw.Connection, *, workspace: int, url: str, events: Sequence[str], now: int
) -> tuple[WebhookRow, str]:
    """The webhook, and the secret that its deliveries are signed with, which is told this once."""
    unknown = [event for event in events if event not in EVENTS]
    if unknown or not events:
        raise InvalidRequest(f"events: must be some of {', '.join(EVENTS)}.")
    if len(of_workspace(db, workspace)) >= MOST_PER_WORKSPACE:
        raise InvalidRequest(f"A workspace has {MOST_PER_WORKSPACE} webhooks at most.")
    identity = ID_PREFIX + secrets.token_hex(10)
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    sealed = vault_of(db).seal(secret.encode(), place=place_of(identity))
    db.execute(
        "INSERT INTO webhooks (id, workspace, url, events, secret, enabled, created_at) VALUES (?, ?, ?, ?, ?, 1, ?)",
        (identity, workspace, url, encode(sorted(set(events))).decode(), sealed, now),
    )
    row = by_id(db, identity, workspace=workspace)
    assert row is not None
    return row, secret


def enable_webhook(db: apsw.Connection, *, id: str, workspace: int, enabled: bool) -> WebhookRow:
    """While it is off, the ends of runs are not noted for it, and what is pending waits."""
    row = _known(db, id, workspace=workspace)
    db.execute("UPDATE webhooks SET enabled = ? WHERE key = ?", (int(enabled), row.key))
    return _known(db, id, workspace=workspace)


def delete_webhook(db: apsw.Connection, *, id: str, workspace: int) -> None:
    """Removes it with its deliveries, pending ones too."""
    row = _known(db, id, workspace=workspace)
    db.execute("DELETE FROM deliveries WHERE webhook = ?", (row.key,))
    db.execute("DELETE FROM webhooks WHERE key = ?", (row.key,))


def any_enabled(db: apsw.Connection) -> bool:
    return db.execute("SELECT 1 FROM webhooks WHERE enabled LIMIT 1").fetchone() is not None


def note_ends(db: apsw.Connection, ended: Sequence[tuple[int, str, int]]) -> None:
    """Writes what is to be delivered for runs that end in this transaction: key, status and time of each."""
    if db.execute("SELECT 1 FROM webhooks LIMIT 1").fetchone() is None:
        return
    for run, status, at in ended:
        db.execute(
            "INSERT INTO deliveries (webhook, run, status, attempts, due_at, created_at, last_error)"
            " SELECT webhooks.key, runs.key, 'pending', 0, ?, ?, '' FROM runs"
            " JOIN webhooks ON webhooks.workspace = runs.workspace AND webhooks.enabled"
            " WHERE runs.key = ? AND EXISTS (SELECT 1 FROM json_each(webhooks.events) WHERE value = ?)"
            " ON CONFLICT DO NOTHING",
            (at, at, run, status),
        )


def due(db: apsw.Connection, now: int, *, limit: int, without: Sequence[int] = ()) -> list[DeliveryRow]:
    """The earliest that are due, but for those of the webhooks in `without`."""
    marks = ",".join("?" * len(without))
    rows: list[Any] = db.execute(
        f"{_DELIVERY} WHERE due_at <= ? AND webhook IN (SELECT key FROM webhooks WHERE enabled)"
        f" AND webhook NOT IN ({marks}) ORDER BY due_at LIMIT ?",
        (now, *without, limit),
    ).fetchall()
    return [DeliveryRow(*row) for row in rows]


def next_due(db: apsw.Connection, after: int) -> int | None:
    """The first time after `after` at which a delivery is due."""
    row: Any = db.execute(
        "SELECT min(due_at) FROM deliveries WHERE due_at > ? AND webhook IN (SELECT key FROM webhooks WHERE enabled)",
        (after,),
    ).fetchone()
    return row[0] if row else None


def settle(
    db: apsw.Connection,
    *,
    key: int,
    status: str,
    attempts: int,
    due_at: int | None,
    at: int,
    last_status: int | None,
    last_error: str,
) -> None:
    """Notes what came of an attempt."""
    db.execute(
        "UPDATE deliveries SET status = ?, attempts = ?, due_at = ?, last_at = ?, last_status = ?, last_error = ?"
        " WHERE key = ?",
        (status, attempts, due_at, at, last_status, last_error, key),
    )


def deliveries(
    db: apsw.Connection, webhook: int, *, status: str | None = None, before: int | None = None, limit: int = 50
) -> list[DeliveryRow]:
    """The newest first, below the key `before`."""
    where, values = "webhook = ?", [webhook]
    if before is not None:
        where += " AND key < ?"
        values.append(before)
    given: tuple[Any, ...] = tuple(values)
    if status is not None:
        where += " AND status = ?"
        given = (*given, status)
    rows: list[Any] = db.execute(f"{_DELIVERY} WHERE {where} ORDER BY key DESC LIMIT ?", (*given, limit)).fetchall()
    return [DeliveryRow(*row) for row in rows]


def redeliver(db: apsw.Connection, *, key: int, webhook: int, now: int) -> DeliveryRow:
    """Makes a delivery due again, whatever became of it."""
    db.execute(
        "UPDATE deliveries SET status = 'pending', attempts = 0, due_at = ? WHERE key = ? AND webhook = ?",
        (now, key, webhook),
    )
    row: Any = db.execute(f"{_DELIVERY} WHERE key = ? AND webhook = ?", (key, webhook)).fetchone()
    if row is None:
        raise NotFound("There is no such delivery.")
    return DeliveryRow(*row)


def forget_settled(db: apsw.Connection, *, before: int, limit: int) -> int:
    """Removes deliveries that were settled before that time; returns how many."""
    db.execute(
        "DELETE FROM deliveries WHERE key IN"
        " (SELECT key FROM deliveries WHERE due_at IS NULL AND created_at < ? LIMIT ?)",
        (before, limit),
    )
    return db.changes()


def vault_of(db: apsw.Connection) -> Vault:
    return Vault(Path(db.filename).parent)


def place_of(id: str) -> str:
    """Where the secret of a webhook is sealed for."""
    return f"webhook:{id}"


def no_such_webhook() -> NotFound:
    return NotFound("There is no such webhook.")


def _known(db: apsw.Connection, id: str, *, workspace: int) -> WebhookRow:
    row = by_id(db, id, workspace=workspace)
    if row is None:
        raise no_such_webhook()
    return row


def _webhook(db: apsw.Connection, query: str, *values: int | str) -> WebhookRow | None:
    row: Any = db.execute(query, values).fetchone()
    return WebhookRow(*row) if row else None
