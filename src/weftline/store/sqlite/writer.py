# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The one thread that writes.

It takes a whole flush at a time, commits it, and reports back with one wake-up. When a flush fails before its COMMIT,
nothing of it happened: its members run again one by one, so that a bad or too large one harms nobody else. When COMMIT
itself fails with an I/O error nobody knows what is on the disk, and the process ends; so it does when the write-ahead
log was deleted under it, when another process took the store over, and when this thread dies.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import apsw

from weftline.store import crashpoints
from weftline.store.base import OnFlushed, RunWrite, Written
from weftline.store.sqlite.transaction import Fenced, failure, write_batch

logger = logging.getLogger(__name__)

T = TypeVar("T")
Job = Callable[[apsw.Connection], None]


class _LostWal(Exception):
    """The write-ahead log is not the file that was opened: what was committed to it may be gone."""


class _UnknownCommit(Exception):
    """COMMIT failed with an I/O error."""


class Writer:
    """Runs flushes and jobs in the order they come. `on_fatal` must not return control to anything that writes."""

    def __init__(self, db: apsw.Connection, path: Path, *, owner_epoch: int, on_fatal: Callable[[str], None]) -> None:
        self.commits = 0
        self._db = db
        self._wal = str(path) + "-wal"
        self._wal_inode = os.stat(self._wal).st_ino
        self._owner_epoch = owner_epoch
        self._on_fatal = on_fatal
        self._queue: SimpleQueue[tuple[Sequence[RunWrite], OnFlushed] | Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="weftline-writer", daemon=True)
        self._thread.start()

    def flush(self, writes: list[RunWrite], done: OnFlushed) -> None:
        """Commits `writes`, then calls `done` from the writer's thread."""
        self._queue.put((writes, done))

    def job(self, job: Job) -> None:
        """Runs `job` between two flushes, in a transaction of its own that it commits by returning."""
        self._queue.put(job)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                if callable(item):
                    item(self._db)
                    continue
                writes, done = item
                done(list(writes), self._flush(writes))
        except _LostWal:
            self._on_fatal("the write-ahead log of the store was removed or replaced by another program")
        except _UnknownCommit as error:
            self._on_fatal(f"a commit failed in a way that leaves its outcome unknown: {error}")
        except Fenced:
            self._on_fatal("another process has taken the store over")
        except (apsw.CorruptError, apsw.NotADBError) as error:
            self._on_fatal(f"the store is damaged: {error}")
        except BaseException as error:
            logger.exception("the writer failed")
            self._on_fatal(f"the writer failed: {error}")

    def _flush(self, writes: Sequence[RunWrite]) -> list[Written]:
        if crashpoints.armed():
            crashpoints.hit(_names(writes), "before")
        try:
            results = self._commit(writes)
        except apsw.Error as error:
            if isinstance(error, apsw.CorruptError | apsw.NotADBError):
                raise
            results = self._one_by_one(writes, error)
        except Exception as error:
            if isinstance(error, _LostWal | _UnknownCommit | Fenced):
                raise
            results = self._one_by_one(writes, error)
        if crashpoints.armed():
            crashpoints.hit(_names(writes), "after")
        return results

    def _one_by_one(self, writes: Sequence[RunWrite], error: Exception) -> list[Written]:
        if len(writes) == 1:
            return [failure(error)]
        results: list[Written] = []
        for write in writes:
            try:
                results += self._commit([write])
            except (_LostWal, _UnknownCommit, Fenced, apsw.CorruptError, apsw.NotADBError):
                raise
            except Exception as alone:
                results.append(failure(alone))
        return results

    def _commit(self, writes: Sequence[RunWrite]) -> list[Written]:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            results = write_batch(db, writes, owner_epoch=self._owner_epoch)
        except BaseException:
            # SQLite may have rolled back by itself; whatever is left must not be committed by a later statement.
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        try:
            db.execute("COMMIT")
        except apsw.IOError as error:
            raise _UnknownCommit(str(error)) from error
        except apsw.Error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self.commits += 1
        self._check_wal()
        return results

    def _check_wal(self) -> None:
        try:
            if os.stat(self._wal).st_ino == self._wal_inode:
                return
        except OSError:
            pass
        raise _LostWal


def transaction(job: Callable[[apsw.Connection], T], done: Callable[[T | None, Exception | None], None]) -> Job:
    """A writer's job that runs `job` in one transaction and reports its value or its failure."""

    def run(db: apsw.Connection) -> None:
        try:
            db.execute("BEGIN IMMEDIATE")
            try:
                value = job(db)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except Exception as error:
            done(None, error)
        else:
            done(value, None)

    return run


def _names(writes: Sequence[RunWrite]) -> set[str]:
    names = {entry[2] for write in writes for entry in write.entries}
    if any(write.deltas for write in writes):
        names.add("deltas")
    return names
