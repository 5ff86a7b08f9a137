"""The interface of the contexts that built-in tools work in.

`spawn` creates a place and returns its handle. Commands and files of one handle belong together; two handles share only
what they were given. `destroy` ends what still runs and removes what the context itself created.
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
"""How much of each of a command's two outputs is kept; the beginning is dropped."""
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_ENTRIES = 100_000
MAX_DEPTH = 100
TIMED_OUT = 124
"""The exit code of a command that took too long, as in `timeout`."""

Command: TypeAlias = str | Sequence[str]
"""A command line for the shell, or a program with its arguments, without a shell."""
FileKind: TypeAlias = Literal["file", "directory", "link", "other"]
FileErrorKind: TypeAlias = Literal[
    "missing", "directory", "not_directory", "outside", "special", "linked", "denied", "too_large", "failed"
]


class ContextUnavailable(WeftlineError):
    """The context cannot work on this machine; the message says what to install or to allow."""

    default_code = "context_unavailable"


class ContextDestroyed(WeftlineError):
    """The handle was destroyed, or does not belong to this context."""

    default_code = "context_destroyed"


class FileError(Exception):
    """A file cannot be read, written or listed; `kind` says why."""

    def __init__(self, kind: FileErrorKind, path: str, reason: str = "") -> None:
        super().__init__(f"{path}: {reason or kind}")
        self.kind: FileErrorKind = kind
        self.path = path
        self.reason = reason


class Capabilities(Struct, frozen=True, kw_only=True):
    """The features that a context supports. Tools that need something else are not offered to the model."""

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
    """The outcome of a command. If signal N ended it, its exit code is 128 + N."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    timed_out: bool = False
    dropped_stdout: int = 0
    """How many bytes were dropped from the beginning because there were too many."""
    dropped_stderr: int = 0


class FileBytes(Struct, frozen=True):
    """A file's content, or only its beginning if it is larger than requested."""

    path: str
    """The real path, relative to the handle's directory and with links resolved."""
    data: bytes
    complete: bool = True


class Entry(Struct, frozen=True):
    """An entry of a directory. `path` is relative to the handle's directory."""

    path: str
    kind: FileKind


class Listing(Struct, frozen=True):
    path: str
    """The real path of the directory, relative to the handle's, which is `.`"""
    entries: tuple[Entry, ...]
    """Sorted by the parts of their paths."""
    complete: bool = True
    """False if there were more entries or levels than are listed."""


class ExecutionContext(Protocol):
    """A place for commands and files.

    Paths are text in which bytes that are not UTF-8 are `surrogateescape`d, as everywhere in Python. File methods are
    confined to the handle's directory and raise `FileError`.
    """

    @property
    def type(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...

    async def spawn(self, *, cwd: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None) -> Handle:
        """Creates a new place. Without `cwd` it has a new, empty directory. `env` applies to all its commands.

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
            ContextDestroyed: if the handle is gone, or is destroyed meanwhile.
        """
        ...

    async def read_file(self, handle: Handle, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> FileBytes: ...

    async def write_file(self, handle: Handle, path: str, data: bytes) -> str:
        """Creates or replaces a file atomically, with its directories. Returns its real path."""
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
        """Lists the entries of a directory, and with `recursive` of those below it except the ones named in `skip`.

        Links are listed but not followed.
        """
        ...

    async def destroy(self, handle: Handle) -> None:
        """May be called twice."""
        ...


def order(entry: Entry) -> list[str]:
    """Returns the key by which listings are sorted."""
    return entry.path.split("/")


class ListsOneDirectory(Protocol):
    async def list_directory(self, handle: Handle, path: str) -> Listing: ...


async def walk(
    lister: ListsOneDirectory, handle: Handle, path: str, *, recursive: bool, skip: Collection[str], max_entries: int
) -> Listing:
    """Implements `list_files` for a context that can only list one directory at a time."""
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
            except FileError:
                continue  # removed meanwhile, or not readable
            waiting.append((below.entries, depth + 1))
    return Listing(top.path, tuple(sorted(found, key=order)), complete)
