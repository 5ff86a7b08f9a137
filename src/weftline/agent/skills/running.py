"""Runs commands and scripts of skills: the protocol, and its simplest implementation.

`ProcessRuns` starts a process on this machine, with a small environment. When it ends, times out or is cancelled, no
process that it started is left: on Linux this includes those that created their own session.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from weftline.tools.contexts.running import Execution, Program

MAX_OUTPUT_BYTES = 32_768
ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "TERM", "TMPDIR", "TZ", "USER")
"""What a process inherits of this one's environment: nothing that may hold a secret."""


class Outcome(Protocol):
    """The outcome of a command, with the end of its output and the number of bytes dropped before that."""

    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def exit_code(self) -> int: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def dropped_stdout(self) -> int: ...
    @property
    def dropped_stderr(self) -> int: ...


class Runs(Protocol):
    """Where commands of skills are run."""

    async def exec(self, command: str | Sequence[str], *, cwd: str | None, timeout_s: float) -> Outcome:
        """Runs a command line (for a shell) or a list of arguments (without one) to its end.

        Without `cwd` it runs where the agent's other commands do. Cancelling this kills what was started.

        Raises:
            OSError: if it cannot be started.
        """
        ...


class Ran(Struct, frozen=True):
    """An `Outcome`. A command that was ended by signal N has exit code 128 + N."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    timed_out: bool = False
    dropped_stdout: int = 0
    dropped_stderr: int = 0


class ProcessRuns:
    """Runs on this machine, as this user, without further confinement."""

    def __init__(self, *, root: str | os.PathLike[str] | None = None, max_output_bytes: int = MAX_OUTPUT_BYTES) -> None:
        self._root = None if root is None else os.fspath(root)
        self._max_output_bytes = max_output_bytes

    async def exec(self, command: str | Sequence[str], *, cwd: str | None, timeout_s: float) -> Ran:
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        where = cwd or self._root or os.getcwd()
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        program = Program(
            argv=argv, cwd=where, env=environment, timeout_s=timeout_s, max_output_bytes=self._max_output_bytes
        )
        execution = Execution(program)
        ended = await execution.result()
        if not execution.began and not ended.timed_out:
            raise OSError(ended.stderr.decode(errors="replace").strip() or f"{argv[0]} could not be started")
        return Ran(
            ended.stdout,
            ended.stderr,
            ended.exit_code,
            ended.timed_out,
            ended.dropped_stdout,
            ended.dropped_stderr,
        )
