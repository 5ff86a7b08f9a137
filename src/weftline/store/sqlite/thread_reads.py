# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Threads in the log: their messages, whose long strings are with the log, and their runs."""

from __future__ import annotations

from typing import Any

import apsw

from weftline.store.sqlite.pieces import MESSAGE, MESSAGE_BYTES


def messages(db: apsw.Connection, thread: int) -> list[bytes]:
    rows: list[Any] = db.execute(
        f"SELECT {MESSAGE} FROM thread_messages WHERE thread = ? ORDER BY pos", (thread,)
    ).fetchall()
    return [row[0] for row in rows]


def few_messages(db: apsw.Connection, thread: int, *, max_bytes: int, max_rows: int) -> list[bytes] | None:
    """`messages` within these limits, or None if there are more; messages that are too large are not read."""
    rows: Any = db.execute(
        f"SELECT {MESSAGE_BYTES}, CASE WHEN {MESSAGE_BYTES} <= ? THEN {MESSAGE} END FROM thread_messages"
        " WHERE thread = ?"
        " ORDER BY pos LIMIT ?",
        (max_bytes, thread, max_rows + 1),
    )
    found: list[bytes] = []
    total = 0
    try:
        for length, message in rows:
            total += length
            if total > max_bytes or len(found) == max_rows:
                return None
            found.append(message)
    finally:
        rows.close()
    return found


def ends(db: apsw.Connection, thread: int) -> list[bytes]:
    """The heads of the terminal entries of the thread's runs, in order."""
    rows: list[Any] = db.execute(
        "SELECT e.head FROM runs r JOIN entries e ON e.run = r.key AND e.seq = r.next_seq - 1"
        " WHERE r.thread = ? AND r.ended_at IS NOT NULL ORDER BY r.place",
        (thread,),
    ).fetchall()
    return [row[0] for row in rows]


def queued_behind(db: apsw.Connection) -> list[tuple[int, int]]:
    """The runs that wait for earlier ones of their threads, and their workspaces."""
    rows: list[Any] = db.execute(
        "SELECT runs.key, runs.workspace FROM threads"
        " JOIN runs AS moving ON moving.key = threads.active_run"
        " JOIN runs ON runs.thread = threads.key AND runs.place > moving.place"
        " WHERE threads.active_run IS NOT NULL AND runs.ended_at IS NULL ORDER BY runs.key"
    ).fetchall()
    return [(row[0], row[1]) for row in rows]
