"""Processes that run code, some of them kept warm.

Such a process has no environment and an empty directory, and is inside bubblewrap where the machine has it. It is the
leader of a process group, and the processes that it starts die with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from asyncio import SubprocessTransport, WriteTransport
from asyncio.subprocess import DEVNULL, PIPE, Process, SubprocessStreamProtocol
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias, cast

from msgspec import Struct

from weftline.sandbox.base import DEFAULT_MEMORY_LIMIT_BYTES, MAX_FRAME_BYTES, SandboxUnavailable

Isolation: TypeAlias = Literal["required", "preferred", "off"]
"""Whether engines run inside bubblewrap: always, or fail; where it works; or never."""

START_TIMEOUT_S = 30.0
IDLE_S = 300.0
"""How long idle processes wait for the next piece of code."""
_MAX_CPU_S = 3600
"""A backstop for a process whose host was killed; while the host lives, the safety cap comes first."""
_MAX_FILES = 256
_STOP_S = 0.2
_UNWRAP_S = 2.0
"""How long bubblewrap may take to notice that its child has been killed."""
_STARTS = 3
"""How many starts are tried: a process may be killed while it starts."""

_log = logging.getLogger("weftline.sandbox")


class Program(Struct, frozen=True, kw_only=True):
    """A program to start. `readable` are the files that it needs and sees inside bubblewrap."""

    args: Sequence[str]
    readable: Sequence[str]
    env: Mapping[str, str] = {}
    has_children: bool = False
    """Whether it starts processes itself, which it cleans up when it is told to stop."""
    may_grow_bytes: int | None = None
    """How much more memory it may allocate once it is ready; the kernel refuses more."""
    holds_the_code: bool = False
    """Whether its memory use is that of the code."""


Installed: TypeAlias = Callable[[int], Program]
"""An engine's program for a memory limit. Raises `SandboxUnavailable` if it is not installed."""


class Engine:
    """One process: it reports that it is ready, and then executes code."""

    def __init__(
        self, process: Process, transport: SubprocessTransport, memory_limit_bytes: int, *, has_children: bool
    ) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._transport = transport
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self.memory_limit_bytes = memory_limit_bytes
        self._has_children = has_children
        self.pid = process.pid
        """The engine itself, which may be a child of bubblewrap."""
        self.own_bytes = 0
        self._full_bytes: int | None = None

    def is_ready(self, program: Program) -> None:
        self.pid = _innermost(self._process.pid)
        if program.holds_the_code:
            self.own_bytes = self.resident_bytes() or 0
        if program.may_grow_bytes is not None:
            self._full_bytes = (_status(self.pid, b"VmData:") or 0) + program.may_grow_bytes * 3 // 4
        _confine(self.pid, program.may_grow_bytes)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    @property
    def waits(self) -> bool:
        """True if it can take code: a process that was killed or stopped meanwhile may not have been noticed."""
        return self.alive and _state(self.pid) not in ("T", "Z", "X")

    def send(self, line: bytes) -> None:
        if self._stdin.is_closing():
            return  # the process is gone, which the end of its output shows; asyncio would log each line
        with suppress(ConnectionError, RuntimeError):
            self._stdin.write(line + b"\n")

    async def drained(self) -> None:
        with suppress(ConnectionError):
            await self._stdin.drain()

    async def line(self) -> bytes:
        """The next line without its newline; empty if there are no more. Raises `ValueError` if it is too long."""
        return (await self._stdout.readline()).rstrip(b"\n")

    async def ended(self) -> int:
        """Waits for the process to end by itself; returns its exit status, negative for a signal."""
        status = await self._process.wait()
        return 128 - status if status > 128 else status  # bubblewrap reports its child's signal as shells do

    async def kill(self) -> None:
        """Ends the process and everything that it has started."""
        if self._has_children and self.alive:
            # Orphans would stay as zombies where nobody reaps them, as in most containers: it reaps its own.
            with suppress(ProcessLookupError, TimeoutError):
                os.kill(self.pid, signal.SIGTERM)
                async with asyncio.timeout(_STOP_S):
                    await self._process.wait()
        elif self.pid != self._process.pid and self.alive:
            # So would the child of bubblewrap; bubblewrap itself ends when its child has.
            with suppress(ProcessLookupError, TimeoutError):
                os.kill(self.pid, signal.SIGKILL)
                self._close_pipes()
                async with asyncio.timeout(_UNWRAP_S):
                    await self._process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._close_pipes()
        await self._process.wait()
        self._transport.close()

    def _close_pipes(self) -> None:
        """Closes the pipes: a process counts as ended only when its pipes do, and a pipe that is not read never
        ends.
        """
        stdin, stdout = (self._transport.get_pipe_transport(number) for number in (0, 1))
        if stdin is not None and not stdin.is_closing():
            cast("WriteTransport", stdin).abort()
        if stdout is not None and not stdout.is_closing():
            stdout.close()

    def resident_bytes(self) -> int | None:
        return _status(self.pid, b"VmRSS:")

    def is_nearly_full(self) -> bool:
        """Returns True if it uses most of the memory that it may; a refused allocation leaves no other trace."""
        held = _status(self.pid, b"VmData:") if self._full_bytes else None
        return held is not None and self._full_bytes is not None and held > self._full_bytes

    def peak_bytes(self) -> int | None:
        """The most memory that the code made the process grow by, if it can be measured."""
        peak = _status(self.pid, b"VmHWM:") if self.own_bytes else None
        return None if peak is None else max(0, peak - self.own_bytes)


