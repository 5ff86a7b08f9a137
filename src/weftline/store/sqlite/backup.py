# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Copies of a store: a snapshot of the database, and the keys without which its secrets cannot be read.

Until a copy is complete it is hidden and marked, so that nobody mistakes it for a backup.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from weftline.errors import StoreError
from weftline.store import sealing
from weftline.store.rows import Copied, Unreadable
from weftline.store.sqlite.connection import check_version, connect, migrations, schema_version
from weftline.store.sqlite.damage import find_damage, unreadable
from weftline.store.sqlite.directory import DATABASE, MARK, StoreDirectory, drafts_of
from weftline.store.sqlite.pieces import understand

logger = logging.getLogger(__name__)

_TEXT = (
    b"A copy of a Weftline store is being made here. If nobody is at work any more it is useless and can be removed.\n"
)
_STORE_TEXT = b"A Weftline store is being restored here. If nobody is at work any more, restore it again.\n"
_OURS = frozenset(
    {
        MARK,
        f"{MARK}.new",
        sealing.KEY_FILE,
        sealing.HASH_KEY_FILE,
        *(DATABASE + end for end in ("", "-journal", "-wal", "-shm")),
    }
)


@contextmanager
def draft_of(to: Path, *, of_store: bool = False) -> Generator[Path]:
    """A new directory beside `to`, removed at the end unless `complete` has given it its final name.

    An abandoned draft `of_store` stays until there is another one of the same store: a server that found nothing would
    create an empty store in its place.
    """
    _remove_abandoned(to)
    draft = to.with_name(f".{to.name}.{secrets.token_hex(4)}")
    draft.mkdir(mode=0o700, parents=True)
    lock: int | None = None
    try:
        # Locked before it gets its name, so that no mark ever looks abandoned.
        lock = os.open(draft / f"{MARK}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _try_lock(lock)
        os.write(lock, _STORE_TEXT if of_store else _TEXT)
        os.rename(draft / f"{MARK}.new", draft / MARK)
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def complete(draft: Path, to: Path) -> int:
    """Gives a draft its name; returns its size in bytes."""
    (draft / MARK).unlink()
    size = sum(file.stat().st_size for file in draft.iterdir())
    sync(draft)
    os.rename(draft, to)
    sync(to.parent)
    return size


def check_finished(path: Path) -> None:
    """Raises `StoreError` if this is a draft."""
    if (path / MARK).exists():
        raise StoreError(
            f"{path} is an unfinished copy: a backup or restore that was cut off, or is still under way. Use a backup"
            " that was completed."
        )


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_abandoned(to: Path) -> None:
    if not to.parent.is_dir():
        return
    # A restore that was killed just before or after its mark had its name left `MARK.new` or no mark.
    ours = [one / f"{MARK}.new" for one in drafts_of(to) if not (one / MARK).exists()]
    for draft in [*to.parent.glob(f".*/{MARK}"), *ours]:
        try:
            mark = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            continue  # somebody else's
        try:
            if os.read(mark, len(_STORE_TEXT)) == _STORE_TEXT and draft.parent not in drafts_of(to):
                continue
            if _try_lock(mark) and _OURS.issuperset(os.listdir(draft.parent)):
                shutil.rmtree(draft.parent, ignore_errors=True)
                logger.info("removed %s, an unfinished copy that was abandoned", draft.parent)
        except OSError:
            pass  # someone else was faster
        finally:
            os.close(mark)


def _try_lock(mark: int) -> bool:
    """Some file systems have no locks; abandoned drafts are not removed there."""
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


_KEYS = (sealing.KEY_FILE, sealing.HASH_KEY_FILE)
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
