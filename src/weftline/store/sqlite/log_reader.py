# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Reading the log: short look-ups on the loop, each statement finished before it returns; long ones in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
from msgspec import Struct

from weftline.store.database import SqlValue
from weftline.store.records import thread_messages, thread_queues
from weftline.store.records.thread_messages import MessageFilter, MessageRow, Place, whole
from weftline.store.rows import (
    AwaitFilter,
    DueRun,
    History,
    Item,
    LargeEntry,
    OpenAwait,
    Page,
    RunFilter,
    RunRow,
    TimedRun,
)
from weftline.store.sqlite import lists
from weftline.store.sqlite.connection import read_error, snapshot
from weftline.store.sqlite.database import (
    DELTA_COLUMNS,
    ENTRY_COLUMNS,
    ReaderThreads,
    rows_of,
    run_query,
    stored,
    stored_as_bytes,
)
from weftline.store.sqlite.pieces import BODY, BODY_BYTES, MESSAGE, MESSAGE_BYTES


class ReadLimit(Struct, frozen=True):
    """The limit of one read, whatever the page's own limit."""

    bytes: int
    rows: int


ON_THE_LOOP = ReadLimit(256 * 1024, 256)
"""Takes about a millisecond; larger pages are read in a thread."""
IN_A_THREAD = ReadLimit(2**40, 16_384)

_PAGE = (
    f"SELECT {ENTRY_COLUMNS} FROM entries WHERE run = ?1 AND seq > ?2"
    f" UNION ALL SELECT {DELTA_COLUMNS} FROM deltas WHERE run = ?1 AND seq > ?3 ORDER BY seq"
)
# A body that is too large is skipped: SQLite knows its length without reading it.
_SMALL_PAGE = _PAGE.replace(f", {BODY},", f", CASE WHEN {BODY_BYTES} <= ?4 THEN {BODY} END,").replace(
    ", bodies,", ", CASE WHEN length(bodies) <= ?4 THEN bodies END,"
)


class NotOnTheLoop(Exception):
    """The page is larger than may be read on the loop."""


def read_page(db: apsw.Connection, run: int, *, after: int, max_bytes: int, limit: ReadLimit) -> Page | None:
    """None for an unknown run. Raises `NotOnTheLoop` instead of reading more than `limit` on the loop."""
    head: Any = db.execute("SELECT next_seq, ended_at IS NOT NULL, format FROM runs WHERE key = ?", (run,)).fetchone()
    if head is None:
        return None
    upto, ended, format = head[0] - 1, bool(head[1]), head[2]
    if upto < 0:  # the row is damaged; a reader would wait forever
        upto = _last_seq(db, run)
    if after >= upto:
        return Page([], upto, upto, ended, format)
    head = (upto, ended, format)
    try:
        return _read(db, run, after=after, max_bytes=max_bytes, limit=limit, head=head)
    except UnicodeDecodeError:  # a kind that is not UTF-8
        return _read(db, run, after=after, max_bytes=max_bytes, limit=limit, head=head, as_bytes=True)


def _read(
    db: apsw.Connection,
    run: int,
    *,
    after: int,
    max_bytes: int,
    limit: ReadLimit,
    head: tuple[int, bool, int],
    as_bytes: bool = False,
) -> Page:
    upto, ended, format = head
    cursor = _rows(db, run, after, limit, as_bytes=as_bytes)
    items: list[Item] = []
    size = 0
    try:
        for row in cursor:
            if row[3] is None or len(items) == limit.rows:
                break
            item = stored_as_bytes(row) if as_bytes else Item(*row)
            size += item.size
            if items and size > max_bytes:
                return Page(items, items[-1].last_seq, upto, ended, format)
            if size > limit.bytes:
                break
            items.append(item)
        else:
            return Page(items, upto, upto, ended, format)
    finally:
        cursor.close()
    if limit is ON_THE_LOOP:
        raise NotOnTheLoop
    return Page(items, items[-1].last_seq, upto, ended, format)


def _last_seq(db: apsw.Connection, run: int) -> int:
    row: Any = db.execute(
        "SELECT max(coalesce((SELECT max(seq) FROM entries WHERE run = ?1), 0),"
        " coalesce((SELECT max(seq + count - 1) FROM deltas WHERE run = ?1), 0))",
        (run,),
    ).fetchone()
    return row[0]


