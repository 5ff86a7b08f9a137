# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What is to be delivered to webhooks, written in the transaction that ends its run."""

from __future__ import annotations

from collections.abc import Sequence

import apsw


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
