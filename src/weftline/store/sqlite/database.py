# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Records on SQLite: reads on a connection of their own, writes in the one writer's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import apsw

from weftline.errors import StoreError
from weftline.store.database import Query
from weftline.store.sqlite.connection import connect, records_schema, snapshot, write_error
from weftline.store.sqlite.rows import rows_of
from weftline.work.turns import RoundRobin, on_behalf_of

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
