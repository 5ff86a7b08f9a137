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
from weftline.store.sqlite.transaction import Fenced, check_owner, failure, write_batch

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _LostWal(Exception):
    """The write-ahead log is not the file that was opened: what was committed to it may be gone."""


class _UnknownCommit(Exception):
    """COMMIT failed with an I/O error."""


_FATAL = (_LostWal, _UnknownCommit, Fenced, apsw.CorruptError, apsw.NotADBError)
_CLOSED_TO_ALL = (apsw.BusyError, apsw.LockedError, apsw.ReadOnlyError)
"""Failures that have nothing to do with what is written: trying the members alone would only wait as often."""


class Writer:
    """Runs flushes and jobs in the order they come. `on_fatal` must not return control to anything that writes."""

    def __init__(self, db: apsw.Connection, path: Path, *, owner_epoch: int, on_fatal: Callable[[str], None]) -> None:
        self.commits = 0
        self.failed = False
        self._db = db
        self._wal = str(path) + "-wal"
        self._wal_inode = os.stat(self._wal).st_ino
        self._owner_epoch = owner_epoch
        self._on_fatal = on_fatal
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="weftline-writer", daemon=True)
        self._thread.start()

    def flush(self, writes: list[RunWrite], done: OnFlushed) -> None:
        """Commits `writes`, then calls `done` from the writer's thread."""
        self._queue.put(lambda: done(list(writes), self._flush(writes)))

    def job(self, job: Callable[[apsw.Connection], T], done: Callable[[T | None, Exception | None], None]) -> None:
        """Runs `job` between two flushes in a transaction of its own, then calls `done` with its value or failure."""
        self._queue.put(lambda: self._job(job, done))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                item()
        except _LostWal:
            self._stop("the write-ahead log of the store was removed or replaced by another program")
        except _UnknownCommit as error:
            self._stop(f"a commit failed in a way that leaves its outcome unknown: {error}")
        except Fenced:
            self._stop("another process has taken the store over")
        except (apsw.CorruptError, apsw.NotADBError) as error:
            self._stop(f"the store is damaged: {error}")
        except BaseException as error:
            logger.exception("the writer failed")
            self._stop(f"the writer failed: {error}")

    def _stop(self, reason: str) -> None:
        self.failed = True
        self._on_fatal(reason)

    def _flush(self, writes: Sequence[RunWrite]) -> list[Written]:
        if crashpoints.armed():
            crashpoints.hit(_names(writes), "before")
        try:
            results = self._commit(writes)
        except _FATAL:
            raise
        except Exception as error:
            results = self._apart(writes, error)
        if crashpoints.armed():
            crashpoints.hit(_names(writes), "after")
        return results

    def _apart(self, writes: Sequence[RunWrite], error: Exception) -> list[Written]:
        """Runs the members of a flush that failed one by one."""
        if len(writes) == 1 or isinstance(error, _CLOSED_TO_ALL):
            return [failure(error) for _ in writes]
        results: list[Written] = []
        for write in writes:
            try:
                results += self._commit([write])
            except _FATAL:
                raise
            except Exception as alone:
                results.append(failure(alone))
        return results

    def _commit(self, writes: Sequence[RunWrite]) -> list[Written]:
        results = self._transact(lambda db: write_batch(db, writes))
        self.commits += 1
        return results

    def _job(self, job: Callable[[apsw.Connection], T], done: Callable[[T | None, Exception | None], None]) -> None:
        crashpoints.job_begins()
        try:
            value = self._transact(job)
        except _FATAL:
            raise
        except Exception as error:
            done(None, error)
        else:
            crashpoints.job_committed()
            done(value, None)

    def _transact(self, body: Callable[[apsw.Connection], T]) -> T:
        """Runs `body` as one transaction; returns when it is durable and the log it went to is still in its place."""
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            check_owner(db, owner_epoch=self._owner_epoch)
            value = body(db)
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
        self._check_wal()
        return value

    def _check_wal(self) -> None:
        try:
            if os.stat(self._wal).st_ino == self._wal_inode:
                return
        except OSError:
            pass
        raise _LostWal


def _names(writes: Sequence[RunWrite]) -> set[str]:
    names = {entry[2] for write in writes for entry in write.entries}
    if any(write.deltas for write in writes):
        names.add("deltas")
    return names
