"""Checks whether a store's files are still the ones that were opened.

A file that was removed or replaced can still be written to: commits to it succeed, and nobody finds them again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from weftline.store.sqlite.directory import LOCK

_SECOND_NS = 1_000_000_000


class LostFile(Exception):
    """A file was removed or replaced by another program."""


class StoreFiles:
    """The store's files as they are now, to be compared with later.

    Checking each file would cost several system calls per commit, each of which releases the GIL. Creating, removing or
    renaming a file changes the times of its directory, so one check of the directory covers all files. Only if it has
    changed, or changed too recently for its times to show it, is each file checked.
    """

    def __init__(self, database: Path) -> None:
        self._folder = str(database.parent)
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
            raise LostFile(f"the directory of the store ({self._folder})") from None
        folder = (found.st_dev, found.st_ino, found.st_ctime_ns, found.st_mtime_ns)
        if folder == self._seen:
            return
        changed = max(found.st_ctime_ns, found.st_mtime_ns)
        settled = abs(time.time_ns() - changed) > settles_after_ns(changed)
        for path, name, known in self._known:
            if _identity(path) != known:
                raise LostFile(f"{name} of the store ({path})")
        self._seen = folder if settled else None


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def settles_after_ns(changed: int) -> int:
    """How old a change has to be so that a later one shows in the times of the same directory.

    File systems round their times to two seconds at the most, and to some milliseconds if they have fractions at all.
    """
    return _SECOND_NS // 5 if changed % _SECOND_NS else 3 * _SECOND_NS
