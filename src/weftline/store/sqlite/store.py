# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The SQLite store: one directory, one owner, one writer, and separate readers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import apsw
from msgspec import Struct

from weftline.errors import StoreError
from weftline.store import crashpoints
from weftline.store.outcomes import Claims, moved_on
from weftline.store.rows import Copied, Loaded, RunRow, Write, Written
from weftline.store.sealing import Vault
from weftline.store.sqlite import log_reader, retention
from weftline.store.sqlite.backup import copy_store
from weftline.store.sqlite.connection import connect, migrate, snapshot
from weftline.store.sqlite.damage import CHECK_S, find_damage, report_dropped
from weftline.store.sqlite.database import RUN_COLUMNS, ReaderThreads, SqliteDatabase, rows_of, run_row
from weftline.store.sqlite.directory import StoreDirectory
from weftline.store.sqlite.log_reader import (
    IN_A_THREAD,
    ON_THE_LOOP,
    NotOnTheLoop,
    ReadLimit,
    SqliteLogReader,
    read_facts,
)
from weftline.store.sqlite.pieces import BODY, BODY_BYTES, MESSAGE_BYTES
from weftline.store.sqlite.writer import Writer

logger = logging.getLogger(__name__)

# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false


_CHUNK = 500


def begin_trial(db: apsw.Connection, keys: Sequence[int], *, owner_epoch: int) -> None:
    crashpoints.hit(("recovery.marked",), "before")
    _set_trial(db, keys, owner_epoch)


def end_trial(db: apsw.Connection, keys: Sequence[int]) -> None:
    _set_trial(db, keys, 0)


def survived(db: apsw.Connection, keys: Sequence[int], *, owner_epoch: int) -> None:
    _set_trial(db, keys, -owner_epoch)


def _set_trial(db: apsw.Connection, keys: Sequence[int], trial: int) -> None:
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        db.execute(f"UPDATE runs SET trial = ? WHERE key IN ({','.join('?' * len(chunk))})", (trial, *chunk))


def charge_death(db: apsw.Connection) -> None:
    row: Any = db.execute("SELECT died FROM store").fetchone()
    if row[0] is None:
        return
    dead = row[0]
    if tried := _on_trial(db, dead):
        db.executemany("UPDATE runs SET suspect = ? WHERE key = ?", [(len(tried), key) for key in tried])
        if len(tried) == 1:
            db.execute("UPDATE runs SET alone = alone + 1, deaths = deaths + 1 WHERE key = ?", (tried[0],))
    elif survivors := _on_trial(db, -dead):
        changes = [(len(survivors), key) for key in survivors]
        db.executemany("UPDATE runs SET suspect = ?, deaths = deaths + 1 WHERE key = ?", changes)
    else:
        db.execute("UPDATE runs SET alone = 0, deaths = 0 WHERE deaths > 0 AND ended_at IS NULL")
    db.execute("UPDATE store SET died = NULL")


def _on_trial(db: apsw.Connection, trial: int) -> list[int]:
    rows: list[Any] = db.execute("SELECT key FROM runs WHERE trial = ? AND ended_at IS NULL", (trial,)).fetchall()
    return [row[0] for row in rows]


_RUN = f"SELECT {RUN_COLUMNS}, runs.secrets FROM runs WHERE key = ?"


class Ownership(Struct, frozen=True):
    """The findings of an owner when it takes over a store."""

    id: str
    epoch: int
    unclean: bool
    held: bool


