# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Records on SQLite: reads on a connection of their own, writes in the one writer's thread, and rows as values."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import apsw

from weftline.errors import StoreError
from weftline.store.database import Columns, Query, SqlValue
from weftline.store.rows import Item, RunRow
from weftline.store.sqlite.connection import connect, records_schema, snapshot, write_error
from weftline.store.sqlite.pieces import BODY
from weftline.work.turns import RoundRobin, on_behalf_of

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false


def rows_of(db: apsw.Connection, sql: str, values: Sequence[SqlValue] = ()) -> list[Any]:
    """All rows of a statement. Rows of a SELECT have bytes where a text is not UTF-8."""
    try:
        return db.execute(sql, tuple(values)).fetchall()
    except UnicodeDecodeError:
        if not sql.startswith("SELECT"):
            raise  # a statement that has changed something is not run a second time
        return _as_stored(db, sql, values)


def _as_stored(db: apsw.Connection, sql: str, values: Sequence[SqlValue]) -> list[Any]:
    cursor = db.execute(sql, tuple(values))
    count = len(cursor.get_description())
    cursor.close(True)
    names = [f"c{number}" for number in range(count)]
    cells = [f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in names]
    kinds = [f"typeof({name}) = 'text'" for name in names]
    rows: list[Any] = db.execute(
        f"WITH q ({', '.join(names)}) AS ({sql}) SELECT {', '.join(cells + kinds)} FROM q", tuple(values)
    ).fetchall()
    return [tuple(_text(row[at]) if row[count + at] else row[at] for at in range(count)) for row in rows]


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


RUN_COLUMNS = (
    "runs.key, runs.salt, runs.workspace, runs.thread, runs.name, runs.agent, runs.metadata, runs.status,"
    " runs.created_at, runs.started_at, runs.ended_at, runs.next_seq, runs.version, runs.epoch, runs.due_at,"
    " runs.rules, runs.format, coalesce((SELECT format FROM threads WHERE threads.key = runs.thread), 0),"
    " runs.thread IS NOT NULL AND runs.ended_at IS NULL AND"
    " (SELECT active_run FROM threads WHERE threads.key = runs.thread) IS NOT runs.key,"
    " runs.state, runs.state_seq, runs.fold, runs.suspect, runs.alone, runs.deaths, runs.family"
)
_QUEUED = 18
"""The position of the only boolean column; SQLite has no booleans."""

_TEXTS = (1, 4, 5, 6, 7)
"""The positions of the salt, the name, the agent, the metadata and the status."""

ENTRY_COLUMNS = f"at, kind, head, {BODY}, 1, seq"
DELTA_COLUMNS = "at, kind, x'', bodies, count, seq"


def run_row(row: Any) -> RunRow:
    """The row for driving the run; damage is found when a value is used."""
    values = list(row)
    for at in _TEXTS:
        if isinstance(values[at], bytes):  # it is not UTF-8; the run does not depend on it
            values[at] = values[at].decode(errors="replace")
    return _row_of(values)


def _row_of(values: list[Any]) -> RunRow:
    values[_QUEUED] = bool(values[_QUEUED])
    return RunRow(*values)


def readable_run_row(row: Any) -> RunRow:
    """The row for displaying the run; see `weftline.store.database`."""
    run, read = _row_of(list(row)), Columns()
    run.salt = read.text("salt", run.salt)
    run.name = read.text("name", run.name)
    run.agent = read.text_or_none("agent", run.agent)
    run.status = read.status(read.text("status", run.status))
    run.metadata = read.words("metadata", run.metadata)
    run.created_at = read.time("created_at", run.created_at)
    run.started_at = read.time_or_none("started_at", run.started_at)
    run.ended_at = read.time_or_none("ended_at", run.ended_at)
    run.next_seq = read.seq("next_seq", run.next_seq)
    run.damaged = read.damaged
    return run


def stored(db: apsw.Connection, sql: str, values: Sequence[SqlValue]) -> list[Item]:
    """The entries that a SELECT of `ENTRY_COLUMNS` finds."""
    try:
        rows: list[Any] = db.execute(sql, tuple(values)).fetchall()
        return [Item(*row) for row in rows]
    except UnicodeDecodeError:
        return [stored_as_bytes(row) for row in rows_of(db, sql, values)]


