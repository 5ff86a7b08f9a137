"""Copies in progress: hidden and marked until they are complete, so that nobody mistakes one for a backup.

A process that is killed while it copies leaves its draft behind. The mark in a draft is locked while the copy is in
progress, so the next copy to the same place finds abandoned drafts and removes them.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from weftline.errors import StoreError
from weftline.store import hashing
from weftline.store import secrets as sealing
from weftline.store.sqlite.directory import DATABASE, MARK, drafts_of

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
        hashing.KEY_FILE,
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
