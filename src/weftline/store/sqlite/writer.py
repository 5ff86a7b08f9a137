# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The one thread that writes.

It takes a whole flush at a time, commits it, and reports back with one wake-up. If a flush fails before its COMMIT,
none of it happened: its members run again one by one, so that a bad or oversized one does not harm the others. If
COMMIT itself fails with an I/O error, the state of the disk is unknown, and the process ends. It also ends when a file
of the store was deleted, replaced or cut, when another process took over the store, and when this thread dies.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import apsw

from weftline.errors import StoreError
from weftline.store import crashpoints
from weftline.store.rows import Write, Written
from weftline.store.sqlite.failures import Fenced, failure, write_error
from weftline.store.sqlite.files import LostFile, StoreFiles
from weftline.store.sqlite.transaction import write_batch

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _UnknownCommit(Exception):
    """COMMIT failed with an I/O error."""


_FATAL = (LostFile, _UnknownCommit, Fenced, apsw.CorruptError, apsw.NotADBError)
_CLOSED_TO_ALL = (apsw.BusyError, apsw.LockedError, apsw.ReadOnlyError)
"""Failures that do not depend on what is written: retrying the members one by one would only wait repeatedly."""


class Writer:
    """Runs flushes and jobs in the order they arrive. `on_fatal` must not return control to anything that writes.

    Futures belong to the loop running when a method is called. After a fatal error they never complete.
    """

    def __init__(self, db: apsw.Connection, path: Path, *, owner_epoch: int, on_fatal: Callable[[str], None]) -> None:
        self.commits = 0
        self.flushes = 0
        """How many flushes have been processed."""
        self.failed = False
        self._db = db
        self._files = StoreFiles(path, database_bytes=self._database_bytes)
        self._owner_epoch = owner_epoch
        self._on_fatal = on_fatal
        self._closed = False
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="weftline-writer", daemon=True)
        self._thread.start()

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        """Commits `writes` and reports the outcome of each."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Written]] = loop.create_future()
        self._put(lambda: _report(loop, future, self._write_all(writes)))
        return future

    def caught_up(self) -> asyncio.Future[None]:
        """A future that is done when everything submitted before it is."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._put(lambda: _report(loop, future, None))
        return future

    def job(self, job: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        """Runs `job` between two flushes in its own transaction and gives its value once that is durable."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(lambda: self._run_job(job, loop, future))
        return future

    def close(self) -> None:
        """Blocks until everything in the queue is written."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()

    def _put(self, item: Callable[[], None]) -> None:
        if self._closed and not self.failed:
            raise StoreError("The store is closed.")
        self._queue.put(item)

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                item()
        except LostFile as lost:
            self._stop(str(lost))
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

    def _write_all(self, writes: Sequence[Write]) -> list[Written]:
        if crashpoints.armed():
            crashpoints.hit(_names(writes), "before")
        try:
            results = self._commit(writes)
        except _FATAL:
            raise
        except Exception as error:
            results = self._one_by_one(writes, error)
        if crashpoints.armed():
            crashpoints.hit(_names(writes), "after")
        self.flushes += 1
        return results

    def _one_by_one(self, writes: Sequence[Write], error: Exception) -> list[Written]:
        """Runs the members of a failed flush one by one."""
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

    def _commit(self, writes: Sequence[Write]) -> list[Written]:
        results = self._transact(lambda db: write_batch(db, writes))
        self.commits += 1
        return results

    def _run_job(
        self, job: Callable[[apsw.Connection], T], loop: asyncio.AbstractEventLoop, future: asyncio.Future[T]
    ) -> None:
        crashpoints.job_begins()
        try:
            value = self._transact(job)
        except _FATAL:
            raise
        except apsw.Error as error:
            _report(loop, future, error=write_error(error))
        except Exception as error:
            _report(loop, future, error=error)
        else:
            crashpoints.job_committed()
            _report(loop, future, value)

    def _transact(self, body: Callable[[apsw.Connection], T]) -> T:
        """Runs `body` as one transaction; returns when it is durable, in files that are still in place."""
        db = self._db
        self._files.check_sizes()
        db.execute("BEGIN IMMEDIATE")
        try:
            check_owner(db, owner_epoch=self._owner_epoch)
            value = body(db)
        except BaseException:
            # SQLite may have rolled back on its own; whatever is left must not be committed by a later statement.
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
        self._files.check()
        self._files.check_sizes()
        return value

    def _database_bytes(self) -> int:
        rows = self._db.execute("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()").fetchall()
        assert isinstance(rows[0][0], int)
        return rows[0][0]


def check_owner(db: apsw.Connection, *, owner_epoch: int) -> None:
    """Raises `Fenced` unless the store is still this owner's, as seen by the transaction that has begun."""
    row = db.execute("SELECT owner_epoch FROM store").fetchone()
    if row is None or row[0] != owner_epoch:
        raise Fenced


def _report(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[T],
    value: T | None = None,
    *,
    error: Exception | None = None,
) -> None:
    # If the loop is gone, there is nobody to notify; the writer continues.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, future, value, error)


def _settle(future: asyncio.Future[T], value: T | None, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)  # pyright: ignore[reportArgumentType]  # a value without an error is a T
    else:
        future.set_exception(error)


def _names(writes: Sequence[Write]) -> set[str]:
    own = {item.kind if item.head else "deltas" for write in writes for item in write.items}
    return own | {item.kind for write in writes for child in write.children for item in child.items}
