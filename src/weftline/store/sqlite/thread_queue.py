# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What a commit of the log does to a thread's row and messages: one run is active, the others are queued.

Threads are records; these are the few of their columns that belong to the log. The log in memory uses this too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
from msgspec import Struct

from weftline.store.pieces import MESSAGE, MESSAGE_BYTES


class Place(Struct, frozen=True):
    """A new run's place in the queue of its thread."""

    number: int
    queued: bool
    """Whether another run of the thread is active now."""


def open_format(db: apsw.Connection, thread: int) -> int | None:
    """The version of the vocabulary of an open thread's messages; None if it does not exist or has ended."""
    row: Any = db.execute("SELECT format FROM threads WHERE key = ? AND ended_at IS NULL", (thread,)).fetchone()
    return row[0] if row else None


def standing(db: apsw.Connection, thread: int) -> tuple[int | None, int]:
    """The active run of the thread, and the version of the vocabulary of its messages."""
    row: Any = db.execute("SELECT active_run, format FROM threads WHERE key = ?", (thread,)).fetchone()
    return (row[0], row[1]) if row else (None, 0)


def take_place(db: apsw.Connection, thread: int, *, run: int, at: int) -> Place:
    """Adds a run to the queue of an open thread; on an idle thread it becomes active at once."""
    rows: list[Any] = db.execute(
        "UPDATE threads SET next_place = next_place + 1, last_used_at = ?, active_run = coalesce(active_run, ?)"
        " WHERE key = ? RETURNING next_place, active_run",
        (at, run, thread),
    ).fetchall()
    return Place(rows[0][0] - 1, rows[0][1] != run)


def add_messages(
    db: apsw.Connection, thread: int, messages: Sequence[tuple[bytes, int | None]], *, run: int, format: int
) -> None:
    """Adds messages in the form in which they are stored, each with its size if it was split."""
    for pos, (message, size) in enumerate(messages, _last_message(db, thread) + 1):
        db.execute(
            "INSERT INTO thread_messages (thread, pos, run, message, size) VALUES (?, ?, ?, ?, ?)",
            (thread, pos, run, message, size),
        )
    db.execute("UPDATE threads SET format = ? WHERE key = ? AND format < ?", (format, thread, format))


def active_run(db: apsw.Connection, thread: int) -> int | None:
    """The active run of the thread."""
    row: Any = db.execute("SELECT active_run FROM threads WHERE key = ?", (thread,)).fetchone()
    return row[0] if row else None


def pass_on(db: apsw.Connection, thread: int, *, to: int | None, at: int) -> None:
    """Hands the thread over when its active run has ended: to the run `to`, or to nobody."""
    db.execute("UPDATE threads SET active_run = ?, last_used_at = max(last_used_at, ?) WHERE key = ?", (to, at, thread))


def messages(db: apsw.Connection, thread: int) -> list[bytes]:
    rows: list[Any] = db.execute(
        f"SELECT {MESSAGE} FROM thread_messages WHERE thread = ? ORDER BY pos", (thread,)
    ).fetchall()
    return [row[0] for row in rows]


def left_by(db: apsw.Connection, run: int, *, workspace: int) -> list[bytes]:
    """The messages that a run has left on any thread, as they are stored. Reads all threads of the workspace."""
    rows: list[Any] = db.execute(
        "SELECT m.message FROM threads t JOIN thread_messages m ON m.thread = t.key"
        " WHERE t.workspace = ? AND m.run = ?",
        (workspace, run),
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


def size(db: apsw.Connection, thread: int) -> int:
    """The size of the thread's messages in bytes."""
    row: Any = db.execute(
        f"SELECT coalesce(sum({MESSAGE_BYTES}), 0) FROM thread_messages WHERE thread = ?", (thread,)
    ).fetchone()
    return row[0]


def ends(db: apsw.Connection, thread: int) -> list[bytes]:
    """The heads of the terminal entries of the thread's runs, in order."""
    rows: list[Any] = db.execute(
        "SELECT e.head FROM runs r JOIN entries e ON e.run = r.key AND e.seq = r.next_seq - 1"
        " WHERE r.thread = ? AND r.ended_at IS NOT NULL ORDER BY r.place",
        (thread,),
    ).fetchall()
    return [row[0] for row in rows]


def _last_message(db: apsw.Connection, thread: int) -> int:
    row: Any = db.execute("SELECT coalesce(max(pos), 0) FROM thread_messages WHERE thread = ?", (thread,)).fetchone()
    return row[0]


def queued_behind(db: apsw.Connection) -> list[tuple[int, int]]:
    """The runs that wait for earlier ones of their threads, and their workspaces."""
    rows: list[Any] = db.execute(
        "SELECT runs.key, runs.workspace FROM threads"
        " JOIN runs AS moving ON moving.key = threads.active_run"
        " JOIN runs ON runs.thread = threads.key AND runs.place > moving.place"
        " WHERE threads.active_run IS NOT NULL AND runs.ended_at IS NULL ORDER BY runs.key"
    ).fetchall()
    return [(row[0], row[1]) for row in rows]


def ended_with_runs(db: apsw.Connection) -> list[int]:
    """Threads that have ended although some of their runs have not: the process died before cancelling them."""
    rows: list[Any] = db.execute(
        "SELECT key FROM threads WHERE ended_at IS NOT NULL AND active_run IS NOT NULL"
    ).fetchall()
    return [row[0] for row in rows]