def stored_as_bytes(row: Any) -> Item:
    """Reads entries of a log in which a kind is not UTF-8; no entry has such a kind."""
    at, kind, *rest = row
    return Item(at, kind if isinstance(kind, str) else kind.decode(errors="replace"), *rest)


Row = TypeVar("Row")

_LARGEST = 256

INSERT_ENTRIES = ("INSERT INTO entries (run, seq, at, kind, head, body) VALUES ", 6, "")
INSERT_SPLIT_ENTRIES = ("INSERT INTO entries (run, seq, at, kind, head, body, size) VALUES ", 7, "")
INSERT_DELTAS = ("INSERT INTO deltas (run, seq, count, at, kind, bodies) VALUES ", 6, "")
INSERT_RUNS = (
    "INSERT INTO runs (key, salt, workspace, thread, place, name, agent, metadata, status, created_at, started_at,"
    " ended_at, next_seq, version, epoch, due_at, rules, fold, state_seq, state, secrets, format, family) VALUES ",
    23,
    "",
)
UPDATE_RUNS = (
    "WITH v (key, base_seq, base_version, next_seq, version, epoch, due_at, status, started_at, ended_at, state, fold,"
    " progress, format) AS (VALUES ",
    14,
    ") UPDATE runs SET format = v.format, next_seq = v.next_seq, version = v.version, epoch = v.epoch,"
    " due_at = CASE WHEN v.due_at = -1 THEN runs.due_at ELSE v.due_at END,"
    " status = v.status, started_at = coalesce(runs.started_at, v.started_at),"
    " ended_at = coalesce(runs.ended_at, v.ended_at),"
    " state = coalesce(v.state, runs.state),"
    " state_seq = CASE WHEN v.state IS NULL THEN runs.state_seq ELSE v.next_seq - 1 END,"
    " fold = CASE WHEN v.state IS NULL THEN runs.fold ELSE v.fold END,"
    " secrets = CASE WHEN v.ended_at IS NULL THEN runs.secrets END,"
    " alone = CASE WHEN v.progress THEN 0 ELSE runs.alone END,"
    " suspect = CASE WHEN v.progress = 2 THEN 0 ELSE runs.suspect END,"
    " trial = CASE WHEN v.progress = 2 THEN 0 ELSE runs.trial END"
    " FROM v WHERE runs.key = v.key AND runs.next_seq = v.base_seq AND runs.version = v.base_version"
    " AND runs.epoch <= v.epoch",
)
INSERT_RUN_METADATA = ("INSERT INTO run_metadata (workspace, name, value, run) VALUES ", 4, "")
INSERT_BLOBS = ("INSERT INTO blobs (workspace, id, data) VALUES ", 3, " ON CONFLICT DO NOTHING")
INSERT_RUN_BLOBS = ("INSERT INTO run_blobs (run, workspace, blob) VALUES ", 3, "")
INSERT_IDEMPOTENCY = ("INSERT INTO idempotency (workspace, route, key, digest, run, at) VALUES ", 6, "")

Statement = tuple[str, int, str]


def run_many(db: apsw.Connection, statement: Statement, rows: Sequence[tuple[SqlValue, ...]]) -> int:
    """Runs a multi-row statement over all rows; returns how many rows it changed."""
    changed = 0
    for chunk in _chunks(rows):
        sql = _sql(statement, len(chunk))
        db.execute(sql, tuple(chain.from_iterable(chunk)))
        changed += db.changes()
    return changed


@lru_cache(maxsize=256)
def _sql(statement: Statement, rows: int) -> str:
    head, columns, tail = statement
    one = "(" + ",".join("?" * columns) + ")"
    return head + ",".join([one] * rows) + tail


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start, left = 0, len(rows)
    while left:
        size = min(_LARGEST, 1 << (left.bit_length() - 1))
        yield rows[start : start + size]
        start += size
        left -= size


# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false


T = TypeVar("T")

_Waiting: TypeAlias = tuple[Callable[[apsw.Connection], Any], Future[Any]]

_THREADS = 2
"""Two, so that a list that walks many rows does not block the pages of streams."""