def _rows(db: apsw.Connection, run: int, after: int, limit: ReadLimit, *, as_bytes: bool) -> Any:
    query, *values = _PAGE, run, after, _before_deltas(db, run, after)
    if limit is not IN_A_THREAD:
        query = _SMALL_PAGE
        values.append(limit.bytes)
    return db.execute(query.replace(" kind,", " CAST(kind AS BLOB),") if as_bytes else query, values)


def _before_deltas(db: apsw.Connection, run: int, after: int) -> int:
    """A seq below the first row of deltas that extends past `after`: such a row may begin before it."""
    if after == 0:
        return 0
    row: Any = db.execute(
        "SELECT seq, count FROM deltas WHERE run = ? AND seq <= ? ORDER BY seq DESC LIMIT 1", (run, after)
    ).fetchone()
    return row[0] - 1 if row and row[0] + row[1] - 1 > after else after


_PLACED = f"SELECT {thread_messages.PLACES}, {{}} FROM thread_messages WHERE thread = ? AND {thread_messages.READ}"


def messages(db: apsw.Connection, thread: int) -> list[bytes]:
    rows: list[Any] = db.execute(f"{_PLACED.format(MESSAGE)} ORDER BY pos", (thread,)).fetchall()
    return whole([(Place(*row[:-1]), row[-1]) for row in rows])


def few_messages(db: apsw.Connection, thread: int, *, max_bytes: int, max_rows: int) -> list[bytes] | None:
    """`messages` within these limits, or None if there are more; messages that are too large are not read."""
    some = f"{MESSAGE_BYTES}, CASE WHEN {MESSAGE_BYTES} <= ? THEN {MESSAGE} END"
    rows: Any = db.execute(f"{_PLACED.format(some)} ORDER BY pos LIMIT ?", (max_bytes, thread, max_rows + 1))
    found: list[tuple[Place, bytes]] = []
    total = 0
    try:
        for *place, length, message in rows:
            total += length
            if total > max_bytes or len(found) == max_rows:
                return None
            found.append((Place(*place), message))
    finally:
        rows.close()
    return whole(found)


def history(db: apsw.Connection, thread: int, found: list[bytes] | None = None) -> History:
    """The messages of a thread, unless they were `found` already, and where it stands."""
    standing = run_query(db, thread_messages.standing(thread))
    return History(messages(db, thread) if found is None else found, *standing)


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


_ON_THE_LOOP_BYTES = 64 * 1024
_NO_LIMIT = 2**62
# The length of a blob is known without reading it.
_ONE_ENTRY = (
    f"SELECT at, kind, head, CASE WHEN {BODY_BYTES} <= ? THEN {BODY} END, 1, seq, {BODY_BYTES}"
    " FROM entries WHERE run = ? AND seq = ?"
)
_ONE_DELTA = (
    "SELECT at, kind, x'', CASE WHEN length(bodies) <= ? THEN bodies END, count, seq, length(bodies)"
    " FROM deltas WHERE run = ? AND seq <= ? ORDER BY seq DESC LIMIT 1"
)
_LATEST_AT = (
    "SELECT at FROM entries WHERE run = (SELECT run FROM entries ORDER BY id DESC LIMIT 1) ORDER BY seq DESC LIMIT 1"
)
"""The last fact of the run that was written last: large facts of a write are inserted after the others."""
_SIZE = f"SELECT coalesce(sum(length(head) + {BODY_BYTES}), 0) FROM entries WHERE run = ?"
_ENTRY = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE run = ?"


