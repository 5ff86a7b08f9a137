"""Accesses files below one directory and nothing else, whatever links, dots and races there are.

A path is walked step by step, one open directory after the other, and no step follows a link: a link is read and its
target walked in the same way. There is no moment between check and use in which somebody could swap a directory for a
link, because what is opened is never named by a path again.

Files are replaced, not written in place. So a hard link to a file elsewhere can be read (unless `hard_links` is False),
but writing to it leaves the file elsewhere alone.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections import deque
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager, suppress
from itertools import islice
from typing import NamedTuple

from weftline.tools.contexts.base import (
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    Entry,
    FileBytes,
    FileError,
    FileErrorKind,
    FileKind,
    Listing,
    order,
)

MAX_LINKS = 40
MAX_PATH_CHARS = 4096
_PATH_ONLY: int = getattr(os, "O_PATH", 0)
"""If the system supports it, this opens directories that may be traversed but not listed."""
_PASS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | _PATH_ONLY
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20

_KINDS: dict[int, FileErrorKind] = {
    errno.ENOENT: "missing",
    errno.EISDIR: "directory",
    errno.ENOTDIR: "not_directory",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.ELOOP: "outside",
    errno.ENXIO: "special",
}


class _Place(NamedTuple):
    """An open directory below the root, and the name of the requested entry in it; None for the directory itself."""

    folder: int
    names: tuple[str, ...]
    name: str | None

    @property
    def path(self) -> str:
        return "/".join((*self.names, self.name) if self.name is not None else self.names) or "."


class RootedFiles:
    """The files below `root`. All methods block, and raise `FileError`."""

    def __init__(self, root: str | os.PathLike[str], *, hard_links: bool = True) -> None:
        self.root = os.path.realpath(root)
        self._spelled = os.path.abspath(root)
        self._hard_links = hard_links

    def read(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> FileBytes:
        with self._at(path) as place:
            name = self._regular(place, path)
            fd = os.open(name, _READ, dir_fd=place.folder)
            try:
                # What was a file a moment ago may be a pipe by now.
                self._check(os.fstat(fd), path)
                data = _read_up_to(fd, max_bytes + 1)
            finally:
                os.close(fd)
            return FileBytes(place.path, data[:max_bytes], len(data) <= max_bytes)

    def write(self, path: str, data: bytes) -> str:
        with self._at(path, create=True) as place:
            if place.name is None:
                raise FileError("directory", path)
            try:
                before = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
            except FileNotFoundError:
                before = None
            else:
                self._check(before, path)
                # Replacing would only need permission for the directory, not for the file itself.
                if not os.access(place.name, os.W_OK, dir_fd=place.folder, effective_ids=True, follow_symlinks=False):
                    raise FileError("denied", path)
            _replace(place.folder, place.name, data, before)
            return place.path

    def list(
        self, path: str, *, recursive: bool = False, skip: Collection[str] = (), max_entries: int = MAX_ENTRIES
    ) -> Listing:
        with self._at(path) as place:
            top = place.path
            fd = os.open("." if place.name is None else place.name, _LIST, dir_fd=place.folder)
            found: list[Entry] = []
            try:
                complete = _collect(
                    fd, "" if top == "." else top + "/", found, recursive=recursive, skip=skip, max_entries=max_entries
                )
            finally:
                os.close(fd)
            return Listing(top, tuple(sorted(found, key=order)), complete)

    def _regular(self, place: _Place, path: str) -> str:
        if place.name is None:
            raise FileError("directory", path)
        # Checking first avoids opening a device, which may already have an effect.
        self._check(os.stat(place.name, dir_fd=place.folder, follow_symlinks=False), path)
        return place.name

    def _check(self, found: os.stat_result, path: str) -> None:
        if stat.S_ISDIR(found.st_mode):
            raise FileError("directory", path)
        if stat.S_ISLNK(found.st_mode):
            raise FileError("outside", path, "it became a link while it was being opened")
        if not stat.S_ISREG(found.st_mode):
            raise FileError("special", path)
        if not self._hard_links and found.st_nlink > 1:
            raise FileError("linked", path)

    @contextmanager
    def _at(self, path: str, *, create: bool = False) -> Generator[_Place]:
        """Yields where `path` leads. With `create`, missing directories on the way are created."""
        if "\0" in path or len(path) > MAX_PATH_CHARS:
            raise FileError("missing", path)
        fds: list[int] = []
        try:
            fds.append(os.open(self.root, os.O_DIRECTORY | os.O_CLOEXEC | _PATH_ONLY))
            names, name = self._descend(fds, deque(self._parts(path, path)), path, create=create)
            yield _Place(fds[-1], tuple(names), name)
        except OSError as error:
            raise _file_error(error, path) from None
        finally:
            for fd in fds:
                os.close(fd)

    def _descend(self, fds: list[int], parts: deque[str], path: str, *, create: bool) -> tuple[list[str], str | None]:
        """Opens the directories on the way, one after the other, into `fds`."""
        names: list[str] = []
        links = 0
        while parts:
            part = parts.popleft()
            if part == "..":
                if not names:
                    raise FileError("outside", path)
                names.pop()
                os.close(fds.pop())
                continue
            target = _link_target(part, fds[-1])
            if target is not None:
                links += 1
                if links > MAX_LINKS:
                    raise FileError("failed", path, "too many links")
                if target.startswith("/"):
                    while len(fds) > 1:
                        os.close(fds.pop())
                    names.clear()
                parts.extendleft(reversed(self._parts(target, path)))
                continue
            if not parts:
                return names, part
            if len(names) >= MAX_DEPTH:
                raise FileError("failed", path, "too many levels")
            try:
                fds.append(os.open(part, _PASS, dir_fd=fds[-1]))
            except FileNotFoundError:
                if not create:
                    raise
                straight = _simplified([part, *parts])
                if straight != [part, *parts]:  # nothing may be created before it is clear that the path stays inside
                    parts = deque(straight)
                    continue
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=fds[-1])
                fds.append(os.open(part, _PASS, dir_fd=fds[-1]))
            names.append(part)
        return names, None

    def _parts(self, path: str, asked: str) -> list[str]:
        """Returns the steps from the root, or from the location of a relative link."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if not path.startswith("/"):
            return parts
        for spelling in (self.root, self._spelled):
            home = [part for part in spelling.split("/") if part]
            if parts[: len(home)] == home:
                return parts[len(home) :]
        raise FileError("outside", asked)


