"""Checks whether a store's files are still the ones that were opened, and still whole.

A file that was removed or replaced can still be written to: commits to it succeed, and nobody finds them again. One
that was cut can be written to as well: SQLite continues where it was, and leaves a hole.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from weftline.store.sqlite.directory import LOCK

_SECOND_NS = 1_000_000_000
_LOST = "was removed, renamed or replaced by another program"
_CUT = "was cut by another program"


class LostFile(Exception):
    """A file was removed, replaced or cut by another program."""


class StoreFiles:
    """The store's files as they are now, to be compared with later.

    Checking each file would cost several system calls per commit, each of which releases the GIL. Creating, removing or
    renaming a file changes the times of its directory, so one check of the directory covers all files. Only if it has
    changed, or changed too recently for its times to show it, is each file checked.

    The sizes of the two files that are written to show in no directory; `check_sizes` reads them without releasing the
    GIL. It has to be called before a transaction: after it, SQLite may have filled up what was cut.
    """

    def __init__(self, database: Path, *, database_bytes: Callable[[], int]) -> None:
        self._folder = str(database.parent)
        self._database_bytes = database_bytes
        """How large SQLite believes the database to be, the log included: its file shrinks to that and no further."""
        self._size = _size_reader()
        self._database, self._wal = os.fsencode(database), os.fsencode(f"{database}-wal")
        self._database_size, self._wal_size = self._size(self._database), self._size(self._wal)
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
            raise LostFile(f"the directory of the store ({self._folder}) {_LOST}") from None
        folder = (found.st_dev, found.st_ino, found.st_ctime_ns, found.st_mtime_ns)
        if folder == self._seen:
            return
        changed = max(found.st_ctime_ns, found.st_mtime_ns)
        settled = abs(time.time_ns() - changed) > settles_after_ns(changed)
        self._check_each()
        self._seen = folder if settled else None

    def _check_each(self) -> None:
        if not os.path.exists(self._folder):
            raise LostFile(f"the directory of the store ({self._folder}) {_LOST}")
        for path, name, known in self._known:
            if _identity(path) != known:
                raise LostFile(f"{name} of the store ({path}) {_LOST}")

    def check_sizes(self) -> None:
        """Raises `LostFile` if the database or its log has become smaller by itself."""
        size = self._size(self._wal)
        if size < self._wal_size:
            self._check_each()
            raise LostFile(f"the write-ahead log of the store ({os.fsdecode(self._wal)}) {_CUT}")
        self._wal_size = size
        size = self._size(self._database)
        if size < self._database_size and size != self._database_bytes():
            self._check_each()
            raise LostFile(f"the database of the store ({os.fsdecode(self._database)}) {_CUT}")
        self._database_size = size


def _size_reader() -> Callable[[bytes], int]:
    """A function that returns the size of a file, 0 if there is none.

    Every call that releases the GIL costs the writer up to a switch interval while the loop is busy, which is longer
    than a commit. This one keeps it, where the C library has it: only Linux has the same structure everywhere.
    """
    if sys.platform != "linux":
        return _stat_size
    try:
        statx = ctypes.PyDLL(None).statx
    except (OSError, AttributeError):
        return _stat_size
    statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
    found = ctypes.create_string_buffer(256)
    at = ctypes.addressof(found)
    size = ctypes.c_uint64.from_buffer(found, 40)

    def statx_size(path: bytes) -> int:
        return size.value if statx(-100, path, 0, 0x200, at) == 0 else _stat_size(path)

    return statx_size


def _stat_size(path: bytes) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def settles_after_ns(changed: int) -> int:
    """Returns how old a change has to be so that a later one shows in the times of the same directory.

    File systems round their times to two seconds at the most, and to some milliseconds if they have fractions at all.
    """
    return _SECOND_NS // 5 if changed % _SECOND_NS else 3 * _SECOND_NS
