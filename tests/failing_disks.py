# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Disks that fail, for tests of the SQLite store: one that returns errors, one whose power can be cut.

Both are SQLite file systems; a store is put on one with `SqliteStore(path, vfs=disk.vfs)`:

    with FaultyDisk() as disk:
        store = SqliteStore(path, vfs=disk.vfs)
        disk.fail("xWrite", code=apsw.SQLITE_FULL, nth=3)

    with PowerDisk() as disk:
        store = SqliteStore(path, vfs=disk.vfs)
        ...
        disk.cut().restore(elsewhere, unsynced="torn")
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

import apsw
from msgspec import Struct

Call: TypeAlias = Literal["xOpen", "xRead", "xWrite", "xTruncate", "xSync", "xFileSize", "xDelete"]
Unsynced: TypeAlias = Literal["lost", "torn", "reordered", "kept"]
"""Which unsynced writes the disk keeps when the power goes: none of them; the first half, and the first part of the
next one; only the second half; all of them.
"""

_numbers = itertools.count(1)


class Fault(Struct, frozen=True):
    """Makes the `nth` call from now and the `times - 1` after it fail with `code`."""

    call: Call
    code: int
    nth: int
    times: int
    file: str


class FaultyDisk:
    """Passes every call on to the real file system, except those set to fail.

    A write that fails leaves half of its bytes. SQLite ignores failures of a checkpoint, but a file system written in
    Python cannot hide them: they surface in the COMMIT that started it. Faults of the log file alone avoid this.
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[Call, str]] = Counter()
        """How often each call was made between `fail` and `heal`, by call and file ending ("" is the database)."""
        self.hits = 0
        """How many calls failed since the last `fail`."""
        self._fault: Fault | None = None
        self.vfs = f"weftline-faulty-{next(_numbers)}"
        self._registered = _FaultyVfs(self)

    def fail(self, call: Call, *, code: int, nth: int = 1, times: int = 1, file: str = "-wal") -> None:
        """Makes the `nth` call from now fail, on the file whose name is the database's plus `file`."""
        self._fault = Fault(call, code, nth, times, file)
        self.calls.clear()
        self.hits = 0

    def heal(self) -> None:
        self._fault = None

    def called(self, call: Call, name: str) -> Exception | None:
        """Counts a call and returns the error that it is to fail with."""
        fault = self._fault
        if fault is None:
            return None
        file = _ending(name)
        self.calls[call, file] += 1
        if (call, file) != (fault.call, fault.file):
            return None
        if not fault.nth <= self.calls[call, file] < fault.nth + fault.times:
            return None
        self.hits += 1
        return apsw.exception_for(fault.code)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._registered.unregister()


class _FaultyVfs(apsw.VFS):
    def __init__(self, disk: FaultyDisk) -> None:
        self._disk = disk
        super().__init__(disk.vfs, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if error := self._disk.called("xOpen", _path(name)):
            raise error
        return _FaultyFile(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if error := self._disk.called("xDelete", filename):
            raise error
        super().xDelete(filename, syncdir)


class _FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._name = _path(name)
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:
        if error := self._disk.called("xRead", self._name):
            raise error
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        if error := self._disk.called("xWrite", self._name):
            super().xWrite(bytes(data)[: len(data) // 2], offset)
            raise error
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        if error := self._disk.called("xTruncate", self._name):
            raise error
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        if error := self._disk.called("xSync", self._name):
            raise error
        super().xSync(flags)

    def xFileSize(self) -> int:
        if error := self._disk.called("xFileSize", self._name):
            raise error
        return super().xFileSize()


Change: TypeAlias = tuple[int, bytes | None]
"""Offset and bytes of a write; size and None of a truncation."""


class Wreck(Struct, frozen=True):
    """What the disk held when the power went: for each file, what was synced and the changes since."""

    files: dict[str, tuple[bytes, tuple[Change, ...]]]

    def restore(self, to: Path, *, unsynced: Unsynced = "lost") -> None:
        """Writes the files, as the next start would find them, into the new directory `to`."""
        to.mkdir(mode=0o700, parents=True)
        for name, (synced, changes) in self.files.items():
            content = bytearray(synced)
            for change in _surviving(changes, unsynced):
                _apply(content, change)
            (to / os.path.basename(name)).write_bytes(content)


class PowerDisk:
    """Tracks, next to the real files, what a power cut would leave of them: only synced data is certain to stay.

    `on_sync` is called when a sync begins, before any of it is durable. Killing a process cannot reveal a missing sync,
    since the system still has its writes; this can.
    """

    def __init__(self, *, on_sync: Callable[[], None] | None = None) -> None:
        self.on_sync = on_sync
        self.vfs = f"weftline-power-{next(_numbers)}"
        self.synced: dict[str, bytearray] = {}
        self.changes: dict[str, list[Change]] = {}
        self._registered = _PowerVfs(self)

    def cut(self) -> Wreck:
        """What is left if the power goes now. Call it while nothing writes, or from `on_sync`."""
        names = self.synced.keys() | self.changes.keys()
        return Wreck(
            {name: (bytes(self.synced.get(name, b"")), tuple(self.changes.get(name, ()))) for name in sorted(names)}
        )

    def sync(self, name: str) -> None:
        if self.on_sync is not None:
            self.on_sync()
        content = self.synced.setdefault(name, bytearray())
        for change in self.changes.pop(name, []):
            _apply(content, change)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._registered.unregister()


class _PowerVfs(apsw.VFS):
    def __init__(self, disk: PowerDisk) -> None:
        self._disk = disk
        super().__init__(disk.vfs, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = _path(name)
        if path and path not in self._disk.synced and os.path.exists(path):
            self._disk.synced[path] = bytearray(Path(path).read_bytes())
        return _PowerFile(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._disk.synced.pop(filename, None)
        self._disk.changes.pop(filename, None)


class _PowerFile(apsw.VFSFile):
    def __init__(self, disk: PowerDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._name = _path(name)
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        if self._name:
            self._disk.changes.setdefault(self._name, []).append((offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        if self._name:
            self._disk.changes.setdefault(self._name, []).append((newsize, None))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        if self._name:
            self._disk.sync(self._name)


def _surviving(changes: tuple[Change, ...], unsynced: Unsynced) -> tuple[Change, ...]:
    half = len(changes) // 2
    match unsynced:
        case "lost":
            return ()
        case "kept":
            return changes
        case "reordered":
            return changes[half:]
        case "torn":
            place, data = changes[half] if changes else (0, None)
            torn: tuple[Change, ...] = () if data is None else ((place, data[: len(data) // 2 + 1]),)
            return (*changes[:half], *torn)


def _apply(content: bytearray, change: Change) -> None:
    place, data = change
    if data is None:
        del content[place:]
        return
    if len(content) < place:
        content.extend(bytes(place - len(content)))
    content[place : place + len(data)] = data


def _path(name: str | apsw.URIFilename | None) -> str:
    """The file's path, "" for a temporary file."""
    return name.filename() if isinstance(name, apsw.URIFilename) else (name or "")


def _ending(name: str) -> str:
    base = os.path.basename(name)
    return next((ending for ending in ("-wal", "-journal") if base.endswith(ending)), "")
