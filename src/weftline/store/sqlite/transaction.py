# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""One flush as one transaction: what it writes, in which order, and what it checks before it commits."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from weftline.errors import Conflict, StoreError, WeftlineError
from weftline.store.base import RunWrite, Written
from weftline.store.sqlite import statements as sql
from weftline.store.sqlite.lists import metadata_rows
from weftline.store.sqlite.webhooks import note_ends


class Fenced(Exception):
    """Another process took the store over; this one must stop."""


class Moved(Exception):
    """A run row is not what a write of this transaction rests on."""


def check_owner(db: apsw.Connection, *, owner_epoch: int) -> None:
    """Raises `Fenced` unless the store is still this owner's, as seen by the transaction that has begun."""
    row = db.execute("SELECT owner_epoch FROM store").fetchone()
    if row is None or row[0] != owner_epoch:
        raise Fenced


def write_batch(db: apsw.Connection, writes: Sequence[RunWrite]) -> list[Written]:
    """Writes all of it, inside a transaction that the caller has begun; raises and has written nothing of use."""
    results = [Written() for _ in writes]
    accepted = [write for write, result in zip(writes, results, strict=True) if _take_place(db, write, result)]
    _rows(db, accepted)
    for write, result in zip(writes, results, strict=True):
        if write.thread_end is not None and result.outcome == "ok":
            result.promoted = _end_in_thread(db, write)
    return results


def _rows(db: apsw.Connection, writes: Sequence[RunWrite]) -> None:
    entries = [(write.key, *entry) for write in writes for entry in write.entries]
    if entries:
        sql.run_many(db, sql.INSERT_ENTRIES, entries)
    deltas = [(write.key, *delta) for write in writes for delta in write.deltas]
    if deltas:
        sql.run_many(db, sql.INSERT_DELTAS, deltas)
    created: list[tuple[sql.SqlValue, ...]] = []
    updated: list[tuple[sql.SqlValue, ...]] = []
    keyed: list[tuple[sql.SqlValue, ...]] = []
    tagged: list[tuple[sql.SqlValue, ...]] = []
    for write in writes:
        new = write.new
        if new is None:
            updated.append(
                (
                    write.key,
                    write.base_seq,
                    write.base_version,
                    write.next_seq,
                    write.version,
                    write.epoch,
                    write.due_at,
                    write.status,
                    write.started_at,
                    write.ended_at,
                    write.state,
                )
            )
            continue
        created.append(
            (
                write.key,
                new.salt,
                new.workspace,
                new.thread,
                new.place,
                new.name,
                new.agent,
                new.metadata,
                write.status,
                new.created_at,
                write.started_at,
                write.ended_at,
                write.next_seq,
                write.version,
                write.epoch,
                write.due_at,
                new.rules,
                write.state,
                new.secrets if write.ended_at is None else None,
            )
        )
        tagged += metadata_rows(new.workspace, new.metadata, write.key)
        if new.idempotency is not None:
            route, key, digest = new.idempotency
            keyed.append((new.workspace, route, key, digest, write.key, new.created_at))
    if created:
        sql.run_many(db, sql.INSERT_RUNS, created)
    if updated and sql.run_many(db, sql.UPDATE_RUNS, updated) != len(updated):
        raise Moved
    if keyed:
        sql.run_many(db, sql.INSERT_IDEMPOTENCY, keyed)
    if tagged:
        sql.run_many(db, sql.INSERT_RUN_METADATA, tagged)
    ended = [
        (write.key, write.status, write.ended_at)
        for write in writes
        if write.ended_at is not None and write.entries and write.entries[-1][2] == "run.ended"
    ]
    if ended:
        note_ends(db, ended)
    opened = [(write.key, *pending) for write in writes for pending in write.opened]
    if opened:
        sql.run_many(db, sql.INSERT_PENDING, opened)
    answered = [(write.key, call) for write in writes for call in write.answered]
    if answered:
        sql.run_many(db, sql.DELETE_PENDING, answered)


def _take_place(db: apsw.Connection, write: RunWrite, result: Written) -> bool:
    """Gives a new run of a thread its place in the line; the first in line may move at once."""
    if write.new is None or write.new.thread is None:
        return True
    row = db.execute(
        "SELECT ended_at, active_run, next_place FROM threads WHERE key = ?", (write.new.thread,)
    ).fetchone()
    if row is None or row[0] is not None:
        result.outcome = "failed"
        result.error = Conflict("This session has ended.", code="session_ended")
        return False
    busy, place = row[1] is not None, row[2]
    assert isinstance(place, int)
    write.new.place = place
    result.queued = busy
    write.due_at = None if busy else 0
    db.execute(
        "UPDATE threads SET next_place = next_place + 1, last_used_at = ?, active_run = coalesce(active_run, ?)"
        " WHERE key = ?",
        (write.new.created_at, write.key, write.new.thread),
    )
    return True


def _end_in_thread(db: apsw.Connection, write: RunWrite) -> int | None:
    """Adds the messages of a run that succeeded, releases the thread and moves the next run in line up."""
    end = write.thread_end
    assert end is not None
    if end.messages:
        row = db.execute("SELECT coalesce(max(pos), 0) FROM thread_messages WHERE thread = ?", (end.thread,)).fetchone()
        assert row is not None and isinstance(row[0], int)
        for pos, message in enumerate(end.messages, row[0] + 1):
            db.execute(
                "INSERT INTO thread_messages (thread, pos, run, message) VALUES (?, ?, ?, ?)",
                (end.thread, pos, write.key, message),
            )
    row = db.execute("SELECT active_run FROM threads WHERE key = ?", (end.thread,)).fetchone()
    if row is None or row[0] != write.key:
        return None
    following = db.execute(
        "SELECT key FROM runs WHERE thread = ? AND ended_at IS NULL AND key != ? ORDER BY place LIMIT 1",
        (end.thread, write.key),
    ).fetchone()
    promoted = following[0] if following else None
    assert promoted is None or isinstance(promoted, int)
    db.execute(
        "UPDATE threads SET active_run = ?, last_used_at = max(last_used_at, ?) WHERE key = ?",
        (promoted, write.ended_at or 0, end.thread),
    )
    if promoted is not None:
        db.execute("UPDATE runs SET due_at = 0 WHERE key = ?", (promoted,))
    return promoted


def probe(db: apsw.Connection) -> None:
    """Writes nothing new, but writes: tells whether the store takes writes at all."""
    # An update to the same value would write nothing: SQLite compares.
    db.execute("INSERT INTO idempotency (workspace, route, key, digest, run, at) VALUES (0, '', '', x'', 0, 0)")
    db.execute("DELETE FROM idempotency WHERE workspace = 0")


def failure(error: Exception) -> Written:
    """What a write that failed alone means: try again later, or never."""
    if isinstance(error, Moved):
        return Written("failed", Conflict("The run has moved on.", code="conflict"))
    if isinstance(error, apsw.ConstraintError):
        return Written("failed", Conflict(f"What was to be written is there already: {error}.", code="conflict"))
    if isinstance(error, apsw.FullError | apsw.BusyError | apsw.LockedError | apsw.ReadOnlyError | apsw.IOError):
        return Written("refused", _refusal(error))
    if isinstance(error, apsw.CantOpenError | apsw.NoMemError | apsw.InterruptError):
        return Written("refused", _refusal(error))
    return Written("failed", WeftlineError(f"The write was not possible: {error}.", code="internal_error"))


def _refusal(error: Exception) -> WeftlineError:
    return StoreError(f"The store takes no writes at the moment: {error}.", code="unavailable")
