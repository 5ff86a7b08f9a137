# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The deliveries that a commit of the log creates: who must hear about an end is recorded in the same transaction.

Webhooks are records; the log in memory uses this too.
"""

from __future__ import annotations

import apsw


def any_webhooks(db: apsw.Connection) -> bool:
    return db.execute("SELECT 1 FROM webhooks LIMIT 1").fetchone() is not None


def note_end(db: apsw.Connection, run: int, *, workspace: int, status: str, at: int) -> None:
    """Adds the deliveries for a run that ends in this transaction."""
    db.execute(
        "INSERT INTO deliveries (webhook, run, status, attempts, due_at, created_at, last_error)"
        " SELECT key, ?, 'pending', 0, ?, ?, '' FROM webhooks WHERE workspace = ? AND enabled = 1"
        " AND EXISTS (SELECT 1 FROM json_each(webhooks.events) WHERE value = ?) ON CONFLICT DO NOTHING",
        (run, at, at, workspace, status),
    )
