# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""One flush as one transaction: what it writes, in what order, and what it checks before it commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
from msgspec.json import decode

from weftline.store.database import SqlValue
from weftline.store.outcomes import Malformed, Moved, check_children, events_of, moved_on, refused_by_thread
from weftline.store.pieces import PIECE_BYTES, split
from weftline.store.records import budgets, deliveries, thread_messages, thread_queues, webhooks
from weftline.store.records.deliveries import Event
from weftline.store.records.thread_queues import Place
from weftline.store.rows import LEAVE_DUE, Item, NewRun, Write, Written
from weftline.store.sqlite import database as sql
from weftline.store.sqlite import lists, pieces
from weftline.store.sqlite.database import run_query


def write_batch(db: apsw.Connection, writes: Sequence[Write]) -> list[Written]:
    """Writes everything, inside a transaction that the caller has begun. If it raises, the caller must roll back."""
    for write in writes:
        check_children(write)
    places: dict[int, Place] = {}
    results = [Written() if write.new is None else _take_place(db, write, write.new, places) for write in writes]
    accepted = [write for write, result in zip(writes, results, strict=True) if result.outcome == "ok"]
    children = [child for write in accepted for child in write.children]
    _Rows([*accepted, *children], places).write(db)
    if any(write.awaits or write.answered for write in accepted):
        lists.keep(db, accepted)
    bookings = [one for write in accepted for one in write.bookings]
    closed = [write.closes for write in accepted if write.closes is not None]
    if bookings or closed:
        run_query(db, budgets.book(bookings, closed=closed))
    for write in accepted:
        if write.new is not None and write.new.history and write.new.thread is not None:
            messages = pieces.split_messages(db, write.new.history, run=write.key)
            begun = thread_queues.begin(
                write.new.thread, messages, run=write.key, format=write.format, at=write.new.created_at
            )
            run_query(db, begun)
        if write.seated is not None:
            run_query(db, thread_queues.seat(*write.seated))
        if write.keeps is not None and write.kept:
            contents = pieces.split_messages(db, [one.message for one in write.kept], run=write.key)
            kept = list(zip(write.kept, contents, strict=True))
            run_query(db, thread_messages.keep(write.keeps, kept, run=write.key, format=write.format))
        for change in write.edits:
            run_query(db, thread_messages.edit(change))
    _add_deliveries(db, accepted)
    for write, result in zip(writes, results, strict=True):
        if write.thread_end is not None and result.outcome == "ok":
            result.promoted = _end_in_thread(db, write)
    # After the rows, because a parent that is written in the same flush does not know of this yet.
    woken = [write.wakes for write in accepted if write.wakes is not None]
    for parent in woken:
        db.execute("UPDATE runs SET due_at = 0 WHERE key = ? AND ended_at IS NULL", (parent,))
    return results


