# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The one thread that writes, and the files it writes to: still the ones that were opened, and still whole."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import apsw

from weftline.errors import StoreError
from weftline.store import crashpoints
from weftline.store.rows import Write, Written
from weftline.store.sqlite.connection import Fenced, failure, write_error
from weftline.store.sqlite.directory import LOCK
from weftline.store.sqlite.transaction import write_batch

logger = logging.getLogger(__name__)

_SECOND_NS = 1_000_000_000
_LOST = "was removed, renamed or replaced by another program"
_CUT = "was cut by another program"


class LostFile(Exception):
    """A file was removed, replaced or cut by another program."""


class StoreFiles:
    """The store's files as they are now, to be compared with later.

    Checking each file would cost several system calls per commit, each of which releases the GIL. Creating, removing or
    renaming a file changes the times of its directory, so one check of the directory covers all files. Only if it has
    changed, or changed too recently for its times to show it, is each file checked.

    The sizes of the two files that are written to show in no directory; `check_sizes` reads them without releasing the
    GIL. It has to be called before a transaction: after it, SQLite may have filled up what was cut.
    """

    def __init__(self, database: Path, *, database_bytes: Callable[[], int]) -> None:
        self._folder = str(database.parent)
        self._database_bytes = database_bytes
        """How large SQLite believes the database to be, the log included: its file shrinks to that and no further."""
        self._size = _size_reader()
        self._database, self._wal = os.fsencode(database), os.fsencode(f"{database}-wal")
        self._database_size, self._wal_size = self._size(self._database), self._size(self._wal)
        names = {
            str(database): "the database",
            f"{database}-wal": "the write-ahead log",
            f"{database}-shm": "the shared memory file",
            str(database.parent / LOCK): "the lock file",
        }
        self._known = [(path, name, _identity(path)) for path, name in names.items()]
        self._seen: tuple[int, ...] | None = None
        """The directory when its files were last checked, unless it had only just changed."""

    def check(self) -> None:
        """Raises `LostFile` if one of the files has been replaced or removed."""
        try:
            found = os.stat(self._folder)
        except OSError:
            raise LostFile(f"the directory of the store ({self._folder}) {_LOST}") from None
        folder = (found.st_dev, found.st_ino, found.st_ctime_ns, found.st_mtime_ns)
        if folder == self._seen:
            return
        changed = max(found.st_ctime_ns, found.st_mtime_ns)
        settled = abs(time.time_ns() - changed) > settles_after_ns(changed)
        self._check_each()
        self._seen = folder if settled else None

    def _check_each(self) -> None:
        if not os.path.exists(self._folder):
            raise LostFile(f"the directory of the store ({self._folder}) {_LOST}")
        for path, name, known in self._known:
            if _identity(path) != known:
                raise LostFile(f"{name} of the store ({path}) {_LOST}")

    def check_sizes(self) -> None:
        """Raises `LostFile` if the database or its log has become smaller by itself."""
        size = self._size(self._wal)
        if size < self._wal_size:
            self._check_each()
            raise LostFile(f"the write-ahead log of the store ({os.fsdecode(self._wal)}) {_CUT}")
        self._wal_size = size
        size = self._size(self._database)
        if size < self._database_size and size != self._database_bytes():
            self._check_each()
            raise LostFile(f"the database of the store ({os.fsdecode(self._database)}) {_CUT}")
        self._database_size = size


def _size_reader() -> Callable[[bytes], int]:
    """A function that returns the size of a file, 0 if there is none.

    Every call that releases the GIL costs the writer up to a switch interval while the loop is busy, which is longer
    than a commit. This one keeps it, where the C library has it: only Linux has the same structure everywhere.
    """
    if sys.platform != "linux":
        return _stat_size
    try:
        statx = ctypes.PyDLL(None).statx
    except (OSError, AttributeError):
        return _stat_size
    statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
    found = ctypes.create_string_buffer(256)
    at = ctypes.addressof(found)
    size = ctypes.c_uint64.from_buffer(found, 40)

    def statx_size(path: bytes) -> int:
        return size.value if statx(-100, path, 0, 0x200, at) == 0 else _stat_size(path)

    return statx_size


def _stat_size(path: bytes) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def settles_after_ns(changed: int) -> int:
    """Returns how old a change has to be so that a later one shows in the times of the same directory.

    File systems round their times to two seconds at the most, and to some milliseconds if they have fractions at all.
    """
    return _SECOND_NS // 5 if changed % _SECOND_NS else 3 * _SECOND_NS


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
