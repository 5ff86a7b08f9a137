# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The store in the simulation: the real schema, statements and reads on a database in memory, without a thread.

A commit happens whole at one moment of virtual time, and is reported at a later one. A crash may come before, between
and after the two; what was not committed by then is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import apsw
from msgspec import Struct

from weftline.store.base import OnFlushed, RunWrite, Written
from weftline.store.records import threads, workspaces
from weftline.store.records.threads import NewThread
from weftline.store.sqlite.connection import migrate
from weftline.store.sqlite.database import run_query
from weftline.store.sqlite.reads import Reader
from weftline.store.sqlite.store import SqliteStore
from weftline.store.sqlite.transaction import check_owner, failure, write_batch

T = TypeVar("T")

_FAULTS: tuple[type[Exception], ...] = (apsw.FullError, apsw.BusyError, apsw.ReadOnlyError)


class Faults(Struct):
    """How the disk behaves; changed by the history as it goes."""

    slowest_s: float = 0.02
    refuses: type[Exception] | None = None
    refused: int = 0
    """Flushes and jobs refused so far."""


class Parked(Struct, frozen=True):
    """What a start must leave as it is of a run that waits."""

    next_seq: int
    due_at: int | None
    pending: tuple[tuple[str, str, int | None], ...]


class Disk:
    """What outlives a process: the database, and the faults of the machine it is on."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.faults = Faults()
        self.db = apsw.Connection(":memory:", statementcachesize=256)
        migrate(self.db, path=Path("simulated"))
        with self.db:
            self.workspace = run_query(self.db, workspaces.ensure("sim", now=1))
        self.commits = 0
        self.on_commit: Callable[[Sequence[RunWrite], bool], None] = lambda writes, durable: None
        """Called for each flush before (False) and after (True) its commit."""

    def new_thread(self) -> int:
        new = NewThread(workspace=self.workspace, salt="0" * 12, name="t", agent=None, spec=b"{}", metadata="{}")
        return run_query(self.db, threads.insert(new, now=1)).key

    def keys(self) -> list[int]:
        """All runs, the oldest first."""
        return self._ints("SELECT key FROM runs ORDER BY key")

    def unfinished(self) -> list[int]:
        return self._ints("SELECT key FROM runs WHERE ended_at IS NULL ORDER BY key")

    def in_line(self, thread: int) -> list[int]:
        """All runs of a thread in the order of their places."""
        return self._ints("SELECT key FROM runs WHERE thread = ? ORDER BY place", thread)

    def key_of(self, name: str) -> int | None:
        found = self._ints("SELECT key FROM runs WHERE name = ?", name)
        return found[0] if found else None

    def parked(self) -> dict[int, Parked]:
        """Runs that wait for somebody outside or for a time; those in a thread's line are another matter."""
        read = Reader(self.db)
        keys = self._ints(
            "SELECT key FROM runs WHERE ended_at IS NULL AND (due_at IS NULL OR due_at > 0)"
            " AND (thread IS NULL OR started_at IS NOT NULL)"
        )
        rows = {key: read.run(key) for key in keys}
        return {key: Parked(row.next_seq, row.due_at, tuple(read.pending(key))) for key, row in rows.items() if row}

    def _ints(self, query: str, *values: int | str) -> list[int]:
        return [int(str(row[0])) for row in self.db.execute(query, values).fetchall()]

    def close(self) -> None:
        self.db.close()

    def latency_s(self) -> float:
        """Mostly short, sometimes none, seldom long: neighbours in time are where the races are."""
        roll = self.rng.random()
        if roll < 0.3:
            return 0.0
        return self.rng.random() * (self.faults.slowest_s if roll < 0.9 else 10 * self.faults.slowest_s)

    def choose_refusal(self) -> None:
        self.faults.refuses = self.rng.choice(_FAULTS)

    def transact(self, body: Callable[[apsw.Connection], T], *, owner_epoch: int) -> T:
        if self.faults.refuses is not None:
            self.faults.refused += 1
            raise self.faults.refuses("simulated")
        db = self.db
        db.execute("BEGIN IMMEDIATE")
        try:
            check_owner(db, owner_epoch=owner_epoch)
            value = body(db)
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
        self.commits += 1
        return value


class SimulatedReader(Reader):
    """Reads of a process; a dead one reads nothing any more."""

    dead = False

    def _one(self, query: str, values: Sequence[int | str | bytes] = ()) -> Any:
        if self.dead:
            raise asyncio.CancelledError
        return super()._one(query, values)

    def _all(self, query: str, values: Sequence[int | str | bytes] = ()) -> list[Any]:
        if self.dead:
            raise asyncio.CancelledError
        return super()._all(query, values)

    def close(self) -> None:
        self.dead = True


class SimulatedStore(SqliteStore):
    """What one process holds of the disk. After `die` nothing of it reaches anything."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.dead = False
        self.id, self.unclean, self.owner_epoch = self._take_over(disk.db)
        self.reader = SimulatedReader(disk.db)
        self.read = self.reader

    @property
    def commits(self) -> int:
        return self.disk.commits

    def die(self) -> None:
        self.dead = self.reader.dead = True

    def flush(self, writes: list[RunWrite], done: OnFlushed) -> None:
        def commit() -> None:
            if self.dead:
                return
            self.disk.on_commit(writes, False)
            if self.dead:
                return
            results = self._results(writes)
            self.disk.on_commit(writes, True)
            if not self.dead:
                self._later(lambda: None if self.dead else done(list(writes), results))

        self._later(commit)

    async def job(self, job: Callable[[apsw.Connection], T]) -> T:
        await asyncio.sleep(self.disk.latency_s())
        if self.dead:
            raise asyncio.CancelledError
        try:
            value = self.disk.transact(job, owner_epoch=self.owner_epoch)
        except apsw.Error as error:
            raise failure(error).error or error from None
        await asyncio.sleep(self.disk.latency_s())
        return value

    def close(self) -> None:
        if not self.dead:
            self.disk.db.execute("UPDATE store SET clean = 1 WHERE owner_epoch = ?", (self.owner_epoch,))
            self.dead = True

    def _results(self, writes: list[RunWrite]) -> list[Written]:
        """As the writer does it: together, and one by one when that fails."""
        try:
            return self._commit(writes)
        except Exception as error:
            if len(writes) == 1 or self.disk.faults.refuses is not None:
                return [failure(error) for _ in writes]
        results: list[Written] = []
        for write in writes:
            try:
                results += self._commit([write])
            except Exception as alone:
                results.append(failure(alone))
        return results

    def _commit(self, writes: Sequence[RunWrite]) -> list[Written]:
        return self.disk.transact(lambda db: write_batch(db, writes), owner_epoch=self.owner_epoch)

    def _later(self, callback: Callable[[], None]) -> None:
        delay_s = self.disk.latency_s()
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, callback)
        else:
            callback()
