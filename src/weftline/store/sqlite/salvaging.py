# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Copies what can be read of a store with damaged pages, row by row, and checks what came of each run.

A damaged page of a table hides its own rows and no others: the copy continues with the next row that can be read, and
indexes are created again. Then the log of each run is folded again, since a run is worth nothing with a hole in its
log. One that has ended keeps its outcome without its log, as after retention; one that has not must not continue on
half of its history, and is marked so that the runtime ends it as `worker_error`.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw

from weftline.errors import StoreError
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import FORMAT, decode_fact
from weftline.kernel.evolve import fold
from weftline.kernel.state import State
from weftline.store import sealing
from weftline.store.rows import Salvaged
from weftline.store.sqlite.backup import complete, draft_of, sync
from weftline.store.sqlite.connection import check_version, connect, migrations
from weftline.store.sqlite.damage import report_dropped, unreadable
from weftline.store.sqlite.directory import DATABASE, WAL, StoreDirectory
from weftline.store.sqlite.pieces import understand

_KEYS = (sealing.KEY_FILE, sealing.HASH_KEY_FILE)
_LAST_ROW = 2**63 - 1
_DAMAGE = (apsw.CorruptError, apsw.ConstraintError, apsw.IOError, UnicodeDecodeError)
_OF_RUNS = ("entries", "deltas", "run_metadata", "open_awaits")
"""Messages of sessions, and what they refer to, are worth keeping without their runs."""


def salvage(source: Path, to: Path) -> Salvaged:
    """Copies what can be read of the store in `source` to the new directory `to`; the copy is held, as a backup is.

    Raises `StoreError` if `source` is in use or its first page is damaged, or if `to` exists.
    """
    if to.exists():
        raise StoreError(f"{to} already exists.")
    if to.resolve().is_relative_to(source.resolve()):
        raise StoreError(f"{to} is in the store itself: a copy belongs somewhere else.")
    directory = StoreDirectory(source, create=False)
    directory.own()
    try:
        with draft_of(to, of_store=True) as draft:
            with _at_full_length(source / DATABASE, draft) as database:
                found = _copy_and_check(database, draft / DATABASE, store=source)
            for name in _KEYS:
                if (source / name).exists():
                    shutil.copyfile(source / name, draft / name)
                    os.chmod(draft / name, 0o600)
                    sync(draft / name)
            found.bytes = complete(draft, to)
            return found
    except OSError as error:
        raise StoreError(f"The store cannot be copied to {to}: {error.strerror}.") from None
    except apsw.Error as error:
        raise StoreError(f"Nothing can be salvaged from the store {source}: {error}. Restore a backup.") from None
    finally:
        directory.release()


@contextmanager
def _at_full_length(database: Path, draft: Path) -> Generator[Path]:
    """The database, or a copy with empty pages at its end if it was cut off: SQLite does not open a short one."""
    with database.open("rb") as file:
        header = file.read(32)
    page_size = int.from_bytes(header[16:18]) or 1
    whole = (65536 if page_size == 1 else page_size) * int.from_bytes(header[28:32])
    if database.stat().st_size >= whole:
        yield database
        return
    copy = draft / f"cut-{DATABASE}"
    wal = database.with_name(WAL)
    try:
        shutil.copyfile(database, copy)
        os.truncate(copy, whole)
        if wal.exists():
            shutil.copyfile(wal, copy.with_name(f"{copy.name}-wal"))
        yield copy
    finally:
        for one in draft.glob(f"{copy.name}*"):
            one.unlink()


