"""The half of a store that holds records: queries, what runs them, and the columns they read, which may be damaged."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

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


STATUSES = frozenset({"queued", "running", "paused", "succeeded", "failed", "cancelled"})
MAX_TIME_US = 253_402_300_799_999_999
"""The end of the year 9999, the last that ISO 8601 can name in four digits."""

_decode_words = Decoder(dict[str, str]).decode
_scan = Decoder(Raw).decode
_decode_texts = Decoder(list[str]).decode


class Columns:
    """Reads columns one by one. `damaged` is the first that cannot be what was written, or ""."""

    __slots__ = ("damaged",)

    def __init__(self) -> None:
        self.damaged = ""

    def time(self, name: str, value: int) -> int:
        return value if 0 <= value <= MAX_TIME_US else self._bad(name) or 0

    def time_or_none(self, name: str, value: int | None) -> int | None:
        return value if value is None or 0 <= value <= MAX_TIME_US else self._bad(name)

    def status(self, value: str) -> str:
        return value if value in STATUSES else self._bad("status") or "failed"

    def seq(self, name: str, value: int) -> int:
        return value if value >= 1 else self._bad(name) or 1

    def text(self, name: str, value: str | bytes) -> str:
        """A text, which is read as bytes if it is not valid UTF-8."""
        if isinstance(value, str):
            return value
        try:
            return value.decode()
        except UnicodeDecodeError:
            self._bad(name)
            return value.decode(errors="replace")

    def text_or_none(self, name: str, value: str | bytes | None) -> str | None:
        return None if value is None else self.text(name, value)

    def one_of(self, name: str, value: str | bytes, known: Sequence[str]) -> str:
        """One of the `known` texts; the first of them replaces an unknown one."""
        return value if isinstance(value, str) and value in known else self._bad(name) or known[0]

    def texts(self, name: str, value: str | bytes) -> tuple[str, ...]:
        """JSON: a list of strings."""
        try:
            return tuple(_decode_texts(value))
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return self._bad(name) or ()

    def json(self, name: str, value: bytes) -> bytes:
        """Any JSON."""
        try:
            value.decode()  # `_scan` does not look inside strings
            _scan(value)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return self._bad(name) or b"{}"
        return value

    def words(self, name: str, value: str | bytes) -> str:
        """JSON: strings by name."""
        try:
            _decode_words(value)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return self._bad(name) or "{}"
        return value if isinstance(value, str) else value.decode()

    def _bad(self, name: str) -> None:
        self.damaged = self.damaged or name