class SqliteLogReader:
    """A look-up takes tens of microseconds, less than handing it to a thread would."""

    def __init__(self, db: apsw.Connection, threads: ReaderThreads) -> None:
        self._reader = db
        self._threads = threads

    @property
    def id(self) -> str:
        try:
            found: str = self._reader.execute("SELECT id FROM store").get
        except apsw.Error as error:
            raise read_error(error) from error
        return found

    async def run(self, key: int) -> RunRow | None:
        try:
            return lists.one(self._reader, key)
        except (apsw.Error, UnicodeDecodeError) as error:
            raise read_error(error) from error

    async def given(self, run_id: str, *, workspace: int | None) -> list[int]:
        try:
            return lists.given(self._reader, run_id, workspace=workspace)
        except (apsw.Error, UnicodeDecodeError) as error:
            raise read_error(error) from error

    async def runs(self, wanted: RunFilter) -> list[RunRow]:
        return await self._threads.read(lambda db: lists.runs(db, wanted))

    async def count_runs(self, wanted: RunFilter) -> int:
        return await self._threads.read(lambda db: lists.count(db, wanted))

    async def awaits(self, wanted: AwaitFilter) -> list[OpenAwait]:
        return await self._threads.read(lambda db: lists.awaits(db, wanted))

    async def last_key(self) -> int:
        return self._one("SELECT coalesce(max(key), 0) FROM runs")[0]

    async def latest_at(self) -> int:
        return self._one(f"SELECT coalesce(({_LATEST_AT}), 0)")[0]

    async def entry(self, key: int, seq: int, *, max_bytes: int | None = None) -> Item | None:
        here = _ON_THE_LOOP_BYTES if max_bytes is None else min(max_bytes, _ON_THE_LOOP_BYTES)
        try:
            with snapshot(self._reader) as db:
                return _read_entry(db, key, seq, max_bytes=here)
        except LargeEntry as large:
            if max_bytes is not None and large.size > max_bytes:
                raise
        return await self._threads.read(lambda db: _read_entry(db, key, seq, max_bytes=None), run=key)

    async def facts(self, key: int, *, kinds: Sequence[str] = ()) -> list[Item]:
        # In a thread: all the facts of a run may have many megabytes.
        return await self._threads.read(lambda db: read_facts(db, key, kinds=kinds))

    async def heads(self, key: int, *, kinds: Sequence[str]) -> list[bytes]:
        with snapshot(self._reader) as db:
            few = _heads(db, key, kinds, limit=ON_THE_LOOP.rows)
        if len(few) < ON_THE_LOOP.rows:
            return few
        return await self._threads.read(lambda db: _heads(db, key, kinds, limit=_NO_LIMIT))

    async def newest_facts(self, key: int, *, kinds: Sequence[str], limit: int, max_bytes: int) -> list[Item]:
        # In a thread: a few entries may have many megabytes.
        newest = f"{_facts(kinds)} DESC LIMIT ?"
        return await self._threads.read(lambda db: _fitting(rows_of(db, newest, (key, 0, *kinds, limit)), max_bytes))

    async def page(self, key: int, *, after: int, max_bytes: int) -> Page | None:
        try:
            with snapshot(self._reader) as db:
                return read_page(db, key, after=after, max_bytes=max_bytes, limit=ON_THE_LOOP)
        except NotOnTheLoop:
            pass
        return await self._threads.read(
            lambda db: read_page(db, key, after=after, max_bytes=max_bytes, limit=IN_A_THREAD), run=key
        )

    async def log_size(self, key: int) -> int:
        def read(db: apsw.Connection) -> int:
            row: Any = db.execute(_SIZE, (key,)).fetchone()
            return row[0]

        return await self._threads.read(read, run=key)

    async def due_now(self, *, after: int, limit: int) -> list[DueRun]:
        rows = self._all(
            "SELECT key, suspect, alone, deaths, rules, format,"
            " coalesce((SELECT format FROM threads WHERE threads.key = runs.thread), 0),"
            " coalesce((SELECT head FROM entries WHERE run = runs.key AND seq = 1), x'')"
            " FROM runs WHERE due_at = 0 AND key > ? ORDER BY key LIMIT ?",
            after,
            limit,
        )
        return [DueRun(*row) for row in rows]

    async def due(self, now: int, *, after: tuple[int, int], limit: int) -> list[TimedRun]:
        rows = self._all(
            "SELECT due_at, key, workspace, rules, format,"
            " coalesce((SELECT format FROM threads WHERE threads.key = runs.thread), 0)"
            " FROM runs WHERE due_at > 0 AND due_at <= ? AND (due_at, key) > (?, ?) ORDER BY due_at, key LIMIT ?",
            now,
            *after,
            limit,
        )
        return [TimedRun(*row) for row in rows]

    async def next_due(self, after: int) -> int | None:
        return self._one("SELECT min(due_at) FROM runs WHERE due_at > ?", after)[0]

    async def idempotent(self, workspace: int, route: str, key: str) -> tuple[bytes, int] | None:
        return self._one(
            "SELECT digest, run FROM idempotency WHERE workspace = ? AND route = ? AND key = ?", workspace, route, key
        )

    async def ends_of_thread(self, thread: int) -> list[bytes]:
        return await self._threads.read(lambda db: ends(db, thread))

    async def unfinished_of_thread(self, thread: int) -> list[int]:
        return self._ints("SELECT key FROM runs WHERE thread = ? AND ended_at IS NULL ORDER BY place", thread)

    async def ended_threads_with_runs(self) -> list[int]:
        with snapshot(self._reader) as db:
            return run_query(db, thread_queues.ended_with_runs())

    async def queued_behind(self) -> list[tuple[int, int]]:
        return await self._threads.read(queued_behind)

    async def thread_messages(self, thread: int) -> list[bytes]:
        with snapshot(self._reader) as db:
            few = few_messages(db, thread, max_bytes=ON_THE_LOOP.bytes, max_rows=ON_THE_LOOP.rows)
        if few is not None:
            return few
        return await self._threads.read(lambda db: messages(db, thread))

    async def thread_history(self, thread: int) -> History:
        with snapshot(self._reader) as db:
            few = few_messages(db, thread, max_bytes=ON_THE_LOOP.bytes, max_rows=ON_THE_LOOP.rows)
            if few is not None:
                return history(db, thread, few)
        return await self._threads.read(lambda db: history(db, thread))

    async def thread_pinned(self, thread: int, *, through: int, revision: int) -> list[bytes] | None:
        query = thread_messages.pinned(thread, through=through, revision=revision, message=MESSAGE)
        return await self._threads.read(lambda db: run_query(db, query))

    async def thread_rows(self, wanted: MessageFilter) -> tuple[list[MessageRow], int]:
        return await self._threads.read(lambda db: run_query(db, thread_messages.page(wanted, message=MESSAGE)))

    async def thread_size(self, thread: int) -> int:
        return await self._threads.read(lambda db: run_query(db, thread_queues.size(thread)))

    async def unfinished(self) -> int:
        return self._one("SELECT count(*) FROM runs WHERE ended_at IS NULL")[0]

    async def waiting(self) -> int:
        return self._one(
            "SELECT count(*) FROM (SELECT key FROM runs WHERE due_at > 0 UNION SELECT run FROM open_awaits"
            " EXCEPT SELECT key FROM runs WHERE due_at = 0)"
        )[0]

    async def blob(self, workspace: int, id: str) -> bytes | None:
        def read(db: apsw.Connection) -> bytes | None:
            row: Any = db.execute("SELECT data FROM blobs WHERE workspace = ? AND id = ?", (workspace, id)).fetchone()
            return row[0] if row else None

        return await self._threads.read(read)

    def _one(self, query: str, *values: SqlValue) -> Any:
        """The first row, or None. The query determines the row's type, which a type checker cannot see."""
        rows = self._all(query, *values)
        return rows[0] if rows else None

    def _ints(self, query: str, *values: SqlValue) -> list[int]:
        return [row[0] for row in self._all(query, *values)]

    def _all(self, query: str, *values: SqlValue) -> list[Any]:
        try:
            return self._reader.execute(query, values).fetchall()
        except (apsw.Error, UnicodeDecodeError) as error:
            raise read_error(error) from error