def _copy_and_check(source: Path, to: Path, *, store: Path) -> Salvaged:
    with closing(connect(source, read_only=True)) as db, closing(apsw.Connection(str(to))) as copy:
        os.chmod(to, 0o600)
        version = check_version(db, path=store)
        report_dropped(db, store, forget=False)
        db.execute("PRAGMA cell_size_check = 1")
        schema: list[Any] = db.execute(
            "SELECT type = 'table', name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        copy.execute("PRAGMA auto_vacuum = INCREMENTAL")
        for _, _, sql in sorted(schema, key=lambda row: -row[0]):
            copy.execute(sql)
        copy.execute(f"PRAGMA user_version = {version}")
        copy.execute("BEGIN")
        damaged = [name for is_table, name, _ in schema if is_table and not _copy_table(db, copy, name)]
        found = _check_runs(copy, damaged, newest=version == migrations()[-1][0])
        copy.execute("COMMIT")
    sync(to)
    return found


def _key(db: apsw.Connection, table: str) -> list[str]:
    """The columns of its key; empty if that is the number of the row."""
    columns: list[Any] = db.execute(
        "SELECT name FROM pragma_table_info(?1) WHERE pk > 0"
        " AND (SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?1) ORDER BY pk",
        (table,),
    ).fetchall()
    return [name for (name,) in columns]


def _copy_table(db: apsw.Connection, copy: apsw.Connection, table: str) -> bool:
    """Copies the rows that can be read; returns False if there was damage between them."""
    columns = db.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
    insert = f'INSERT OR IGNORE INTO "{table}" VALUES ({", ".join("?" * len(columns))})'
    if key := _key(db, table):
        return _copy_by_key(db, copy, f'SELECT * FROM "{table}" NOT INDEXED ORDER BY', key, insert)
    select = f'SELECT rowid, * FROM "{table}" NOT INDEXED WHERE rowid >= ? ORDER BY rowid'
    return _copy_by_number(db, copy, select, insert)


def _copy_by_key(db: apsw.Connection, copy: apsw.Connection, select: str, key: list[str], insert: str) -> bool:
    """From both ends, as far as possible."""
    for end in ("", " DESC"):
        try:
            for row in db.execute(f"{select} {', '.join([name + end for name in key])}"):
                copy.execute(insert, row)
        except _DAMAGE:
            continue
        return not end
    return False


def _copy_by_number(db: apsw.Connection, copy: apsw.Connection, select: str, insert: str) -> bool:
    """Skips what cannot be read: the rows of a page have numbers that follow each other."""
    whole = True
    at = -_LAST_ROW
    while True:
        try:
            for number, *row in db.execute(select, (at,)):
                at = number + 1
                copy.execute(insert, row)
            return whole
        except apsw.ConstraintError:
            whole = False  # of this row, which has a value of another type
        except _DAMAGE:
            whole = False
            found = _next_readable(db, f"{select} LIMIT 1", at)
            if found is None:
                return False
            at = found


def _next_readable(db: apsw.Connection, select: str, after: int) -> int | None:
    """The smallest number from which rows can be read again."""

    def is_readable(number: int) -> bool:
        try:
            db.execute(select, (number,)).fetchall()
        except _DAMAGE:
            return False
        return True

    step = 1
    while not is_readable(after + step):
        step *= 2
        if after + step > _LAST_ROW:
            return None
    low, high = after + step // 2, after + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_readable(middle) else (middle, high)
    return high


def _check_runs(db: apsw.Connection, damaged: list[str], *, newest: bool) -> Salvaged:
    """Removes what belongs to runs whose rows are lost, and deals with those whose logs have holes."""
    understand(db)
    found = Salvaged(damaged=damaged)
    orphans: list[Any] = db.execute(
        "SELECT run FROM entries UNION SELECT run FROM deltas EXCEPT SELECT key FROM runs"
    ).fetchall()
    found.lost = len(orphans)
    for table in _OF_RUNS:
        db.execute(f"DELETE FROM {table} WHERE run NOT IN (SELECT key FROM runs)")
    # The next in line takes the place of a run that is lost.
    db.execute(
        "UPDATE threads SET active_run = (SELECT key FROM runs WHERE thread = threads.key AND ended_at IS NULL"
        " ORDER BY place LIMIT 1) WHERE active_run NOT IN (SELECT key FROM runs)"
    )
    db.execute("UPDATE runs SET due_at = 0 WHERE ended_at IS NULL AND key IN (SELECT active_run FROM threads)")
    db.execute(
        "INSERT INTO store (one, id, owner_epoch, clean, held)"
        " VALUES (1, ?, (SELECT coalesce(max(epoch), 0) >> 32 FROM runs), 1, 1)"
        " ON CONFLICT DO UPDATE SET clean = 1, died = NULL, held = 1",
        (secrets.token_hex(8),),
    )
    holes = set[int]()
    for one in unreadable(db) if newest else ():  # an older store has to be migrated first
        if one.what.startswith("entry "):
            holes.add(one.run)
        else:
            found.unreadable += 1
    if "thread_messages" in damaged:
        holes.update(_without_history(db))
    runs: list[Any] = db.execute("SELECT key, CAST(salt AS BLOB), next_seq, ended_at, format FROM runs").fetchall()
    for key, salt, next_seq, ended_at, format in runs:
        ended = ended_at is not None
        if key not in holes and (format > FORMAT or _is_whole(db, key, next_seq, damaged, ended=ended)):
            found.whole += 1
            continue
        name = (key, salt.decode(errors="replace"))
        if not ended:
            # All of its log is read again, up to a fact that cannot be.
            db.execute("UPDATE runs SET state = x'', state_seq = 0, fold = 0, due_at = 0 WHERE key = ?", (key,))
            db.execute(
                "UPDATE entries SET head = x'' WHERE run = ?1 AND seq = (SELECT max(seq) FROM entries WHERE run = ?1)",
                (key,),
            )
            found.failing.append(name)
        else:
            for table in ("entries", "deltas"):
                db.execute(f"DELETE FROM {table} WHERE run = ? AND seq < ?", (key, next_seq - 1))
            found.shortened.append(name)
    return found


def _without_history(db: apsw.Connection) -> list[int]:
    """The unfinished runs of sessions in whose conversation something is missing."""
    rows: list[Any] = db.execute(
        "SELECT key FROM runs WHERE ended_at IS NULL AND thread IN (SELECT thread FROM thread_messages"
        " GROUP BY thread HAVING count(*) != max(pos) - min(pos) + 1)"
    ).fetchall()
    return [key for (key,) in rows]


def _is_whole(db: apsw.Connection, key: int, next_seq: int, damaged: list[str], *, ended: bool) -> bool:
    """Returns True if nothing is missing in the log of a run and it can be folded."""
    rows: list[Any] = db.execute("SELECT seq, at, head FROM entries WHERE run = ? ORDER BY seq", (key,)).fetchall()
    if not rows or (ended and rows[-1][0] != next_seq - 1):
        return False
    if ended and len(rows) == 1 and next_seq > 2:
        return True  # its log was removed by retention
    # Observations may be missing, since nothing depends on them, but only if no fact can be.
    if "entries" in damaged or "deltas" not in damaged:
        row: Any = db.execute("SELECT coalesce(sum(count), 0) FROM deltas WHERE run = ?", (key,)).fetchone()
        if len(rows) + row[0] != next_seq - 1:
            return False
    try:
        return not fold(State(), [(at, decode_fact.decode(head)) for _, at, head in rows]).broken
    except UNREADABLE:
        return False
