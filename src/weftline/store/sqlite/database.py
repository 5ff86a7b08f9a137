# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Records on SQLite: reads on a connection of their own, writes in the one writer's thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import apsw

from weftline.errors import StoreError
from weftline.store.base import Query

T = TypeVar("T")


class Writes(Protocol):
    """Runs a job in a write transaction of its own and returns its value once that is durable."""

    def __call__(self, job: Callable[[apsw.Connection], Any]) -> Awaitable[Any]: ...


class SqliteDatabase:
    def __init__(self, reader: apsw.Connection, write: Writes) -> None:
        self._reader = reader
        self._write = write

    async def read(self, query: Query[T]) -> T:
        """Reads inline: a look-up takes tens of microseconds, less than handing it to a thread."""
        db = self._reader
        try:
            db.execute("SAVEPOINT records")
            try:
                return run_query(db, query)
            finally:
                db.execute("RELEASE records")
        except apsw.Error as error:
            raise StoreError(f"The store cannot be read: {error}.") from error

    async def write(self, query: Query[T]) -> T:
        return await self._write(lambda db: run_query(db, query))


def run_query(db: apsw.Connection, query: Query[T]) -> T:
    """Feeds a query the rows of the statements that it yields."""
    try:
        statement = next(query)
        while True:
            rows: list[Any] = db.execute(statement.sql, statement.values).fetchall()
            statement = query.send(rows)
    except StopIteration as done:
        return done.value
