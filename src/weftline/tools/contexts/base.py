"""What built-in tools ask of the place they work in.

`spawn` makes a place and returns its handle. Commands and files of one handle belong together; two handles share
nothing that they were not given. `destroy` ends what still runs and removes what the context itself made.
`weftline.testing.contexts` checks that a context keeps these promises.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from weftline.errors import WeftlineError

TIMEOUT_S = 30.0
MAX_OUTPUT_BYTES = 10 * 1024 * 1024
"""How much of each of its two outputs is kept of a command; the end is."""
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_ENTRIES = 100_000
MAX_DEPTH = 100
TIMED_OUT = 124
"""The exit code of a command that took too long, as `timeout` has it."""

Command: TypeAlias = str | Sequence[str]
"""A command line for the shell, or a program with its arguments, which no shell reads."""
FileKind: TypeAlias = Literal["file", "directory", "link", "other"]
Trouble: TypeAlias = Literal[
    "missing", "directory", "not_directory", "outside", "special", "linked", "denied", "too_large", "failed"
]


class ContextUnavailable(WeftlineError):
    """The context cannot work on this machine; the message says what to install or to allow."""

    default_code = "context_unavailable"


class ContextDestroyed(WeftlineError):
    """The handle was destroyed, or never was one of this context."""

    default_code = "context_destroyed"


class FileTrouble(Exception):
    """A file cannot be read, written or listed; `kind` says why."""

    def __init__(self, kind: Trouble, path: str, reason: str = "") -> None:
        super().__init__(f"{path}: {reason or kind}")
        self.kind: Trouble = kind
        self.path = path
        self.reason = reason


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a context has. Tools that need something else are not offered to the model."""

    shell: bool = False
    filesystem: bool = False
    network: bool = False
    gpu: bool = False


class Handle(Struct, frozen=True):
    """One place of a context. Relative paths and commands start in `cwd`."""

    id: str
    type: str
    cwd: str


class ExecResult(Struct, frozen=True, kw_only=True):
    """What became of a command. A command that was ended by signal N has exit code 128 + N."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    timed_out: bool = False
    dropped_stdout: int = 0
    """Bytes that were dropped from the beginning because there were too many."""
    dropped_stderr: int = 0


class FileBytes(Struct, frozen=True):
    """A file's content, or its first bytes if it is larger than was asked for."""

    path: str
    """Where it really is, relative to the handle's directory and with links resolved."""
    data: bytes
    complete: bool = True


class Entry(Struct, frozen=True):
    """Something in a directory. `path` is relative to the handle's directory."""

    path: str
    kind: FileKind


class Listing(Struct, frozen=True):
    path: str
    """Where the directory really is, relative to that of the handle, which is `.`"""
    entries: tuple[Entry, ...]
    """Sorted by the parts of their paths."""
    complete: bool = True
    """False if there were more entries or levels than are listed."""


class ExecutionContext(Protocol):
    """Paths are text in which bytes that are not UTF-8 are `surrogateescape`d, as everywhere in Python. File verbs are
    confined to the handle's directory and raise `FileTrouble`."""

    @property
    def type(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...

    async def spawn(self, *, cwd: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None) -> Handle:
        """A new place. Without `cwd` it has a new, empty directory. `env` is for all its commands.

        Raises:
            ContextUnavailable: if it cannot work here.
        """
        ...

    async def exec(
        self,
        handle: Handle,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Runs a command to its end. After `timeout_s`, and when cancelled, it is killed with all its children.

        Without `stdin` the command reads the end of its input at once.

        Raises:
            ContextDestroyed: if the handle is gone, also when that happens meanwhile.
        """
        ...

    async def read_file(self, handle: Handle, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> FileBytes: ...

    async def write_file(self, handle: Handle, path: str, data: bytes) -> str:
        """Creates or replaces a file, whole or not at all, with its directories. Returns where it really is."""
        ...

    async def list_files(
        self,
        handle: Handle,
        path: str = ".",
        *,
        recursive: bool = False,
        skip: Collection[str] = (),
        max_entries: int = MAX_ENTRIES,
    ) -> Listing:
        """The entries of a directory, and with `recursive` of those below it except the ones named in `skip`.

        Links are listed and not followed.
        """
        ...

    async def destroy(self, handle: Handle) -> None:
        """May be called twice."""
        ...


def order(entry: Entry) -> list[str]:
    """The key by which listings are sorted."""
    return entry.path.split("/")


class ListsOneDirectory(Protocol):
    async def list_directory(self, handle: Handle, path: str) -> Listing: ...


async def walk(
    lister: ListsOneDirectory, handle: Handle, path: str, *, recursive: bool, skip: Collection[str], max_entries: int
) -> Listing:
    """`list_files` for a context that can only list one directory at a time."""
    top = await lister.list_directory(handle, path)
    found: list[Entry] = []
    complete = top.complete
    waiting = deque([(top.entries, 0)])
    while waiting:
        entries, depth = waiting.popleft()
        found += entries[: max_entries - len(found)]
        complete = complete and len(found) < max_entries
        if not recursive:
            break
        for entry in entries:
            if entry.kind != "directory" or entry.path.rpartition("/")[2] in skip:
                continue
            if depth == MAX_DEPTH or len(found) >= max_entries:
                complete = False
                break
            try:
                below = await lister.list_directory(handle, entry.path)
            except FileTrouble:
                continue  # removed meanwhile, or closed to us
            waiting.append((below.entries, depth + 1))
    return Listing(top.path, tuple(sorted(found, key=order)), complete)
