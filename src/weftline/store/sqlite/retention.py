# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Removes the logs of runs that ended long ago. A run keeps its row and its last entry, so its outcome stays known.

The messages of a thread are not part of a log: they are kept, and so are the blobs that they refer to.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import apsw

from weftline.store.records import thread_queues
from weftline.store.sqlite.database import run_query

BATCH = 100
BATCH_S = 0.02
"""How many runs one transaction examines, and for how long, so that active runs do not wait long."""
SHRINK_PAGES = 256

_STAYING = (
    "SELECT body FROM entries WHERE run = ?1 UNION ALL SELECT message FROM thread_messages"
    " WHERE thread = (SELECT thread FROM runs WHERE key = ?1) AND run = ?1"
)
"""The bodies and messages that are kept, as they are stored: with the ids of the blobs that they refer to."""
_FROM_ELSEWHERE = (
    "SELECT workspace FROM runs WHERE key = ?1 AND thread IS NULL"
    " AND EXISTS (SELECT 1 FROM run_blobs WHERE run = ?1)"
    " AND EXISTS (SELECT 1 FROM entries WHERE run = ?1 AND kind = 'history.pinned')"
)
"""An imported run is on no thread here, even if it was on one where it ran."""


def trim(db: apsw.Connection, *, before: int, after: int, workspace: int | None = None) -> tuple[int, int]:
    """Trims the next runs with a key above `after` that ended before that time.

    Returns the last key examined (0 if no run is left) and how many runs had something to remove.
    """
    # Without a workspace, every row meets the condition.
    rows: list[Any] = db.execute(
        "SELECT key, next_seq FROM runs WHERE key > ? AND ended_at < ? AND workspace = coalesce(?, workspace)"
        " ORDER BY key LIMIT ?",
        (after, before, workspace, BATCH),
    ).fetchall()
    trimmed = last = 0
    until_s = monotonic() + BATCH_S
    for last, next_seq in rows:
        imported: Any = db.execute(_FROM_ELSEWHERE, (last,)).fetchone()
        db.execute("DELETE FROM entries WHERE run = ? AND seq < ?", (last, next_seq - 1))
        gone = db.changes()
        db.execute("DELETE FROM deltas WHERE run = ? AND seq < ?", (last, next_seq - 1))
        trimmed += gone + db.changes() > 0
        if gone:
            left = run_query(db, thread_queues.left_by(last, workspace=imported[0])) if imported else []
            _drop_blobs(db, last, left)
        if monotonic() > until_s:
            break
    return last, trimmed


def _drop_blobs(db: apsw.Connection, run: int, left: list[bytes]) -> None:
    """Removes the blobs that only this run refers to, except those that its last entry, its thread's messages, or the
    messages that it has `left` on an imported thread still need.
    """
    names: list[Any] = db.execute("SELECT workspace, blob FROM run_blobs WHERE run = ?", (run,)).fetchall()
    if not names:
        return
    rows: list[Any] = db.execute(_STAYING, (run,)).fetchall()
    staying = [*left, *[row[0] for row in rows]]
    for workspace, blob in names:
        if any(blob.encode() in row for row in staying):
            continue
        db.execute("DELETE FROM run_blobs WHERE run = ? AND blob = ?", (run, blob))
        db.execute(
            "DELETE FROM blobs WHERE workspace = ?1 AND id = ?2"
            " AND NOT EXISTS (SELECT 1 FROM run_blobs WHERE workspace = ?1 AND blob = ?2)",
            (workspace, blob),
        )


def shrink(db: apsw.Connection) -> int:
    """Truncates some unused pages at the end of the file; returns how many bytes, 0 if there are none."""
    before = _pages(db)
    for _ in db.execute(f"PRAGMA incremental_vacuum({SHRINK_PAGES})"):
        pass
    size: Any = db.execute("PRAGMA page_size").fetchone()
    return (before - _pages(db)) * size[0]


def _pages(db: apsw.Connection) -> int:
    count: Any = db.execute("PRAGMA page_count").fetchone()
    return count[0]
