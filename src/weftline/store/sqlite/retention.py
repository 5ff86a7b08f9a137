# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Removing the logs of runs that ended long ago. A run keeps its row and its last entry: how it ended stays known."""

from __future__ import annotations

from typing import Any

import apsw

BATCH = 100
"""Runs in one transaction, so that runs under way do not wait for long."""


def trim(db: apsw.Connection, *, before: int, after: int, workspace: int | None = None) -> tuple[int, int]:
    """Trims the next runs with a key above `after` that ended before that time.

    Returns the last key looked at (0 when no run is left) and how many runs had something to remove.
    """
    # Without a workspace the condition is one that every row meets.
    rows: list[Any] = db.execute(
        "SELECT key, next_seq FROM runs WHERE key > ? AND ended_at < ? AND workspace = coalesce(?, workspace)"
        " ORDER BY key LIMIT ?",
        (after, before, workspace, BATCH),
    ).fetchall()
    trimmed = 0
    for key, next_seq in rows:
        db.execute("DELETE FROM entries WHERE run = ? AND seq < ?", (key, next_seq - 1))
        gone = db.changes()
        db.execute("DELETE FROM deltas WHERE run = ? AND seq < ?", (key, next_seq - 1))
        trimmed += gone + db.changes() > 0
    return (rows[-1][0], trimmed) if rows else (0, 0)
