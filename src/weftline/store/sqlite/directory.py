"""The store's directory: private, with one owner at a time.

A flock on a separate file says who the owner is; it vanishes with the process, however that ends. Nothing but this
package may open the files in here: a plain `open()` and `close()` of the database drops SQLite's own locks.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shlex
import socket
import stat
from pathlib import Path

import msgspec

from weftline.errors import StoreError

logger = logging.getLogger(__name__)

DATABASE = "weftline.db"
LOCK = "lock"
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs"}
)

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ESCAPED = re.compile(r"\\([0-7]{3})")
"""How a mount table escapes spaces, tabs, newlines and backslashes in a path."""


class Owner(msgspec.Struct):
    pid: int
    host: str
    admin_socket: str = ""


class StoreDirectory:
    """Takes the owner's lock; `release` gives it back. With `create`, makes the directory if it is new."""

    def __init__(self, path: Path, *, create: bool = True, mounts: str | None = None) -> None:
        self.path = path
        try:
            if path.exists() and not path.is_dir():
                raise StoreError(f"The store {path} is a file; give the path of a directory.")
            if create:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif not (path / DATABASE).exists():
                raise no_store(path)
        except OSError as error:
            raise StoreError(f"The store {path} cannot be created: {error.strerror}.") from None
        kind = file_system(path, mounts=_mounts() if mounts is None else mounts)
        if kind in _NETWORK_FILE_SYSTEMS:
            raise StoreError(f"The store {path} is on a network file system ({kind}), which cannot keep it safe.")
        self._lock: int | None = None

    @property
    def database(self) -> Path:
        return self.path / DATABASE

    @property
    def owned(self) -> bool:
        return self._lock is not None

    def own(self) -> None:
        """Takes the lock, or raises `StoreError` (code `store_in_use`) that names the owner."""
        self._make_private()
        try:
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"The store {self.path} cannot be opened for writing: {error.strerror}.") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            owner = self.owner()
            who = f"process {owner.pid} on {owner.host}" if owner else "another process"
            raise StoreError(f"The store {self.path} is in use by {who}.", code="store_in_use") from None
        except OSError as error:
            os.close(lock)
            raise StoreError(f"The store {self.path} cannot be locked: {error.strerror}.") from None
        self._lock = lock
        self.announce()

    def _make_private(self) -> None:
        """The contents are for the owner's eyes only: runs, and the keys that secrets are sealed with."""
        try:
            mode = stat.S_IMODE(self.path.stat().st_mode)
            if not mode & _OTHERS:
                return
            if not self.database.exists() and set(os.listdir(self.path)) - {LOCK}:
                raise StoreError(
                    f"The store {self.path} would be in a directory with other files that others can read; give it a"
                    " directory of its own."
                )
            self.path.chmod(mode & ~_OTHERS)
        except OSError as error:
            raise StoreError(
                f"The store {self.path} can be read by other users; changing its permissions failed: {error.strerror}."
            ) from None
        logger.warning("the store %s was readable by other users; its permissions have been fixed", self.path)

    def announce(self, *, admin_socket: str = "") -> None:
        """Writes who owns the store into the lock file."""
        assert self._lock is not None
        data = msgspec.json.encode(Owner(os.getpid(), socket.gethostname(), admin_socket))
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, data, 0)

    def owner(self) -> Owner | None:
        try:
            return msgspec.json.decode((self.path / LOCK).read_bytes(), type=Owner)
        except (OSError, msgspec.DecodeError):
            return None

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def no_store(path: Path) -> StoreError:
    return StoreError(f"There is no store at {path}; `weftline serve --db {shlex.quote(str(path))}` makes one.")


def file_system(path: Path, *, mounts: str) -> str:
    """The type of the file system that holds `path` by a table like /proc/mounts; "" if that does not say."""
    real = str(path.resolve())
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[1])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _mounts() -> str:
    try:
        return Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
