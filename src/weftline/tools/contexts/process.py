"""Runs commands as processes of this machine, on files below one of its directories.

Files are confined (`rooted_files`); commands are not: they have the rights of the user that runs Weftline. They do not
see our environment, they end in time, and they leave nothing running: on Linux this includes processes that created
their own session, unless their supervisor is killed first, or kept from acting by being stopped again and again.
Untrusted commands belong in `SandboxedContext`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

from weftline.tools.contexts.base import (
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_OUTPUT_BYTES,
    TIMEOUT_S,
    Capabilities,
    Command,
    ContextDestroyed,
    ExecResult,
    FileBytes,
    Handle,
    Listing,
)
from weftline.tools.contexts.rooted_files import RootedFiles
from weftline.tools.contexts.running import STOP_GRACE_S, Execution, Program
from weftline.tools.workers import shared_workers

T = TypeVar("T")

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""All that commands inherit of our own environment, which may hold secrets."""
_CANNOT_RUN = 126


class _Home:
    """The directory that a handle refers to."""

    def __init__(self, files: RootedFiles, env: Mapping[str, str], *, made: bool) -> None:
        self.files = files
        self.env = env
        self.made = made
        self.running: set[Execution] = set()


class ProcessContext:
    """Runs commands on this machine, as its user.

    Args:
        env: Variables for all commands, besides `INHERITED` and `TERM=dumb`.
        timeout_s: After this a command is killed, unless it is given a time of its own.
        max_output_bytes: How much of each output of a command is kept; the beginning is dropped.
        stop_grace_s: Between SIGTERM and SIGKILL.
        hard_links: False refuses files with several hard links, as one may be outside.
    """

    type = "process"
    capabilities = Capabilities(shell=True, filesystem=True, network=True)

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        stop_grace_s: float = STOP_GRACE_S,
        hard_links: bool = True,
    ) -> None:
        self._env = dict(env or {})
        self._timeout_s = timeout_s
        self._max_output_bytes = max_output_bytes
        self._stop_grace_s = stop_grace_s
        self._hard_links = hard_links
        self._homes: dict[str, _Home] = {}

    async def spawn(self, *, cwd: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None) -> Handle:
        made = cwd is None
        root = tempfile.mkdtemp(prefix="weftline_context_") if cwd is None else cwd
        files = RootedFiles(root, hard_links=self._hard_links)
        handle = Handle(f"{self.type}-{secrets.token_hex(6)}", self.type, files.root)
        self._homes[handle.id] = _Home(files, {**_environment(), **self._env, **(env or {})}, made=made)
        return handle

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
        home = self._home(handle)
        where = os.path.join(handle.cwd, cwd) if cwd else handle.cwd
        variables = {**home.env, **(env or {})}
        argv = [_shell(), "-c", command] if isinstance(command, str) else list(command)
        execution = Execution(
            Program(
                argv=self.wrapped(argv, root=home.files.root, cwd=where, env=variables),
                cwd=self.starts_in(home.files.root, where),
                env=variables,
                timeout_s=self._timeout_s if timeout_s is None else timeout_s,
                stdin=stdin,
                max_output_bytes=self._max_output_bytes,
                stop_grace_s=self._stop_grace_s,
            )
        )
        home.running.add(execution)
        try:
            result = await execution.result()
        except (OSError, ValueError) as error:  # too long, or with a NUL byte
            return ExecResult(stdout=b"", stderr=f"{error}\n".encode(errors="replace"), exit_code=_CANNOT_RUN)
        finally:
            home.running.discard(execution)
        self._home(handle)
        return result

    async def read_file(self, handle: Handle, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> FileBytes:
        return await _in_thread(partial(self._home(handle).files.read, path, max_bytes=max_bytes))

    async def write_file(self, handle: Handle, path: str, data: bytes) -> str:
        return await _in_thread(partial(self._home(handle).files.write, path, data))

    async def list_files(
        self,
        handle: Handle,
        path: str = ".",
        *,
        recursive: bool = False,
        skip: Collection[str] = (),
        max_entries: int = MAX_ENTRIES,
    ) -> Listing:
        files = self._home(handle).files
        return await _in_thread(partial(files.list, path, recursive=recursive, skip=skip, max_entries=max_entries))

    async def destroy(self, handle: Handle) -> None:
        home = self._homes.pop(handle.id, None)
        if home is None:
            return
        under_way = list(home.running)
        for execution in under_way:
            execution.stop()
        for execution in under_way:
            await execution.over()
        if home.made:
            await _in_thread(partial(shutil.rmtree, home.files.root, ignore_errors=True))

    def wrapped(self, argv: list[str], *, root: str, cwd: str, env: Mapping[str, str]) -> list[str]:
        """Returns the program to start for `argv`; a context that confines commands prepends its own."""
        return argv

    def starts_in(self, root: str, cwd: str) -> str:
        """Returns the directory in which that program is started."""
        return cwd

    def _home(self, handle: Handle) -> _Home:
        home = self._homes.get(handle.id)
        if home is None:
            raise ContextDestroyed(f"the {handle.type} context {handle.id} was destroyed")
        return home


async def _in_thread(call: Callable[[], T]) -> T:
    return await shared_workers().run(call)


def _environment() -> dict[str, str]:
    # There is no terminal to interpret colours and cursor movements.
    return {name: os.environ[name] for name in INHERITED if name in os.environ} | {"TERM": "dumb"}


def _shell() -> str:
    """Returns the shell: bash if possible, as models write for it."""
    return shutil.which("bash") or "/bin/sh"
