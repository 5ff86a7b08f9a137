# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Copies of a store: a snapshot of the database, and the keys without which its secrets cannot be read.

A backup is a store of its own, and its runs are held: the original store continued, so whatever was in progress in the
copy has long since happened. Nothing in it runs until somebody releases it, however it was opened.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import apsw

from weftline.errors import StoreError
from weftline.store import hashing
from weftline.store import secrets as sealing
from weftline.store.copies import Copied, Unreadable
from weftline.store.sqlite.checking import find_damage
from weftline.store.sqlite.connection import check_version, connect, migrations, schema_version
from weftline.store.sqlite.contents import unreadable
from weftline.store.sqlite.directory import DATABASE, StoreDirectory
from weftline.store.sqlite.drafts import check_finished, complete, draft_of, sync
from weftline.store.sqlite.pieces import understand

_KEYS = (sealing.KEY_FILE, hashing.KEY_FILE)
_PAGES = 2000
"""How many pages are copied at once, between two checks of whether to stop."""
_STEPS = 10_000
"""SQLite VM instructions between two such checks."""
_EXAMPLES = 5


def restore(backup: Path, to: Path) -> Copied:
    """Turns a backup into a store."""
    if not (backup / DATABASE).exists():
        raise StoreError(f"There is no backup at {backup}; `weftline backup` creates one from a store.")
    check_finished(backup)
    return copy_store(StoreDirectory(backup, create=False).path, to, restoring=True)


def copy_store(source: Path, to: Path, *, restoring: bool = False, stop: Callable[[], bool] = lambda: False) -> Copied:
    """Copies the store in `source`, even while others write to it, to the directory `to`, completely or not at all.

    A copy with unreadable values is kept, since there may be no better one, and reports them. Raises `StoreError` if
    the database itself is damaged, if `to` already exists or is in the store, or when `stop` returns true.
    """
    try:
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise StoreError(f"{to} already exists.")
        if to.resolve().is_relative_to(source.resolve()):
            raise StoreError(f"{to} is in the store itself: a copy belongs somewhere else.")
        with draft_of(to, of_store=restoring) as draft:
            count, examples = _copy_database(source / DATABASE, draft / DATABASE, stop)
            # After the database: a key is created before anything that depends on it, and never changes.
            for name in _KEYS:
                if (source / name).exists():
                    shutil.copyfile(source / name, draft / name)
                    os.chmod(draft / name, 0o600)
                    sync(draft / name)
            size = complete(draft, to)
    except OSError as error:
        raise StoreError(f"The store cannot be copied to {to}: {error.strerror}.") from None
    except apsw.Error as error:
        raise StoreError(f"The store {source} cannot be copied to {to}: {error}.") from None
    return Copied(size, count, tuple(examples))


def _copy_database(source: Path, to: Path, stop: Callable[[], bool]) -> tuple[int, list[Unreadable]]:
    """Copies the database; returns how many values of the copy cannot be read, with examples."""
    with closing(connect(source, read_only=True)) as db, closing(apsw.Connection(str(to))) as copy:
        check_version(db, path=source.parent)
        os.chmod(to, 0o600)
        # A transaction, so that all steps copy one snapshot and none starts over because of a write.
        db.execute("BEGIN")
        db.execute("SELECT id FROM store").fetchall()
        with copy.backup("main", db, "main") as work:
            while not work.done:
                _check_stop(stop)
                work.step(_PAGES)
        db.execute("ROLLBACK")
        copy.execute("PRAGMA journal_mode = DELETE")
        # This is not a crash: the owner was running when the copy was made.
        copy.execute("UPDATE store SET clean = 1, died = NULL, held = 1")
        copy.set_progress_handler(stop, _STEPS)
        understand(copy)
        try:
            find_damage(copy, path=source.parent, thorough=True)
            # The values of an older store are checked once it has been migrated and is backed up again.
            current = schema_version(copy) == migrations()[-1][0]
            found = _counted(unreadable(copy) if current else ())
        except apsw.InterruptError:
            _check_stop(stop)
            raise
    sync(to)
    return found


def _counted(found: Iterable[Unreadable]) -> tuple[int, list[Unreadable]]:
    """Returns their number, and the first few."""
    count, examples = 0, list[Unreadable]()
    for one in found:
        count += 1
        if len(examples) < _EXAMPLES:
            examples.append(one)
    return count, examples


def _check_stop(stop: Callable[[], bool]) -> None:
    if stop():
        raise StoreError("The store is closing; no backup was made.")