def _read_entry(db: apsw.Connection, key: int, seq: int, *, max_bytes: int | None) -> Item | None:
    limit = _NO_LIMIT if max_bytes is None else max_bytes
    rows = rows_of(db, _ONE_ENTRY, (limit, key, seq))
    if not rows:
        rows = rows_of(db, _ONE_DELTA, (limit, key, seq))
        if not rows or rows[0][4] + rows[0][5] <= seq:
            return None
    *columns, size = rows[0]
    if columns[3] is None:
        raise LargeEntry(size)
    return stored_as_bytes(columns)


def read_facts(db: apsw.Connection, key: int, *, after: int = 0, kinds: Sequence[str] = ()) -> list[Item]:
    """The facts above seq `after`, in order; with `kinds` only those."""
    return stored(db, _facts(kinds), (key, after, *kinds))


def _fitting(rows: Any, max_bytes: int) -> list[Item]:
    """Those of the first rows that fit, in reverse order."""
    found: list[Item] = []
    size = 0
    for row in rows:
        one = stored_as_bytes(row)
        size += one.size
        if found and size > max_bytes:
            break
        found.append(one)
    return found[::-1]


def _facts(kinds: Sequence[str]) -> str:
    wanted = f" AND kind IN ({','.join('?' * len(kinds))})" if kinds else ""
    return f"{_ENTRY} AND seq > ?{wanted} ORDER BY seq"


def _heads(db: apsw.Connection, key: int, kinds: Sequence[str], *, limit: int) -> list[bytes]:
    some = ",".join("?" * len(kinds))
    rows: list[Any] = db.execute(
        f"SELECT head FROM entries WHERE run = ? AND kind IN ({some}) ORDER BY seq LIMIT ?", (key, *kinds, limit)
    ).fetchall()
    return [row[0] for row in rows]
