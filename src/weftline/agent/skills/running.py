"""Running commands and scripts of skills: the seam, and the plainest way to do it.

`ProcessRuns` starts a process of its own group on this machine, with a small environment, and kills the group whole
when it is done, out of time or no longer wanted. What left the group (a daemon that called setsid) goes on, but is not
waited for.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from msgspec import Struct

MAX_OUTPUT_BYTES = 32_768
ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "TERM", "TMPDIR", "TZ", "USER")
"""What a process is told of this one's environment: nothing that may hold a secret."""

_CHUNK = 65_536
_LAST_BYTES = 1 << 20
_LAST_WAIT_S = 5.0


class Outcome(Protocol):
    """How a command ended, with the end of what it printed and how many bytes before that were dropped."""

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
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        timed_out = False
        with _Tail(self._max_output_bytes) as out, _Tail(self._max_output_bytes) as err:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out.entrance,
                stderr=err.entrance,
                cwd=cwd or self._root,
                env=environment,
                start_new_session=True,
            )
            out.shut_entrance()
            err.shut_entrance()
            try:
                async with asyncio.timeout(timeout_s):
                    await process.wait()
            except TimeoutError:
                timed_out = True
            except asyncio.CancelledError:
                _kill_group(process.pid)
                # Dead in a moment; the loop may be closed right after this and should not find it half dead.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WAIT_S):
                        await process.wait()
                raise
            _kill_group(process.pid)
            code = await process.wait()
            exit_code = code if code >= 0 else 128 - code
            # Nothing more is waited for: a child that left the group may hold the pipe open for ever.
            out.take_rest()
            err.take_rest()
            return Ran(out.kept(), err.kept(), exit_code, timed_out, out.dropped, err.dropped)


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


class _Tail:
    """A pipe of which the last `size` bytes are kept; it never fills up, so nobody waits to write to it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept = bytearray()
        self.dropped = 0
        self._exit, self.entrance = os.pipe()
        self._entrance_open = True
        os.set_blocking(self._exit, False)
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> _Tail:
        self._loop.add_reader(self._exit, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._exit)
        os.close(self._exit)
        self.shut_entrance()

    def shut_entrance(self) -> None:
        """The process has a copy; as long as this one is open too, the pipe does not end."""
        if self._entrance_open:
            self._entrance_open = False
            os.close(self.entrance)

    def take_rest(self) -> None:
        """What is in the pipe now; bounded, as somebody may still be writing."""
        taken = 0
        while taken < _LAST_BYTES and (count := self._take()):
            taken += count

    def kept(self) -> bytes:
        self._trim()
        return bytes(self._kept)

    def _take(self) -> int:
        try:
            piece = os.read(self._exit, _CHUNK)
        except BlockingIOError:
            return 0
        if not piece:
            self._loop.remove_reader(self._exit)
            return 0
        self._kept += piece
        if len(self._kept) > 4 * (self._size + _CHUNK):
            self._trim()
        return len(piece)

    def _trim(self) -> None:
        excess = len(self._kept) - self._size
        if excess > 0:
            del self._kept[:excess]
            self.dropped += excess
