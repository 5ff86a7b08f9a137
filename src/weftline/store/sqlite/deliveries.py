# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The webhook deliveries that a commit of the log creates, recorded in the same transaction.

Webhooks are records; the log in memory uses this too.
"""

from __future__ import annotations

import apsw

from weftline.store.base import Write
from weftline.store.outcomes import ends_run
from weftline.store.records.webhooks import WAITING

_EVENTS = (
    "CASE json_valid(webhooks.events) WHEN 1 THEN"
    " CASE json_type(webhooks.events) WHEN 'array' THEN webhooks.events ELSE '[]' END ELSE '[]' END"
)
"""A webhook with damaged events receives nothing. Parsing them would fail the commit, and with it every run of the
workspace.
"""


def any_webhooks(db: apsw.Connection) -> bool:
    return db.execute("SELECT 1 FROM webhooks LIMIT 1").fetchone() is not None


def note(db: apsw.Connection, write: Write, *, workspace: int) -> None:
    """Adds the deliveries for a run that ends in this transaction, and for the awaits that it opens."""
    if ends_run(write):
        _note(db, write.key, "", workspace=workspace, event=write.status, at=write.ended_at or 0)
    for new in write.awaits:
        if new.id not in write.answered:
            _note(db, write.key, new.id, workspace=workspace, event=WAITING, at=new.opened_at)


def concerns(write: Write) -> bool:
    """Whether webhooks may have to be notified of this write."""
    return bool(write.awaits) or ends_run(write)


def _note(db: apsw.Connection, run: int, about: str, *, workspace: int, event: str, at: int) -> None:
    db.execute(
        "INSERT INTO deliveries (webhook, run, about, status, attempts, due_at, created_at, last_error, salt)"
        " SELECT key, ?, ?, 'pending', 0, ?, ?, '', lower(hex(randomblob(6))) FROM webhooks"
        " WHERE workspace = ? AND enabled = 1"
        f" AND EXISTS (SELECT 1 FROM json_each({_EVENTS}) WHERE value = ?) ON CONFLICT DO NOTHING",
        (run, about, at, at, workspace, event),
    )