class Pool:
    """Processes with the default memory limit wait in `warm` places; others are started when they are needed."""

    def __init__(
        self,
        program: Installed,
        *,
        warm: int,
        isolation: Isolation,
        usual_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
        idle_s: float = IDLE_S,
    ) -> None:
        self._program = program
        self._usual_bytes = usual_bytes
        self._warm = warm
        self._idle_s = idle_s
        self._isolation: Isolation = isolation
        self._idle: deque[Engine] = deque()
        self._refills: set[asyncio.Task[None]] = set()
        self._directory: str | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._guard: AsyncGenerator[None] | None = None
        self._closed = False

    def check(self) -> None:
        self._program(self._usual_bytes)
        if self._isolation == "required" and bubblewrap() is None:
            raise SandboxUnavailable("Code must run inside bubblewrap, which is not installed: there is no `bwrap`.")

    async def take(self, memory_limit_bytes: int | None = None) -> Engine:
        """A process with this memory limit, or the default one."""
        memory_limit_bytes = memory_limit_bytes or self._usual_bytes
        if memory_limit_bytes != self._usual_bytes:
            return await self._start(memory_limit_bytes)
        engine: Engine | None = None
        while self._idle and engine is None:
            found = self._idle.popleft()
            if found.waits:
                engine = found
            else:
                self._background(found.kill())
        self._refill()
        self._end_idle_later()
        return engine or await self._start(memory_limit_bytes)

    async def release(self, engine: Engine) -> None:
        """Takes back a process that is as good as new, for the next piece of code."""
        usual = engine.memory_limit_bytes == self._usual_bytes
        if usual and engine.alive and not self._closed and len(self._idle) < max(1, self._warm):
            self._idle.appendleft(engine)
            self._end_idle_later()  # its code may have run for longer than idle processes are kept
        else:
            await engine.kill()

    def _end_idle_later(self) -> None:
        """Ends idle processes if no code runs for a while."""
        if self._rest is not None:
            self._rest.cancel()
        self._rest = asyncio.get_running_loop().call_later(self._idle_s, lambda: self._background(self._end_idle()))

    async def _end_idle(self) -> None:
        while self._idle:
            await self._idle.popleft().kill()

    def _refill(self) -> None:
        while not self._closed and len(self._idle) + len(self._refills) < self._warm:
            self._background(self._add())

    def _background(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work, name="engines that wait for code")
        self._refills.add(task)
        task.add_done_callback(self._refills.discard)

    async def _add(self) -> None:
        with suppress(SandboxUnavailable):  # the next caller gets the error
            engine = await self._start(self._usual_bytes)
            if len(self._idle) < self._warm:
                self._idle.append(engine)
            else:
                await engine.kill()

    async def _until_loop_closes(self) -> AsyncGenerator[None]:
        """Ends the processes together with the event loop: a loop that ends, as in `asyncio.run`, closes its
        generators.

        The pool is not closed then, and starts again on the loop that uses it next.
        """
        try:
            yield
        finally:
            await self._end()

    async def close(self) -> None:
        self._closed = True
        guard = self._guard
        await self._end()
        if guard is not None and not getattr(guard, "ag_running", False):  # a loop that ends may be closing it now
            await guard.aclose()

    async def _end(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        refills = list(self._refills)
        for task in refills:
            task.cancel()
        await asyncio.gather(*refills, return_exceptions=True)
        while self._idle:
            await self._idle.popleft().kill()
        directory, self._directory = self._directory, None
        if directory is not None:  # removed right here: it is small, and at the end of the process there are no threads
            shutil.rmtree(directory, ignore_errors=True)
        self._guard = None

    async def _start(self, memory_limit_bytes: int) -> Engine:
        program = self._program(memory_limit_bytes)
        if self._guard is None:
            self._guard = self._until_loop_closes()
            await anext(self._guard)
        if self._directory is None:
            self._directory = own_directory()
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        wrapper = bubblewrap() if self._isolation != "off" else None
        wrapped = [] if wrapper is None else _inside(wrapper, program, self._directory)
        alone = _ends_with_host(program)
        engine = None
        for _ in range(_STARTS):
            engine = engine or await self._launched([*(wrapped or alone), *program.args], program, memory_limit_bytes)
        if engine is None and wrapped and self._isolation != "required":
            if self._isolation == "preferred":
                # Installed, but this machine or container does not allow it to create namespaces.
                _log.warning("bubblewrap does not work on this machine: code runs without it")
                self._isolation = "off"
            engine = await self._launched([*alone, *program.args], program, memory_limit_bytes)
        if engine is None:
            inside = " inside bubblewrap" if wrapped and self._isolation == "required" else ""
            raise SandboxUnavailable(f"The engine did not start{inside}: {program.args[0]}")
        return engine

    async def _launched(self, args: Sequence[str], program: Program, memory_limit_bytes: int) -> Engine | None:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(limit=MAX_FRAME_BYTES, loop=loop),
            *args,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env={"HOME": self._directory or "/", **program.env},
            cwd=self._directory,
            start_new_session=True,
        )
        process = Process(transport, protocol, loop)
        engine = Engine(process, transport, memory_limit_bytes, has_children=program.has_children)
        ready = False
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                ready = await engine.line() == b"ready"
        except TimeoutError:
            pass
        finally:
            if not ready:
                await asyncio.shield(engine.kill())
        if not ready:
            return None
        engine.is_ready(program)
        return engine