class _Rows:
    """The rows that a flush adds to each table. Every row comes from a write that is checked in the same
    transaction.
    """

    def __init__(self, writes: Sequence[Write], places: dict[int, Place]) -> None:
        self._entries: list[tuple[SqlValue, ...]] = []
        self._split: list[tuple[SqlValue, ...]] = []
        self._pieces: list[pieces.Piece] = []
        self._deltas: list[tuple[SqlValue, ...]] = []
        self._created: list[tuple[SqlValue, ...]] = []
        self._updated: list[tuple[SqlValue, ...]] = []
        self._keyed: list[tuple[SqlValue, ...]] = []
        self._tagged: list[tuple[SqlValue, ...]] = []
        self._blobs: list[tuple[SqlValue, ...]] = []
        self._named: list[tuple[SqlValue, ...]] = []
        for write in writes:
            next_seq = self._number(write)
            if write.new is not None:
                self._create(write, write.new, places.get(write.key), next_seq)
                continue
            self._updated.append(
                (
                    write.key,
                    write.base_seq,
                    write.base_version,
                    next_seq,
                    write.version,
                    write.epoch,
                    write.due_at,
                    write.status,
                    write.started_at,
                    write.ended_at,
                    write.state,
                    write.fold,
                    write.progress,
                    write.format,
                )
            )

    def write(self, db: apsw.Connection) -> None:
        if self._entries:
            sql.run_many(db, sql.INSERT_ENTRIES, self._entries)
        if self._deltas:
            sql.run_many(db, sql.INSERT_DELTAS, self._deltas)
        if self._created:
            sql.run_many(db, sql.INSERT_RUNS, self._created)
        if self._updated and sql.run_many(db, sql.UPDATE_RUNS, self._updated) != len(self._updated):
            raise Moved
        if self._keyed:
            sql.run_many(db, sql.INSERT_IDEMPOTENCY, self._keyed)
        if self._tagged:
            sql.run_many(db, sql.INSERT_RUN_METADATA, self._tagged)
        for row in self._blobs:
            # One by one: they are few and large.
            sql.run_many(db, sql.INSERT_BLOBS, [row])
        if self._named:
            sql.run_many(db, sql.INSERT_RUN_BLOBS, self._named)
        if self._split:
            sql.run_many(db, sql.INSERT_SPLIT_ENTRIES, self._split)
            pieces.keep(db, self._pieces)

    def _number(self, write: Write) -> int:
        """Assigns seqs to the items; returns the next one."""
        key, seq = write.key, write.base_seq
        for item in write.items:
            item.seq = seq
            if item.head:
                if item.count != 1:
                    raise Malformed("a fact is one entry")
                if len(item.body) < PIECE_BYTES or not self._split_item(key, seq, item):
                    self._entries.append((key, seq, item.at, item.kind, item.head, item.body))
                seq += 1
            else:
                if item.count < 1:
                    raise Malformed("an item without entries")
                self._deltas.append((key, seq, item.count, item.at, item.kind, item.body))
                seq += item.count
        return seq

    def _split_item(self, run: int, seq: int, item: Item) -> bool:
        """Splits off the item's long strings, which are stored once; returns whether it has any."""
        parts = item.parts or split(item.body)
        if parts is None:
            return False
        self._split.append((run, seq, item.at, item.kind, item.head, parts.body, parts.size))
        self._pieces += [(run, id, data) for id, data in parts.pieces.items()]
        return True

    def _create(self, write: Write, new: NewRun, place: Place | None, next_seq: int) -> None:
        if (write.base_seq, write.base_version) != (1, 0):
            raise Moved
        due_at = 0 if write.due_at == LEAVE_DUE else write.due_at
        self._created.append(
            (
                write.key,
                new.salt,
                new.workspace,
                new.thread,
                place.number if place else None,
                new.name,
                new.agent,
                new.metadata,
                write.status,
                new.created_at,
                write.started_at,
                write.ended_at,
                next_seq,
                write.version,
                write.epoch,
                due_at if place is None else None if place.queued else 0,
                new.rules,
                write.fold,
                0 if write.state is None else next_seq - 1,
                write.state or b"",
                new.secrets if write.ended_at is None else None,
                write.format,
                new.family,
            )
        )
        if new.metadata != "{}":
            tags = decode(new.metadata, type=dict[str, str])
            self._tagged += [(new.workspace, name, value, write.key) for name, value in tags.items()]
        for blob in {blob.id: blob for blob in new.blobs}.values():
            self._blobs.append((new.workspace, blob.id, blob.data))
            self._named.append((write.key, new.workspace, blob.id))
        if new.idempotency is not None:
            route, key, digest = new.idempotency
            self._keyed.append((new.workspace, route, key, digest, write.key, new.created_at))


def _take_place(db: apsw.Connection, write: Write, new: NewRun, places: dict[int, Place]) -> Written:
    """Gives a new run its place in the queue of its thread."""
    if new.thread is None:
        return Written()
    place = run_query(db, thread_queues.take_place(new.thread, run=write.key, at=new.created_at, format=write.format))
    if place is None:
        return refused_by_thread(run_query(db, thread_queues.open_format(new.thread)), write) or moved_on()
    places[write.key] = place
    return Written(queued=place.queued)


def _add_deliveries(db: apsw.Connection, writes: Sequence[Write]) -> None:
    notable = [write for write in writes if write.awaits or write.ended_at is not None]
    if not notable or not run_query(db, webhooks.any_enabled()):
        return
    events = [event for write in notable for event in events_of(write)]
    by_workspace: dict[int, list[Event]] = {}
    for event in events:
        row: Any = db.execute("SELECT workspace FROM runs WHERE key = ?", (event.run,)).fetchone()
        by_workspace.setdefault(row[0], []).append(event)
    for workspace, some in by_workspace.items():
        run_query(db, deliveries.add(some, workspace=workspace))


def _end_in_thread(db: apsw.Connection, write: Write) -> int | None:
    """Adds the messages of a run that succeeded, releases the thread and lets the next queued run start."""
    end = write.thread_end
    assert end is not None
    messages = pieces.split_messages(db, end.messages, run=write.key)
    row: Any = db.execute(
        "SELECT key FROM runs WHERE thread = ? AND ended_at IS NULL AND key != ? ORDER BY place LIMIT 1",
        (end.thread, write.key),
    ).fetchone()
    following = row[0] if row else None
    ending = thread_queues.end_run(
        end.thread,
        messages,
        run=write.key,
        format=write.format,
        following=following,
        at=write.ended_at or 0,
        read=end.read,
    )
    if not run_query(db, ending) or following is None:
        return None
    db.execute("UPDATE runs SET due_at = 0 WHERE key = ?", (following,))
    return following
