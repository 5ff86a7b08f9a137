"""The half of a store that holds records: queries, and what runs them.

Every query is written once, in `weftline.store.records`, in SQL that both SQLite and Postgres accept. The store in
memory, too, keeps its records in an SQLite database.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct

T = TypeVar("T")

SqlValue: TypeAlias = str | bytes | int | float | None
Row: TypeAlias = tuple[Any, ...]

MAX_ROWS_PER_STATEMENT = 16
"""How many rows one statement inserts at most. SQLite compares the name of each parameter with those before it, so that
long statements take long to prepare.
"""


class Statement(Struct, frozen=True):
    """One SQL statement. Parameters are `$1`, `$2` …, first used in that order, which both databases understand."""

    sql: str
    values: tuple[SqlValue, ...] = ()


Query: TypeAlias = Generator[Statement, list[Row], T]
"""Yields statements, receives their rows, and returns a result. Queries compose with `yield from`."""


class Database(Protocol):
    """Runs queries. An exception raised by a query rolls it back and propagates.

    Database errors become `StoreError`; a duplicate of a unique value is a `Conflict`.
    """

    async def read(self, query: Query[T], *, heavy: bool = False) -> T:
        """Runs a query on one snapshot. A `heavy` one may walk many rows without blocking others.

        Raises `StoreError` if the query tries to write; nothing is changed.
        """
        ...

    async def write(self, query: Query[T]) -> T:
        """Runs a query as one transaction and returns its value once it is durable."""
        ...


def statement(sql: str, *values: SqlValue) -> Generator[Statement, list[Row], list[Row]]:
    """`rows = yield from statement("SELECT …", value)`."""
    rows = yield Statement(sql, values)
    return rows


def one(sql: str, *values: SqlValue) -> Generator[Statement, list[Row], Row | None]:
    """The first row, or None."""
    rows = yield Statement(sql, values)
    return rows[0] if rows else None


def insert_many(
    head: str, rows: Sequence[tuple[SqlValue, ...]], tail: str = ""
) -> Generator[Statement, list[Row], None]:
    """Runs `head` with these rows, all equally long, as its `VALUES`, followed by `tail`.

    Rows are split into powers of two, so that only a few distinct statements are ever prepared.
    """
    start = 0
    while left := len(rows) - start:
        size = min(MAX_ROWS_PER_STATEMENT, 1 << (left.bit_length() - 1))
        some = rows[start : start + size]
        yield Statement(_with_values(head, tail, size, len(some[0])), tuple([value for row in some for value in row]))
        start += size


@lru_cache(maxsize=64)
def _with_values(head: str, tail: str, rows: int, columns: int) -> str:
    numbers = [[f"${row * columns + column + 1}" for column in range(columns)] for row in range(rows)]
    return head + " VALUES " + ", ".join([f"({', '.join(row)})" for row in numbers]) + tail