def own_directory() -> str:
    """A new folder for the processes of this host. Folders of hosts that were killed are removed."""
    prefix = "weftline-sandbox-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        host = left.name.removeprefix(prefix).partition("-")[0]
        if host.isdigit() and not Path(f"/proc/{host}").exists() and Path("/proc/self").exists():
            # With whatever an engine has cached in it. Links are not followed, and those of other users stay.
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-")


def _ends_with_host(program: Program) -> list[str]:
    """Makes the kernel end a process when its host is killed; bubblewrap does this too.

    A process with children is told to stop instead: if killed, it would leave them behind.
    """
    setter = shutil.which("setpriv") if sys.platform == "linux" else None
    sent = "TERM" if program.has_children else "KILL"
    return [] if setter is None else [setter, "--pdeathsig", sent, "--"]


def bubblewrap() -> str | None:
    return shutil.which("bwrap") if sys.platform == "linux" else None


def _inside(wrapper: str, program: Program, directory: str) -> list[str]:
    """Gives it its own namespaces: no network, no view of other processes, and only the files that the engine needs."""
    system = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
    bound: list[str] = []
    for path in sorted({*system, *program.readable}):  # a parent comes first, and includes everything below it
        if os.path.exists(path) and not any(Path(path).is_relative_to(above) for above in bound):
            bound.append(path)
    return [
        *(wrapper, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"),
        *(part for path in bound for part in ("--ro-bind", path, path)),
        *("--proc", "/proc", "--dev", "/dev", "--dir", directory, "--chdir", directory, "--"),
    ]


def _confine(pid: int, may_grow_bytes: int | None) -> None:
    if sys.platform != "linux":
        return
    import resource

    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: _MAX_FILES,
        resource.RLIMIT_CPU: _MAX_CPU_S,
    }
    if may_grow_bytes is not None:
        # Between two checks of its size it could take all available memory.
        limits[resource.RLIMIT_DATA] = (_status(pid, b"VmData:") or 0) + may_grow_bytes
    for limit, most in limits.items():
        with suppress(ProcessLookupError, PermissionError):
            resource.prlimit(pid, limit, (most, most))


def _innermost(pid: int) -> int:
    """The process that bubblewrap runs; bubblewrap itself consists of two processes."""
    try:
        while Path(f"/proc/{pid}/comm").read_text() == "bwrap\n":
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    except (OSError, IndexError):
        pass
    return pid


def _state(pid: int) -> str:
    """The state of a process, one letter as in /proc, "X" if it is gone; "" where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return "X" if sys.platform == "linux" else ""


def _status(pid: int, field: bytes) -> int | None:
    try:
        text = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    _, found, rest = text.partition(field)
    return int(rest.split(maxsplit=1)[0]) * 1024 if found else None
