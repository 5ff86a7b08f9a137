"""Opens files of one directory and nothing outside it, whatever links it contains and even if they change meanwhile.

A path is not checked and then opened: it is walked, from one open directory to the next, without letting the system
follow a link. Links are read and walked in the same way, so what is opened is what was looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from weftline import prompts

MAX_LINKS = 40
MAX_STEPS = 256

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a FIFO would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Refused(Exception):
    """The path leads out of the directory, or to something other than a file; the message says which."""


class Opened(NamedTuple):
    """An open file. `path` is its real location, relative to the directory and without links."""

    fd: int
    path: str
    mode: int
    size: int


class Read(NamedTuple):
    """The beginning of a file, and how many bytes come after it."""

    content: bytes
    left: int


@contextmanager
def open_inside(root: Path | str, path: str) -> Generator[Opened]:
    """Opens the regular file at `path`, which is relative to `root`.

    Raises:
        Refused: if the path leads out of `root`, or to anything but a regular file.
        OSError: if there is no such file, or it may not be read.
    """
    with ExitStack() as stack:
        fd, real = _walk(root, path, stack)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Refused(prompts.skills.NOT_A_FILE)
        yield Opened(fd, "/".join(real), found.st_mode, found.st_size)


def read_inside(root: Path | str, path: str, *, max_bytes: int) -> Read:
    """Returns the first `max_bytes` of the file at `path`; raises as `open_inside` does."""
    with open_inside(root, path) as opened:
        content = bytearray()
        while len(content) < max_bytes and (piece := os.read(opened.fd, max_bytes - len(content))):
            content += piece
        # The size may be wrong (/proc) or have changed: reading on shows whether there is more.
        more = len(os.read(opened.fd, 1))
        return Read(bytes(content), max(more, opened.size - len(content)) if more else 0)


def _walk(root: Path | str, path: str, stack: ExitStack) -> tuple[int, list[str]]:
    if "\0" in path:
        raise Refused(prompts.skills.NOT_A_NAME)
    if os.path.isabs(path):
        raise Refused(prompts.skills.NOT_RELATIVE)
    directories = [_open_at(os.fspath(root), _DIRECTORY, None, stack)]
    real: list[str] = []
    waiting = path.split("/")[::-1]
    links = steps = 0
    while waiting:
        name = waiting.pop()
        steps += 1
        if steps > MAX_STEPS:
            raise Refused(prompts.skills.PATH_TOO_LONG)
        if name in ("", "."):
            continue
        if name == "..":
            if not real:
                raise Refused(prompts.skills.OUTSIDE)
            real.pop()
            directories.pop()
            continue
        link = _link(name, directories[-1])
        if link is not None:
            links += 1
            if links > MAX_LINKS:
                raise Refused(prompts.skills.LINKS_IN_A_CIRCLE)
            if os.path.isabs(link):
                raise Refused(prompts.skills.LINK_OUT)
            waiting += link.split("/")[::-1]
            continue
        is_last = not any(step not in ("", ".") for step in waiting)
        try:
            fd = _open_at(name, _FILE if is_last else _DIRECTORY, directories[-1], stack)
        except NotADirectoryError:
            raise FileNotFoundError(path) from None
        real.append(name)
        directories.append(fd)
    return directories[-1], real


def _open_at(path: str, flags: int, directory: int | None, stack: ExitStack) -> int:
    fd = os.open(path, flags, dir_fd=directory)
    stack.callback(os.close, fd)
    return fd


def _link(name: str, directory: int) -> str | None:
    """Returns the target of a link, or None if it is not one; if it becomes one after this, opening it fails."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None
