# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Records on SQLite: reads on a connection of their own, writes in the one writer's thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import cache
from typing import Any, Protocol, TypeVar

import apsw

from weftline.store.database import Query
from weftline.store.sqlite.connection import records_schema, snapshot
from weftline.store.sqlite.failures import write_error
from weftline.store.sqlite.reader_threads import ReaderThreads
from weftline.store.sqlite.texts import rows_of

T = TypeVar("T")


class Writes(Protocol):
    """Runs a job in its own write transaction and returns its value once that is durable."""

    def __call__(self, job: Callable[[apsw.Connection], Any]) -> Awaitable[Any]: ...


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
