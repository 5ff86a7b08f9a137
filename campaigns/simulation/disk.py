"""What outlives a process in the simulation: a disk in memory, its faults, and immediate access to inspect it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

from msgspec import Struct

from weftline.errors import StoreError, WeftlineError
from weftline.kernel.entries import Fact, RunCreated, decode_fact
from weftline.runtime import ids
from weftline.store.database import Query
from weftline.store.memory import MemoryDisk, MemoryStore
from weftline.store.records import threads, workspaces
from weftline.store.rows import Item, RunRow, Write, Written

T = TypeVar("T")

REFUSALS = ("The disk is full.", "The store is locked.", "The store is read-only.")


FAST_S = 0.02
"""The longest that a good disk takes, except one time in twenty."""


class Faults(Struct):
    """How the disk behaves; the history changes it as it goes."""

    slowest_s: float = FAST_S
    refuses: StoreError | None = None
    """If set, writes are refused with this error for now."""
    unreadable: StoreError | None = None
    damages: float = 0.0
    """How often a single write of a flush fails permanently."""
    refused: int = 0
    """Flushes and other writes refused so far."""
    failed: int = 0
    """Single writes that failed so far."""


class Entry(Struct, frozen=True):
    """A fact in the log."""

    seq: int
    at: int
    head: Fact
    body: bytes


class Parked(Struct, frozen=True):
    """What a start must not change about a waiting run."""

    root: int
    """The top-level run of its tree."""
    next_seq: int
    due_at: int | None


class DiskObserver:
    """Observes each flush before its commit, and after it with the outcome of each write; and each claim."""

    def before(self, writes: Sequence[Write]) -> None: ...

    def after(self, writes: Sequence[Write], results: Sequence[Written]) -> None: ...

    def claimed(self, key: int, epoch: int) -> None: ...


class Disk:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.faults = Faults()
        self.memory = MemoryDisk(id="simulated")
        self.observer = DiskObserver()
        self.watches: list[Callable[[Sequence[Write]], None]] = []
        """Called after each commit of these writes."""
        self._decoded: dict[int, tuple[list[Entry], int]] = {}
        self._view = MemoryStore(self.memory)
        self.workspace = glance(self._view.records.write(workspaces.ensure("sim", now=1)))
        self._threads = [self._new_thread(number) for number in range(2)]
        glance(self._view.close())

    def _new_thread(self, number: int) -> int:
        new = threads.NewThread(
            workspace=self.workspace, salt=f"salt{number}", name="t", agent=None, spec=b"{}", metadata="{}"
        )
        return glance(self._view.records.write(threads.insert(new, now=1))).key

    def threads(self, count: int) -> list[int]:
        return self._threads[:count]

    def write(self, query: Query[T]) -> T:
        """Changes a record immediately, without owning the store."""
        return self.memory.change_records(query)

    # Inspecting it

    def read(self, query: Query[T]) -> T:
        return glance(self._view.records.read(query))

    def keys(self) -> list[int]:
        """All runs, oldest first."""
        return sorted(self.memory.runs)

    def row(self, key: int) -> RunRow | None:
        return glance(self._view.log.run(key))

    def rows(self) -> list[RunRow]:
        return [row for key in self.keys() if (row := self.row(key)) is not None]

    def unfinished(self) -> list[int]:
        return [key for key in self.keys() if self.memory.runs[key].row.ended_at is None]

    def has_ended(self, key: int) -> bool:
        run = self.memory.runs.get(key)
        return run is None or run.row.ended_at is not None

    def next_seq(self, key: int) -> int:
        run = self.memory.runs.get(key)
        return run.row.next_seq if run is not None else 1

    def locate(self, run_id: str) -> int:
        """The key of a run that exists."""
        given = self.memory.given.get(run_id, {}).get(self.workspace)
        return ids.key_of(run_id) if given is None else given

    def key_of(self, name: str) -> int | None:
        return next((key for key in self.keys() if self.memory.runs[key].row.name == name), None)

    def items(self, key: int) -> list[Item]:
        """The whole log of a run."""
        return list(self.memory.runs[key].items)

    def facts(self, key: int) -> list[Entry]:
        known, read = self._decoded.get(key, ([], 0))
        items = self.memory.runs[key].items if key in self.memory.runs else []
        for item in items[read:]:
            if item.head:
                known.append(Entry(item.seq, item.at, decode_fact.decode(item.head), item.body))
        self._decoded[key] = known, len(items)
        return known

    def queue_of(self, thread: int) -> list[int]:
        """All runs of a thread in queue order, including those that have ended."""
        return [run.row.key for run in self.memory.of_thread(thread)]

    def active_run(self, thread: int) -> int | None:
        row = glance(self._view.records.read(threads.by_key(thread)))
        assert row is not None
        return row.active_run

    def messages(self, thread: int) -> list[bytes]:
        return glance(self._view.log.thread_messages(thread))

    def parked(self) -> dict[int, Parked]:
        """Runs that have not ended, not counting those in a thread's queue."""
        rows = [row for row in self.rows() if row.ended_at is None and not row.queued]
        return {row.key: Parked(self._root(row.key), row.next_seq, row.due_at) for row in rows}

    def _root(self, key: int) -> int:
        created = self.facts(key)[0].head
        above = created.parent if isinstance(created, RunCreated) else None
        return key if above is None else self._root(ids.parent_key(above))

    # Its faults

    def latency_s(self) -> float:
        """Mostly short, sometimes zero, seldom long, so that races occur between neighbours in time."""
        roll = self.rng.random()
        if roll < 0.4:
            return 0.0
        return self.rng.random() * (self.faults.slowest_s if roll < 0.95 else 5 * self.faults.slowest_s)

    def check_writable(self) -> None:
        if self.faults.refuses is not None:
            self.faults.refused += 1
            raise self.faults.refuses

    def check_readable(self) -> None:
        if self.faults.unreadable is not None:
            raise self.faults.unreadable

    def commit(self, writes: Sequence[Write], flush: Callable[[Sequence[Write]], list[Written]]) -> list[Written]:
        """One flush as this disk takes it: whole, in part, or not at all."""
        refusal = self.faults.refuses
        if refusal is not None:
            self.faults.refused += 1
            return [Written("refused", error=refusal) for _ in writes]
        if not self.faults.damages:
            return flush(writes)
        damaged = [self.rng.random() < self.faults.damages for _ in writes]
        done = iter(flush([write for write, bad in zip(writes, damaged, strict=True) if not bad]))
        self.faults.failed += sum(damaged)
        failure = WeftlineError("The write failed.")
        return [Written("failed", error=failure) if bad else next(done) for bad in damaged]


def glance(reading: Coroutine[Any, Any, T]) -> T:
    """The result of a store in memory, which is available without waiting."""
    try:
        reading.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a store in memory waited for something")
