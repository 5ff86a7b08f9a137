# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Opens the database in the one safe way, migrates it to the current schema, and says what its errors mean."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from importlib import resources
from pathlib import Path

import apsw

from weftline.errors import StoreError, WeftlineError
from weftline.store.outcomes import Moved, already_there, impossible, moved_on
from weftline.store.rows import Written
from weftline.store.sqlite.pieces import understand


class Fenced(Exception):
    """Another process took over the store; this one must stop."""


def failure(error: Exception) -> Written:
    """Returns how to treat a write that failed on its own: retry later, decide again, or give up."""
    if isinstance(error, Moved):
        return moved_on()
    if isinstance(error, apsw.ConstraintError):
        return Written("conflict", error=already_there(error))
    if isinstance(error, _REFUSALS):
        return Written("refused", error=_refusal(error))
    return impossible(error)


def write_error(error: apsw.Error) -> WeftlineError:
    """The error to raise for a failed write of records."""
    if isinstance(error, apsw.ConstraintError):
        return already_there(error)
    if isinstance(error, _REFUSALS):
        return _refusal(error)
    return StoreError(f"The write was not possible: {error}.", code="internal_error")


def read_error(error: apsw.Error | UnicodeDecodeError) -> StoreError:
    """The error to raise for a failed read. SQLite returns texts as they are stored; only a damaged one is not
    UTF-8.
    """
    if isinstance(error, UnicodeDecodeError):
        return StoreError("The store is damaged: a text in it is not UTF-8.")
    return StoreError(f"The store cannot be read: {error}.")


def _refusal(error: Exception) -> StoreError:
    return StoreError(f"The store is not accepting writes at the moment: {error}.", code="unavailable")


_REFUSALS = (
    apsw.FullError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.ReadOnlyError,
    apsw.IOError,
    apsw.CantOpenError,
    apsw.NoMemError,
    apsw.InterruptError,
)


def connect(path: Path, *, read_only: bool = False, vfs: str | None = None) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    with ExitStack() as undo:
        try:
            new = not read_only and (not path.exists() or path.stat().st_size == 0)
            db = apsw.Connection(str(path), flags=flags, vfs=vfs, statementcachesize=256)
            undo.callback(db.close)
            db.set_busy_timeout(200)
            if not read_only:
                os.chmod(path, 0o600)
                if new:  # must come first: SQLite decides when it creates the first table
                    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
                if db.execute("PRAGMA journal_mode = WAL").fetchall() != [("wal",)]:
                    raise StoreError(
                        f"The store {path.parent} is on a file system that does not support a write-ahead log."
                    )
                db.execute("PRAGMA synchronous = FULL")
                db.execute("PRAGMA wal_autocheckpoint = 1000")
                if sys.platform == "darwin":
                    db.execute("PRAGMA fullfsync = 1")
            db.execute("PRAGMA cache_size = -8192")
            understand(db)
        except apsw.NotADBError:
            raise StoreError(f"{path} is not a Weftline store.") from None
        except apsw.CorruptError as error:
            raise damaged(path.parent, str(error)) from None
        except (apsw.Error, OSError) as error:
            raise StoreError(f"The store {path.parent} cannot be opened: {error}.") from None
        undo.pop_all()
    return db


def damaged(path: Path, what: str) -> StoreError:
    return StoreError(
        f"The store {path} is damaged: {what.rstrip('.')}. Move it aside and restore a backup,"
        " or copy what can be read with `weftline salvage`."
    )


@contextmanager
def snapshot(db: apsw.Connection) -> Generator[apsw.Connection]:
    """All reads inside see one snapshot of the store. Database errors become `StoreError`."""
    try:
        db.execute("SAVEPOINT snapshot")
        try:
            yield db
        finally:
            db.execute("RELEASE snapshot")
    except (apsw.Error, UnicodeDecodeError) as error:
        raise read_error(error) from error


@cache
def migrations() -> Sequence[tuple[int, str]]:
    """The numbered migrations, in order."""
    folder = resources.files("weftline.store.sqlite") / "migrations"
    found = [
        (int(file.name.split("_")[0]), file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]
    return tuple(sorted(found))


@cache
def records_schema() -> str:
    """The tables of the records after all migrations."""
    return _page("schema_records.sql")


@cache
def whole_schema() -> str:
    """Both halves after all migrations, which is three times as fast to create as running them."""
    return f"{records_schema()}\n{_page('schema_log.sql')}"


def _page(name: str) -> str:
    return (resources.files("weftline.store.sqlite") / name).read_text(encoding="utf-8")


def migrate(db: apsw.Connection, *, path: Path, steps: Sequence[tuple[int, str]] | None = None) -> None:
    """Migrates the schema to the current version, each step and its number in one transaction.

    A new store is created in one transaction, from the whole schema or from the given steps.
    """
    known = migrations() if steps is None else steps
    newest = known[-1][0]
    try:
        version = check_version(db, path=path, newest=newest)
        if version == 0 and db.execute("SELECT 1 FROM sqlite_schema").fetchall():
            raise StoreError(f"{path} holds a database that is not a Weftline store.")
        if version == 0 and steps is None:
            known = [(newest, whole_schema())]
        with db if version == 0 else nullcontext():
            for number, sql in known:
                if number > version:
                    with db:
                        db.execute(sql)
                        db.execute(f"PRAGMA user_version = {number}")
            db.execute(
                "INSERT INTO store (one, id, owner_epoch, clean, held) VALUES (1, ?, 0, 1, 0) ON CONFLICT DO NOTHING",
                (secrets.token_hex(8),),
            )
        if version == 0:
            # What a damaged log hides can be told only with the tables at hand, so they do not stay in it alone.
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreError(f"The store {path} is damaged or not a Weftline store: {error}.") from None
    except apsw.Error as error:
        raise StoreError(f"The store {path} cannot be written: {error}.") from None


def check_version(db: apsw.Connection, *, path: Path, newest: int | None = None) -> int:
    """The version of the schema. Raises `StoreError` (code `store_newer`) if this code is too old for it."""
    newest = migrations()[-1][0] if newest is None else newest
    version = schema_version(db)
    if version > newest:
        raise StoreError(
            f"The store {path} has schema {version}; this version of Weftline reads up to {newest}.",
            code="store_newer",
        )
    if version and not db.execute("SELECT 1 FROM pragma_table_info('store') WHERE name = 'held'").fetchall():
        # Its migrations had the same numbers: nothing may be changed before this is clear.
        raise StoreError(f"The store {path} was created by Weftline 0.1, which this version cannot read; use another.")
    return version


def schema_version(db: apsw.Connection) -> int:
    row = db.execute("PRAGMA user_version").fetchone()
    assert row is not None and isinstance(row[0], int)
    return row[0]
