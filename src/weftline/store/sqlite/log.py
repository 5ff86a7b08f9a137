# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The log on SQLite: writes go to the one writer, reads to connections of their own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import apsw
from msgspec import Struct

from weftline.store import crashpoints
from weftline.store.outcomes import Claims, moved_on
from weftline.store.rows import Loaded, RunRow, Write, Written
from weftline.store.sqlite import log_reader, retention
from weftline.store.sqlite.connection import snapshot
from weftline.store.sqlite.database import ReaderThreads
from weftline.store.sqlite.log_reader import (
    IN_A_THREAD,
    ON_THE_LOOP,
    NotOnTheLoop,
    ReadLimit,
    SqliteLogReader,
    read_facts,
)
from weftline.store.sqlite.pieces import BODY, BODY_BYTES, MESSAGE_BYTES
from weftline.store.sqlite.rows import RUN_COLUMNS, rows_of, run_row
from weftline.store.sqlite.writer import Writer

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
