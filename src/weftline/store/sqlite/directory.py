"""The store's directory: private, with one owner at a time.

A flock on a separate file identifies the owner; it vanishes with the process, however that ends. Nothing but this
package may open the files in here: a plain `open()` and `close()` of the database drops SQLite's own locks.
"""

from __future__ import annotations

import fcntl
import glob
import logging
import os
import re
import shlex
import stat
from pathlib import Path
from socket import gethostname

import msgspec

from weftline.errors import StoreError
from weftline.store import sealing
from weftline.store.naming import DEFAULT_DB

logger = logging.getLogger(__name__)

DATABASE = "weftline.db"
LOCK = "lock"
_SOCKETS = ("server.sock", "server.sock.new")
"""What a process may listen on beside the store."""
MARK = "unfinished"
"""A file in a directory that a copy is written to; see `drafts`."""
WAL = f"{DATABASE}-wal"
_KEYS = (sealing.KEY_FILE, sealing.HASH_KEY_FILE)
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs"}
)

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ESCAPED = re.compile(r"\\([0-7]{3})")
"""How a mount table escapes spaces, tabs, newlines and backslashes in a path."""


class Owner(msgspec.Struct, omit_defaults=True):
    pid: int
    host: str
    admin_socket: str = ""
    """Where earlier versions listened. It still proves that a store was here."""
    socket: str = ""
    """Where commands reach the owner: relative to the directory."""
    store: str = ""
    """The id of the store in this directory, once there is one."""


class StoreDirectory:
    """Takes the owner's lock; `release` gives it back. With `create`, makes the directory if it is new."""

    def __init__(self, path: Path, *, create: bool = True, mounts: str | None = None) -> None:
        self.path = path
        try:
            if path.exists() and not path.is_dir():
                raise StoreError(f"The store {path} is a file; give the path of a directory.")
            if not _has_database(path):
                _check_unfinished(path)
            if create:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif not _has_database(path):
                _check_remains(path)
                raise no_store(path)
        except OSError as error:
            raise StoreError(f"The store {path} cannot be created: {error.strerror}.") from None
        kind = file_system(path, mounts=_mounts() if mounts is None else mounts)
        if kind in _NETWORK_FILE_SYSTEMS:
            raise StoreError(f"The store {path} is on a network file system ({kind}), which cannot keep it safe.")
        self._lock: int | None = None
        self._store = ""
        self._socket = ""

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
        try:
            if not _has_database(self.path):
                _check_remains(self.path)
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        last = self.owner()
        self._store = last.store if last else ""
        self.announce()

    def _make_private(self) -> None:
        """Makes the directory readable by its owner only: it holds runs, and the keys that encrypt secrets."""
        try:
            mode = stat.S_IMODE(self.path.stat().st_mode)
            if not mode & _OTHERS:
                return
            if not self.database.exists() and set(os.listdir(self.path)) - {LOCK, *_SOCKETS}:
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

    def opened(self, store: str) -> None:
        """Records that this directory has held a store: if the database is lost, no new one may take its place."""
        if store != self._store:
            self._store = store
            self.announce()

    def announce(self, *, socket: str = "") -> None:
        """Writes who owns the store into the lock file."""
        assert self._lock is not None
        self._socket = socket or self._socket
        data = msgspec.json.encode(Owner(os.getpid(), gethostname(), socket=self._socket, store=self._store))
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, data, 0)

    def owner(self) -> Owner | None:
        return _last_owner(self.path)

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _last_owner(path: Path) -> Owner | None:
    try:
        return msgspec.json.decode((path / LOCK).read_bytes(), type=Owner)
    except (OSError, msgspec.DecodeError):
        return None


def _has_database(path: Path) -> bool:
    """An empty file does not count: SQLite creates it before the first table."""
    return _size(path / DATABASE) > 0


def _check_remains(path: Path) -> None:
    """Raises `StoreError` if the directory held a store whose database is now missing.

    Opening it would create a new database, and SQLite would discard the old one's write-ahead log.
    """
    owner = _last_owner(path)
    if _size(path / WAL) > 0:
        remains = f"its write-ahead log ({WAL}) is there"
    elif key := next((name for name in _KEYS if (path / name).exists()), None):
        remains = f"its {key} is there"
    elif owner is not None and (owner.store or owner.admin_socket or owner.socket):
        remains = "a server has used it"
    else:
        return
    state = "empty" if (path / DATABASE).exists() else "missing"
    raise StoreError(
        f"The store {path} has lost its database: {DATABASE} is {state}, but {remains}. Put the database back, or move"
        " the directory aside and restore a backup."
    )


def drafts_of(path: Path) -> list[Path]:
    """Returns the directories of unfinished copies that would become the store at `path`."""
    found = path.absolute().parent.glob(f".{glob.escape(path.name)}.????????")
    # The mark comes right after the directory, and goes right before it gets its name.
    return sorted(draft for draft in found if any((draft / name).exists() for name in (MARK, f"{MARK}.new", DATABASE)))


def _check_unfinished(path: Path) -> None:
    """Raises `StoreError` if a restore to `path` was cut off: a new store would hide that."""
    if drafts := drafts_of(path):
        raise StoreError(
            f"There is no store at {path} yet: a restore to it was cut off, or is still under way, and {drafts[0]} is"
            f" what it has written. Restore it again with `weftline restore BACKUP --db {shlex.quote(str(path))}`; to"
            " begin with an empty store instead, remove that directory first."
        )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def no_store(path: Path) -> StoreError:
    near = [one for one in sorted(path.absolute().parent.glob(f"*/{DATABASE}")) if one.parent != path.absolute()]
    if path == Path(DEFAULT_DB) and near:
        there = " or ".join([f"`--db {shlex.quote(f'./{one.parent.name}')}`" for one in near[:_MAX_NEAR]])
        return StoreError(f"There is no store at {path}, but there is one at {there}.")
    return StoreError(f"There is no store at {path}; `weftline serve --db {shlex.quote(str(path))}` creates one.")


_MAX_NEAR = 3


def file_system(path: Path, *, mounts: str) -> str:
    """The type of the file system that holds `path`, according to a table like /proc/mounts; "" if it is not listed."""
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