class SqliteLog(SqliteLogReader):
    def __init__(
        self, reader: apsw.Connection, threads: ReaderThreads, writer: Writer, *, ownership: Ownership
    ) -> None:
        super().__init__(reader, threads)
        self._writer = writer
        self._ownership = ownership
        self._held = ownership.held
        self._claims = Claims(ownership.epoch)
        self._flushes = 0
        self._flying: deque[tuple[int, Sequence[Write]]] = deque()
        """Flushes that may not be committed yet, with their numbers."""

    @property
    def id(self) -> str:
        return self._ownership.id

    @property
    def unclean(self) -> bool:
        return self._ownership.unclean

    @property
    def held(self) -> bool:
        return self._held

    async def lift_hold(self) -> None:
        await self._writer.job(_lift_hold)
        self._held = False

    @property
    def commits(self) -> int:
        """The number of flushes that have been committed since the store was opened."""
        return self._writer.commits

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        if self._claims.any_stale(writes):
            return self._flush_without_stale(writes)
        self._flushes += 1
        self._landed()
        self._flying.append((self._flushes, writes))
        return self._writer.flush(writes)

    async def probe(self) -> None:
        await self._writer.job(_probe)

    def next_epoch(self) -> int:
        return self._claims.next_epoch()

    async def claim(self, key: int, *, kinds: Sequence[str]) -> Loaded | None:
        epoch = self._claims.claim(key)
        loaded: Loaded | None = None
        try:
            self._landed()
            if any(write.key == key for _, writes in self._flying for write in writes):
                await self._writer.caught_up()
            try:
                with snapshot(self._reader) as db:
                    loaded = _load(db, key, epoch=epoch, claims=self._claims, kinds=kinds, limit=ON_THE_LOOP)
            except NotOnTheLoop:
                loaded = await self._threads.read(
                    lambda db: _load(db, key, epoch=epoch, claims=self._claims, kinds=kinds, limit=IN_A_THREAD), run=key
                )
            return loaded
        finally:
            if loaded is None:
                self._claims.release(key, epoch)

    def release(self, key: int, epoch: int) -> None:
        self._claims.release(key, epoch)

    async def begin_trial(self, keys: Sequence[int]) -> None:
        owner_epoch = self._ownership.epoch
        await self._writer.job(lambda db: begin_trial(db, keys, owner_epoch=owner_epoch))

    async def end_trial(self, keys: Sequence[int]) -> None:
        await self._writer.job(lambda db: end_trial(db, keys))

    async def survived(self, keys: Sequence[int]) -> None:
        owner_epoch = self._ownership.epoch
        await self._writer.job(lambda db: survived(db, keys, owner_epoch=owner_epoch))

    async def charge_death(self) -> None:
        await self._writer.job(charge_death)

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]:
        return await self._writer.job(lambda db: retention.trim(db, before=before, after=after, workspace=workspace))

    def _landed(self) -> None:
        while self._flying and self._flying[0][0] <= self._writer.flushes:
            self._flying.popleft()

    def _flush_without_stale(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        """Drops writes of earlier claims before they reach the writer."""
        stale = [self._claims.stale(write) for write in writes]
        reported: asyncio.Future[list[Written]] = asyncio.get_running_loop().create_future()

        def report(others: asyncio.Future[list[Written]]) -> None:
            if reported.done():
                return
            rest = iter(others.result())
            reported.set_result([moved_on() if old else next(rest) for old in stale])

        self.flush([write for write, old in zip(writes, stale, strict=True) if not old]).add_done_callback(report)
        return reported


def _load(
    db: apsw.Connection, key: int, *, epoch: int, claims: Claims, kinds: Sequence[str], limit: ReadLimit
) -> Loaded | None:
    """None for an unknown run. Raises `NotOnTheLoop` instead of reading more than `limit` on the loop."""
    rows = rows_of(db, _RUN, (key,))
    if not rows:
        return None
    *columns, secrets = rows[0]
    row = run_row(columns)
    if limit is ON_THE_LOOP:
        _check_size(db, row)
    created: Any = db.execute(f"SELECT {BODY} FROM entries WHERE run = ? AND seq = 1", (key,)).fetchone()
    folded = row.state_seq if row.state else 0
    return Loaded(
        row,
        epoch,
        claims.earlier(row.epoch),
        created[0] if created else b"",
        facts=read_facts(db, key, after=folded) if folded < row.next_seq - 1 else [],
        conversation=read_facts(db, key, kinds=kinds) if kinds else [],
        history=[] if row.thread is None else log_reader.messages(db, row.thread),
        secrets=secrets,
    )


def _check_size(db: apsw.Connection, row: RunRow) -> None:
    """Raises `NotOnTheLoop` if the run's log and its thread's messages are too large; sizes are known without
    reading.
    """
    looks = [(f"SELECT {BODY_BYTES} AS bytes FROM entries WHERE run = ?", row.key)]
    if row.thread is not None:
        looks.append((f"SELECT {MESSAGE_BYTES} AS bytes FROM thread_messages WHERE thread = ?", row.thread))
    for query, key in looks:
        sums: Any = db.execute(
            f"SELECT count(*), total(bytes) FROM ({query} LIMIT ?)", (key, ON_THE_LOOP.rows)
        ).fetchone()
        if sums[0] == ON_THE_LOOP.rows or sums[1] > ON_THE_LOOP.bytes:
            raise NotOnTheLoop


def _lift_hold(db: apsw.Connection) -> None:
    db.execute("UPDATE store SET held = 0")


def _probe(db: apsw.Connection) -> None:
    """Makes a write that changes nothing, to find out whether the store accepts writes at all."""
    # An update to the same value would not write: SQLite compares.
    db.execute("INSERT INTO idempotency (workspace, route, key, digest, run, at) VALUES (0, '', '', x'', 0, 0)")
    db.execute("DELETE FROM idempotency WHERE workspace = 0")


# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false


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
