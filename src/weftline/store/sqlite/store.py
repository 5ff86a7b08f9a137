# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The SQLite store: one directory, one owner, one writer, readers apart."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import apsw

from weftline.errors import StoreError
from weftline.store import crashpoints
from weftline.store.base import OnFlushed, RunWrite
from weftline.store.secrets import Vault
from weftline.store.sqlite import retention
from weftline.store.sqlite import transaction as tx
from weftline.store.sqlite.connection import connect, migrate
from weftline.store.sqlite.database import SqliteDatabase
from weftline.store.sqlite.directory import StoreDirectory
from weftline.store.sqlite.reads import Reader
from weftline.store.sqlite.writer import Writer

logger = logging.getLogger(__name__)

T = TypeVar("T")


def stop_process(reason: str) -> NoReturn:
    """Ends the process at once: whatever it still believes must not be told to anybody."""
    logger.critical("stopping at once: %s", reason)
    os._exit(70)


class SqliteStore:
    """A store that this process owns. Only `read` and `job` may be used beside the engine that drives its runs."""

    def __init__(
        self,
        path: Path | str,
        *,
        vfs: str | None = None,
        on_fatal: Callable[[str], None] = stop_process,
    ) -> None:
        self.directory = StoreDirectory(Path(path))
        self.directory.own()
        with ExitStack() as undo:
            undo.callback(self.directory.release)
            database = self.directory.database
            db = connect(database, vfs=vfs)
            undo.callback(db.close)
            migrate(db, path=self.directory.path)
            self.id, self.unclean, self.owner_epoch = self._take_over(db)
            self.read = Reader(connect(database, read_only=True))
            undo.callback(self.read.close)
            self.vault = Vault(self.directory.path)
            self.records = SqliteDatabase(
                self.read.db, self.job, open_reader=partial(connect, database, read_only=True)
            )
            self._db = db
            self._writer = Writer(db, database, owner_epoch=self.owner_epoch, on_fatal=on_fatal)
            undo.pop_all()

    @property
    def commits(self) -> int:
        """How many flushes were committed since the store was opened."""
        return self._writer.commits

    def flush(self, writes: list[RunWrite], done: OnFlushed) -> None:
        self._writer.flush(writes, done)

    async def job(self, job: Callable[[apsw.Connection], T]) -> T:
        """Runs `job` in a write transaction of its own and returns its value once that is durable."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def report(value: T | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(value)  # pyright: ignore[reportArgumentType]  # a value without an error is a T
            elif isinstance(error, apsw.Error):
                future.set_exception(tx.failure(error).error or error)
            else:
                future.set_exception(error)

        def done(value: T | None, error: Exception | None) -> None:
            # A loop that has gone leaves nobody to be told, which is no reason to end the writer.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(report, value, error)

        self._writer.job(job, done)
        return await future

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]:
        """Removes the logs of the next runs above key `after` that ended before that time, but for their last entry.

        Returns the last key looked at (0 when no run is left) and how many runs had something to remove.
        """
        return await self.job(partial(retention.trim, before=before, after=after, workspace=workspace))

    def close(self) -> None:
        """Finishes what is queued, marks the store as cleanly left (unless it had to stop) and gives it up.

        Closing again does nothing.
        """
        if not self.directory.owned:
            return
        self._writer.close()
        with ExitStack() as last:
            last.callback(self.directory.release)
            last.callback(self._db.close)
            last.callback(self.read.close)
            if self._writer.failed:
                # The files may be somebody else's by now: leave them as they are, as a process that ended would.
                self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                return
            try:
                crashpoints.hit(("store.closed",), "before")
                self._db.execute("UPDATE store SET clean = 1 WHERE owner_epoch = ?", (self.owner_epoch,))
                crashpoints.hit(("store.closed",), "after")
            except apsw.Error:
                logger.warning("the store could not be marked as cleanly left", exc_info=True)

    def _take_over(self, db: apsw.Connection) -> tuple[str, bool, int]:
        try:
            row = db.execute("SELECT id, clean FROM store").fetchone()
            assert row is not None
            identity, clean = row
            assert isinstance(identity, str)
            crashpoints.hit(("store.opened",), "before")
            taken = db.execute("UPDATE store SET owner_epoch = owner_epoch + 1, clean = 0 RETURNING owner_epoch")
            epoch = taken.fetchall()[0][0]
            crashpoints.hit(("store.opened",), "after")
            assert isinstance(epoch, int)
        except apsw.Error as error:
            raise StoreError(f"The store {self.directory.path} cannot be written: {error}.") from None
        return identity, not clean, epoch


def open_for_reading(path: Path | str) -> Reader:
    """Reads a store beside its owner."""
    directory = StoreDirectory(Path(path), create=False)
    if not directory.database.exists():
        raise StoreError(f"There is no store at {directory.path}.")
    return Reader(connect(directory.database, read_only=True))


def read_only(reader: Reader) -> SqliteDatabase:
    """The records of a store that was opened for reading."""

    async def refuse(job: object) -> NoReturn:
        raise StoreError("This store was opened for reading only.")

    return SqliteDatabase(reader.db, refuse)
