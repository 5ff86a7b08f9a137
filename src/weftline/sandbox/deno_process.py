"""Single-use deno processes, some of them kept warm.

A process has no permission, no environment and an empty directory, and is inside bubblewrap where the machine has it.
It serves one piece of code and is killed: nothing that code does to it can show in another.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import cast

from weftline.sandbox.base import DEFAULT_MEMORY_LIMIT_BYTES, SandboxUnavailable

BOOT = Path(__file__).with_name("deno_boot.mjs")
MAX_FRAME_BYTES = 8 << 20
START_TIMEOUT_S = 30.0

_FLAGS = (
    *("--no-prompt", "--no-remote", "--no-npm", "--no-config", "--no-lock", "--cached-only", "--no-code-cache"),
    *("--deny-read", "--deny-write", "--deny-net", "--deny-env", "--deny-run", "--deny-sys", "--deny-ffi"),
    *("--deny-import", "--quiet"),
)
_OWN_HEAP_BYTES = 16 << 20
"""What the runtime itself keeps on the heap, beside the code."""
_MAX_CPU_S = 3600
"""A backstop for a process whose host was killed; while the host lives the safety cap comes first."""
_MAX_FILES = 64


class Engine:
    """One process that says it is ready, and then carries out one piece of code."""

    def __init__(self, process: Process, memory_limit_bytes: int) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self.memory_limit_bytes = memory_limit_bytes
        self.pid = process.pid
        """The process of deno itself, which bubblewrap may stand in front of."""
        self.own_bytes = 0

    def is_ready(self) -> None:
        self.pid = _innermost(self._process.pid)
        self.own_bytes = self.resident_bytes() or 0
        _confine(self)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def send(self, line: bytes) -> None:
        with suppress(ConnectionError, RuntimeError):  # it is gone, and the end of its output says so
            self._stdin.write(line + b"\n")

    async def drained(self) -> None:
        with suppress(ConnectionError):
            await self._stdin.drain()

    async def line(self) -> bytes:
        """The next line without its end; empty if there are no more. Raises `ValueError` for one that is too long."""
        return (await self._stdout.readline()).rstrip(b"\n")

    async def ended(self) -> int:
        """Waits for the process to end by itself; negative for a signal."""
        return _signalled(await self._process.wait())

    async def kill(self) -> int:
        if self.alive:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
        code = await self._process.wait()
        cast("asyncio.SubprocessTransport", self._process._transport).close()  # pyright: ignore
        return code

    def resident_bytes(self) -> int | None:
        return _status(self.pid, b"VmRSS:")

    def peak_bytes(self) -> int | None:
        """The most that the code made the process grow by."""
        peak = _status(self.pid, b"VmHWM:")
        return None if peak is None or not self.own_bytes else max(0, peak - self.own_bytes)


class Pool:
    """Processes for the usual memory limit wait in `warm` places; others are started when they are needed."""

    def __init__(self, *, warm: int, binary: str | None = None) -> None:
        self._warm = warm
        self._binary = binary
        self._idle: deque[Engine] = deque()
        self._refills: set[asyncio.Task[None]] = set()
        self._directory: str | None = None
        self._closed = False

    def check(self) -> None:
        self._found()

    async def take(self, memory_limit_bytes: int) -> Engine:
        if memory_limit_bytes != DEFAULT_MEMORY_LIMIT_BYTES:
            return await self._start(memory_limit_bytes)
        engine: Engine | None = None
        while self._idle and engine is None:
            found = self._idle.popleft()
            engine = found if found.alive else None
        self._refill()
        return engine or await self._start(memory_limit_bytes)

    def _refill(self) -> None:
        while not self._closed and len(self._idle) + len(self._refills) < self._warm:
            task = asyncio.create_task(self._add(), name="a warm deno process")
            self._refills.add(task)
            task.add_done_callback(self._refills.discard)

    async def _add(self) -> None:
        with suppress(SandboxUnavailable):  # whoever needs the next one is told
            self._idle.append(await self._start(DEFAULT_MEMORY_LIMIT_BYTES))

    async def close(self) -> None:
        self._closed = True
        refills = list(self._refills)
        for task in refills:
            task.cancel()
        await asyncio.gather(*refills, return_exceptions=True)
        while self._idle:
            await self._idle.popleft().kill()
        if self._directory is not None:
            await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
            self._directory = None

    def _found(self) -> str:
        if self._binary is None:
            try:
                from deno import find_deno_bin

                self._binary = find_deno_bin()
            except (ImportError, FileNotFoundError):
                raise SandboxUnavailable(
                    "TypeScript and JavaScript run on deno, which is not installed: pip install 'weftline[sandbox]'."
                ) from None
        return self._binary

    async def _start(self, memory_limit_bytes: int) -> Engine:
        binary = self._found()
        if self._directory is None:
            self._directory = tempfile.mkdtemp(prefix="weftline-sandbox-")
        heap = -(-(memory_limit_bytes + _OWN_HEAP_BYTES) >> 20)
        process = await asyncio.create_subprocess_exec(
            *_bubblewrap(binary, self._directory),
            binary,
            "run",
            *_FLAGS,
            f"--v8-flags=--max-old-space-size={heap},--max-semi-space-size=4,--disallow-code-generation-from-strings",
            str(BOOT),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            limit=MAX_FRAME_BYTES,
            env={"DENO_DIR": self._directory, "NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1"},
            cwd=self._directory,
            start_new_session=True,
        )
        engine = Engine(process, memory_limit_bytes)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                ready = await engine.line() == b"ready"
        except TimeoutError:
            ready = False
        except BaseException:
            await engine.kill()
            raise
        if not ready:
            code = await engine.kill()
            raise SandboxUnavailable(f"deno did not start (exit code {code}): {binary}")
        engine.is_ready()
        return engine


def _bubblewrap(binary: str, directory: str) -> list[str]:
    """Namespaces of its own: no network, no other process to see, and the few files that deno itself needs."""
    found = shutil.which("bwrap") if sys.platform == "linux" else None
    if found is None:
        return []
    shown = [path for path in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", str(BOOT), binary) if os.path.exists(path)]
    return [
        *(found, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *(part for path in shown for part in ("--ro-bind", path, path)),
        *("--proc", "/proc", "--dev", "/dev", "--dir", directory, "--chdir", directory, "--"),
    ]


def _confine(engine: Engine) -> None:
    if sys.platform != "linux":
        return
    import resource

    grown = _status(engine.pid, b"VmData:") or 0
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: _MAX_FILES,
        resource.RLIMIT_CPU: _MAX_CPU_S,
        # Memory outside V8's heap (buffers) is bounded here; between two looks at its size it could take all there is.
        resource.RLIMIT_DATA: grown + engine.memory_limit_bytes + _OWN_HEAP_BYTES,
    }
    for limit, most in limits.items():
        with suppress(ProcessLookupError):
            resource.prlimit(engine.pid, limit, (most, most))


def _signalled(status: int) -> int:
    # Bubblewrap tells the signal that ended its child as shells do.
    return 128 - status if status > 128 else status


def _innermost(pid: int) -> int:
    while True:
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return pid
        if not children:
            return pid
        pid = int(children[0])


def _status(pid: int, field: bytes) -> int | None:
    try:
        text = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    _, found, rest = text.partition(field)
    return int(rest.split(maxsplit=1)[0]) * 1024 if found else None
