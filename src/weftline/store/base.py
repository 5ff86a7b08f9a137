"""What crosses the border between the loop and the store: encoded bytes and 64-bit integers, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from weftline.errors import WeftlineError
from weftline.kernel.entries import Fact

T = TypeVar("T")

LEAVE_DUE = -1
"""A `due_at` that leaves the row's as it is: whose turn it is in a thread's line, the store alone knows."""
EntryRow: TypeAlias = tuple[int, int, str, bytes, bytes]
"""seq, at, kind, head, body"""
DeltaRow: TypeAlias = tuple[int, int, int, str, bytes]
"""first seq, count, at, kind, bodies joined by newlines"""


class NewRun(Struct):
    """The columns that are written once, when the run is created."""

    salt: str
    workspace: int
    name: str
    metadata: str
    created_at: int
    rules: int
    thread: int | None = None
    place: int | None = None
    """In the thread's line; given by the store at commit."""
    agent: str | None = None
    idempotency: tuple[str, str, bytes] | None = None
    """route, key, digest of the body"""
    secrets: bytes | None = None
    """Sealed header values of the tools that the server dials; dropped when the run ends."""


class ThreadEnd(Struct):
    """What the end of a thread's run does to the thread: its messages, and the place of the next run in line."""

    thread: int
    messages: list[bytes]


class RunWrite(Struct):
    """Everything that one commit does to one run.

    `base_seq` and `base_version` are what the run row must hold for the write to take effect. `state` None leaves the
    stored state as it is (only deltas were appended).
    """

    key: int
    base_seq: int
    base_version: int
    next_seq: int
    version: int
    epoch: int
    due_at: int | None
    status: str
    state: bytes | None
    started_at: int | None = None
    ended_at: int | None = None
    entries: list[EntryRow] = []
    heads: list[Fact] = []
    """Of `entries`, decoded, for those who read them after the commit; the store does not look at them."""
    deltas: list[DeltaRow] = []
    opened: list[tuple[str, str, int | None]] = []
    """Calls that now wait for a client: id, kind, deadline."""
    answered: list[str] = []
    new: NewRun | None = None
    thread_end: ThreadEnd | None = None
    size: int = 0


class Written(Struct):
    """What became of one `RunWrite`.

    `refused` means that nothing was written and that the same write may succeed later (disk full, store locked);
    `failed` that it never will (the row is not what the writer of the entry believed).
    """

    outcome: Literal["ok", "refused", "failed"] = "ok"
    error: WeftlineError | None = None
    queued: bool = False
    """Of a new run on a thread: others are before it in the line."""
    promoted: int | None = None
    """The run that moves up in the thread's line."""


OnFlushed: TypeAlias = Callable[[list[RunWrite], list[Written]], None]


# Records

SqlValue: TypeAlias = str | bytes | int | float | None
Row: TypeAlias = tuple[Any, ...]


class Statement(Struct, frozen=True):
    """One SQL statement. Parameters are `$1`, `$2` …, first used in that order, which both databases understand."""

    sql: str
    values: tuple[SqlValue, ...] = ()


Query: TypeAlias = Generator[Statement, list[Row], T]
"""Yields statements and is sent their rows; returns what they amount to. Queries compose with `yield from`."""


class Database(Protocol):
    """Runs queries. Errors of the database are `StoreError`; what a query raises itself rolls it back and passes."""

    async def read(self, query: Query[T], *, heavy: bool = False) -> T:
        """Runs a query that only reads, on one snapshot. A `heavy` one may walk many rows: it holds up nobody else."""
        ...

    async def write(self, query: Query[T]) -> T:
        """Runs a query as one transaction and returns its value once that is durable."""
        ...


def statement(sql: str, *values: SqlValue) -> Generator[Statement, list[Row], list[Row]]:
    """`rows = yield from statement("SELECT …", value)`."""
    rows = yield Statement(sql, values)
    return rows


def one(sql: str, *values: SqlValue) -> Generator[Statement, list[Row], Row | None]:
    """The first row, or None."""
    rows = yield Statement(sql, values)
    return rows[0] if rows else None