class ReaderThreads:
    """Connects on first use: most processes that read a store never need a thread."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._threads: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._lock = threading.Lock()
        self._waiting: RoundRobin[_Waiting] = RoundRobin()
        self._connections: list[apsw.Connection] = []
        self._closed = False

    async def read(self, job: Callable[[apsw.Connection], T], *, run: int | None = None) -> T:
        """Runs `job` on one snapshot. `run` is the key of the run whose log it reads, if it reads one."""
        future: Future[T] = Future()
        with self._lock:  # `close` is called in another thread
            if self._closed:
                raise StoreError("The store is closed.")
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="weftline-reader")
            self._threads.submit(self._next)
            self._waiting.put((job, future), owner=on_behalf_of.get(), topic=run)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Blocks until all reads have ended."""
        with self._lock:
            self._closed = True
        if self._threads is not None:
            self._threads.shutdown()
        for db in self._connections:
            db.close()
        self._connections.clear()

    def _next(self) -> None:
        """Runs the next waiting read, which need not be the one that scheduled this call."""
        with self._lock:
            job, future = self._waiting.take()
        if not future.set_running_or_notify_cancel():
            return
        try:
            value = self._run(job)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(value)

    def _run(self, job: Callable[[apsw.Connection], T]) -> T:
        db: apsw.Connection | None = getattr(self._own, "db", None)
        if db is None:
            db = self._own.db = connect(self._database, read_only=True)
            self._connections.append(db)
        with snapshot(db):
            return job(db)


Writes: TypeAlias = Callable[[Callable[[apsw.Connection], Any]], Awaitable[Any]]
"""Runs a job in its own write transaction and returns its value once that is durable."""


class SqliteDatabase:
    def __init__(self, reader: apsw.Connection, write: Writes, threads: ReaderThreads | None = None) -> None:
        self._reader = reader
        self._write = write
        self._threads = threads

    async def read(self, query: Query[T], *, heavy: bool = False) -> T:
        """Reads inline: a look-up takes tens of microseconds, less than handing it to a thread."""
        if heavy and self._threads is not None:
            return await self._threads.read(lambda db: run_query(db, query))
        with snapshot(self._reader) as db:
            return run_query(db, query)

    async def write(self, query: Query[T]) -> T:
        return await self._write(lambda db: run_query(db, query))


class MemoryDatabase(SqliteDatabase):
    """One connection for everything, which does not write for a query that should only read."""

    async def read(self, query: Query[T], *, heavy: bool = False) -> T:
        self._reader.exec_trace = _only_reads
        try:
            return await super().read(query, heavy=heavy)
        finally:
            self._reader.exec_trace = None


def _only_reads(cursor: apsw.Cursor, sql: str, values: object) -> bool:
    if not cursor.is_readonly:
        raise apsw.ReadOnlyError("attempt to write in a query that only reads")
    return True


def run_query(db: apsw.Connection, query: Query[T]) -> T:
    """Feeds a query the rows of the statements it yields."""
    try:
        statement = next(query)
        while True:
            statement = query.send(rows_of(db, statement.sql, statement.values))
    except StopIteration as done:
        return done.value


def records_in_memory() -> apsw.Connection:
    """A database for the records alone. It lacks the log's tables and the functions of its connections, so that a query
    that needs them fails.
    """
    db = apsw.Connection(":memory:", statementcachesize=256)
    with closing(apsw.Connection(":memory:")) as blank:
        blank.deserialize("main", _blank_records())
        with db.backup("main", blank, "main") as copying:  # unlike what was deserialized, it may grow without limit
            copying.step()
    return db


@cache
def _blank_records() -> bytes:
    """Created once per process: creating the tables takes twenty times as long as copying them."""
    with closing(apsw.Connection(":memory:")) as db:
        db.execute(records_schema())
        return db.serialize("main")


def transact(db: apsw.Connection, body: Callable[[apsw.Connection], T]) -> T:
    """Runs `body` as one transaction, here and now."""
    try:
        db.execute("BEGIN IMMEDIATE")
        try:
            value = body(db)
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
    except apsw.Error as error:
        raise write_error(error) from error
    return value