def _link_target(name: str, folder: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):  # not a link, or missing, and maybe about to be created
            return None
        raise


def _simplified(parts: Iterable[str]) -> list[str]:
    """Simplifies the steps below a directory that does not exist yet, where `..` undoes the step before it."""
    kept: list[str] = []
    for part in parts:
        if part == ".." and kept and kept[-1] != "..":
            kept.pop()
        else:
            kept.append(part)
    return kept


def _read_up_to(fd: int, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    while max_bytes > 0 and (piece := os.read(fd, min(max_bytes, _CHUNK_BYTES))):
        pieces.append(piece)
        max_bytes -= len(piece)
    return b"".join(pieces)


def _replace(folder: int, name: str, data: bytes, before: os.stat_result | None) -> None:
    """Replaces a file with a new one, which keeps the mode and, if permitted, the owner."""
    draft = f".{secrets.token_hex(8)}.weftline"
    fd = os.open(draft, _CREATE, 0o666, dir_fd=folder)
    try:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
            if before is not None:
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    with suppress(OSError):
                        os.fchown(fd, before.st_uid, before.st_gid)
                os.fchmod(fd, stat.S_IMODE(before.st_mode) & 0o777)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    with suppress(OSError):  # some file systems cannot; the file is complete nevertheless
        own = os.open(".", _LIST, dir_fd=folder)
        try:
            os.fsync(own)
        finally:
            os.close(own)


def _collect(
    fd: int,
    prefix: str,
    found: list[Entry],
    *,
    recursive: bool,
    skip: Collection[str],
    max_entries: int,
    levels: int = MAX_DEPTH,
) -> bool:
    """Adds the entries of an open directory to `found`; returns whether these were all."""
    room = max_entries - len(found)
    with os.scandir(fd) as entries:
        here = [Entry(entry.name, _kind(entry)) for entry in islice(entries, room + 1)]
    here.sort(key=order)
    complete = len(here) <= room
    here = here[:room]
    found += [Entry(prefix + entry.path, entry.kind) for entry in here]
    if not recursive:
        return complete
    for name in _folders(here, skip):
        if not levels or len(found) >= max_entries:
            return False
        try:
            below = os.open(name, _LIST, dir_fd=fd)
        except OSError:
            continue  # removed meanwhile, a link by now, or not readable
        try:
            whole = _collect(
                below,
                f"{prefix}{name}/",
                found,
                recursive=True,
                skip=skip,
                max_entries=max_entries,
                levels=levels - 1,
            )
        finally:
            os.close(below)
        complete = whole and complete
    return complete


def _folders(entries: Iterable[Entry], skip: Collection[str]) -> list[str]:
    return [entry.path for entry in entries if entry.kind == "directory" and entry.path not in skip]


def _kind(entry: os.DirEntry[str]) -> FileKind:
    try:
        if entry.is_symlink():
            return "link"
        if entry.is_dir(follow_symlinks=False):
            return "directory"
        return "file" if entry.is_file(follow_symlinks=False) else "other"
    except OSError:
        return "other"


def _file_error(error: OSError, path: str) -> FileError:
    return FileError(_KINDS.get(error.errno or 0, "failed"), path, error.strerror or "")
