# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Records on SQLite: reads on a connection of their own, writes in the one writer's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, Protocol, TypeVar

import apsw

from weftline.errors import StoreError
from weftline.store.base import Query

T = TypeVar("T")


class Writes(Protocol):
    """Runs a job in a write transaction of its own and returns its value once that is durable."""

    def __call__(self, job: Callable[[apsw.Connection], Any]) -> Awaitable[Any]: ...


class SqliteDatabase:
    """`open_reader` opens a connection for one heavy read; without it those run inline too."""

    def __init__(
        self,
        reader: apsw.Connection,
        write: Writes,
        *,
        open_reader: Callable[[], apsw.Connection] | None = None,
    ) -> None:
        self._reader = reader
        self._write = write
        self._open_reader = open_reader

    async def read(self, query: Query[T], *, heavy: bool = False) -> T:
        """Reads inline: a look-up takes tens of microseconds, less than handing it to a thread."""
        if heavy and self._open_reader is not None:
            return await asyncio.to_thread(self._read_apart, self._open_reader, query)
        return _read(self._reader, query)

    async def write(self, query: Query[T]) -> T:
        return await self._write(lambda db: run_query(db, query))

    def _read_apart(self, open_reader: Callable[[], apsw.Connection], query: Query[T]) -> T:
        with closing(open_reader()) as db:
            return _read(db, query)


def _read(db: apsw.Connection, query: Query[T]) -> T:
    try:
        db.execute("SAVEPOINT records")
        try:
            return run_query(db, query)
        finally:
            db.execute("RELEASE records")
    except apsw.Error as error:
        raise StoreError(f"The store cannot be read: {error}.") from error


def run_query(db: apsw.Connection, query: Query[T]) -> T:
    """Feeds a query the rows of the statements that it yields."""
    try:
        statement = next(query)
        while True:
            rows: list[Any] = db.execute(statement.sql, statement.values).fetchall()
            statement = query.send(rows)
    except StopIteration as done:
        return done.value
