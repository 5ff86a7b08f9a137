# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The SQLite store: one directory, one owner, one writer, and separate readers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import apsw

from weftline.errors import StoreError
from weftline.store import crashpoints
from weftline.store.rows import Copied
from weftline.store.sealing import Vault
from weftline.store.sqlite import retention
from weftline.store.sqlite.backup import copy_store
from weftline.store.sqlite.connection import connect, migrate
from weftline.store.sqlite.damage import CHECK_S, find_damage, report_dropped
from weftline.store.sqlite.database import ReaderThreads, SqliteDatabase
from weftline.store.sqlite.directory import StoreDirectory
from weftline.store.sqlite.log import Ownership, SqliteLog
from weftline.store.sqlite.log_reader import SqliteLogReader
from weftline.store.sqlite.writer import Writer

logger = logging.getLogger(__name__)


def stop_process(reason: str) -> NoReturn:
    """Ends the process at once, because its state may be wrong and must not be reported to anyone."""
    logger.critical("stopping at once: %s", reason)
    os._exit(70)


class SqliteStore:
    """A store that this process owns. Opening it blocks for a few milliseconds; it needs no event loop."""

    def __init__(
        self,
        path: Path | str,
        *,
        create: bool = True,
        check: bool = False,
        vfs: str | None = None,
        on_fatal: Callable[[str], None] = stop_process,
    ) -> None:
        self._closing = False
        self._directory = StoreDirectory(Path(path), create=create)
        self._directory.own()
        with ExitStack() as undo:
            undo.callback(self._directory.release)
            database = self._directory.database
            db = connect(database, vfs=vfs)
            undo.callback(db.close)
            report_dropped(db, self._directory.path)
            migrate(db, path=self._directory.path)
            self.vault = _vault(self._directory.path)
            if check and not find_damage(db, path=self._directory.path, limit_s=CHECK_S):
                logger.info("the store is too large to be checked completely at start-up: only part of it was")
            self._ownership = _take_over(db, self._directory.path)
            self._directory.opened(self._ownership.id)
            reader = connect(database, read_only=True)
            undo.callback(reader.close)
            threads = ReaderThreads(database)
            writer = Writer(db, database, owner_epoch=self._ownership.epoch, on_fatal=on_fatal)
            undo.pop_all()
        self._db, self._reader, self._threads, self._writer = db, reader, threads, writer
        self.log = SqliteLog(reader, threads, writer, ownership=self._ownership)
        self.records = SqliteDatabase(reader, writer.job, threads)

    @property
    def folder(self) -> Path:
        return self._directory.path

    @property
    def outlives_process(self) -> bool:
        return True

    @property
    def owner_epoch(self) -> int:
        return self._ownership.epoch

    async def back_up(self, to: Path) -> Copied:
        return await asyncio.to_thread(copy_store, self.folder, to, stop=lambda: self._closing)

    async def shrink(self) -> int:
        return await self._writer.job(retention.shrink)

    def announce(self, *, socket: str) -> None:
        self._directory.announce(socket=socket)

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        finishing = asyncio.ensure_future(asyncio.to_thread(self._finish))
        try:
            await asyncio.shield(finishing)
        except asyncio.CancelledError:
            # Nobody will call this again: the store must not stay locked for the lifetime of the process.
            finishing.add_done_callback(lambda done: None if done.cancelled() else self._close_database())
            raise
        self._close_database()

    def _close_database(self) -> None:
        """Closes the database cleanly and releases the lock, once nothing reads or writes any more."""
        with ExitStack() as last:
            last.callback(self._directory.release)
            last.callback(self._db.close)
            last.callback(self._reader.close)
            if self._writer.failed:
                # The files may belong to another process by now: leave them as they are, as if this one had died.
                self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                return
            try:
                crashpoints.hit(("store.closed",), "before")
                self._db.execute("UPDATE store SET clean = 1 WHERE owner_epoch = ?", (self.owner_epoch,))
                crashpoints.hit(("store.closed",), "after")
            except apsw.Error as error:
                logger.warning("the store could not be marked as cleanly closed; the next start recovers it: %s", error)

    def _finish(self) -> None:
        self._writer.close()
        self._threads.close()


class SqliteReadStore:
    """A store opened next to its owner, or without one."""

    def __init__(self, path: Path | str) -> None:
        directory = StoreDirectory(Path(path), create=False)
        self._reader = connect(directory.database, read_only=True)
        self._threads = ReaderThreads(directory.database)
        self.log = SqliteLogReader(self._reader, self._threads)
        self.records = SqliteDatabase(self._reader, _read_only, self._threads)
        self.vault = Vault(directory.path)
        self.folder = directory.path

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.close)
        self._reader.close()


async def _read_only(job: Callable[[apsw.Connection], Any]) -> Any:
    raise StoreError("The store was opened read-only.")


def _vault(path: Path) -> Vault:
    """The store's keys. Unusable ones are reported now, and not when somebody signs in or a secret is needed."""
    vault = Vault(path)
    try:
        vault.check()
    except StoreError as error:
        raise StoreError(f"The store {path} cannot be used. {error.message}", code=error.code) from None
    return vault


def _take_over(db: apsw.Connection, path: Path) -> Ownership:
    """Raises the owner epoch; an unclean death stays recorded until it is charged."""
    try:
        crashpoints.hit(("store.opened",), "before")
        taken: list[Any] = db.execute(
            "UPDATE store SET died = CASE WHEN clean = 0 THEN owner_epoch ELSE died END,"
            " owner_epoch = owner_epoch + 1, clean = 0 RETURNING id, owner_epoch, died, held"
        ).fetchall()
        crashpoints.hit(("store.opened",), "after")
    except apsw.Error as error:
        raise StoreError(f"The store {path} cannot be written: {error}.") from None
    identity, epoch, died, held = taken[0]
    return Ownership(identity, epoch, unclean=died is not None, held=bool(held))
