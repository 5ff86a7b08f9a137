"""Runs one command under its supervisor: with bounded outputs, a deadline and a guaranteed end.

A task lives as long as the command. If the caller is cancelled, the command is still ended and awaited, so that nothing
keeps running when the caller continues.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from weftline.tools.contexts.base import MAX_OUTPUT_BYTES, TIMED_OUT, ExecResult

STOP_GRACE_S = 0.5
_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
_OUTPUT_DRAIN_S = 1.0
"""How long to wait for outputs that are still held open when the command and its children are gone."""
_START_S = 30.0
"""How long the supervisor may take to start, which on a busy machine is not the command's fault."""
_STOP_LIMIT_S = 8.0
"""How long a supervisor takes to end after a stop and its grace; one that takes longer was itself stopped."""
_SLACK_BYTES = 1 << 16
_KILLED = 128 + signal.SIGKILL


class Program(Struct, frozen=True, kw_only=True):
    """A program to run. Its working directory and environment are `cwd` and `env` only."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    timeout_s: float
    stdin: bytes = b""
    max_output_bytes: int = MAX_OUTPUT_BYTES
    stop_grace_s: float = STOP_GRACE_S


class Execution:
    """A running command."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._timed_out = False
        self.began = False
        """Whether the program was started."""
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_resort: asyncio.TimerHandle | None = None
        self._stopped = False
        self._task = asyncio.create_task(self._life())

    async def result(self) -> ExecResult:
        """Waits for the command and returns its outcome. If this is cancelled, the command is ended first."""
        cancelled: asyncio.CancelledError | None = None
        while not self._task.done():
            try:
                await asyncio.wait({self._task})
            except asyncio.CancelledError as error:
                cancelled = error
                self.stop()
        if cancelled is not None:
            if not self._task.cancelled():
                self._task.exception()  # retrieved, as nobody else will
            raise cancelled
        return self._task.result()

    async def over(self) -> None:
        """Waits until no process of it is left."""
        if not self._task.done():
            await asyncio.wait({self._task})

    def stop(self) -> None:
        """Ends the command and all its children with SIGTERM, and after a grace period with SIGKILL."""
        self._stopped = True
        if self._control is None or self._process is None:
            return
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        # A command may have suspended its supervisor with SIGSTOP.
        self._process.send_signal(signal.SIGCONT)
        if self._last_resort is None:
            after_s = self._program.stop_grace_s + _STOP_LIMIT_S
            self._last_resort = asyncio.get_running_loop().call_later(after_s, self._process.kill)

    async def _life(self) -> ExecResult:
        program = self._program
        loop = asyncio.get_running_loop()
        outputs, self._process, self._control = _start(program)
        if self._stopped:
            self.stop()
        tails = [_Tail(program.max_output_bytes), _Tail(program.max_output_bytes)]
        self._ends_in(program.timeout_s + _START_S)
        transports: list[asyncio.ReadTransport] = []
        try:
            for tail, output in zip(tails, outputs, strict=True):
                pipe = os.fdopen(output, "rb", buffering=0)
                transport, _ = await loop.connect_read_pipe(lambda tail=tail: tail, pipe)
                transports.append(transport)
            code = await self._exit_code(self._process, self._control)
            await asyncio.wait([tail.ended for tail in tails], timeout=_OUTPUT_DRAIN_S)
        finally:
            for timer in (self._timer, self._last_resort):
                if timer is not None:
                    timer.cancel()
            for transport in transports:
                transport.close()
            self._control.close()
            self._control = None
        return ExecResult(
            stdout=tails[0].data(),
            stderr=tails[1].data(),
            exit_code=TIMED_OUT if self._timed_out else code,
            timed_out=self._timed_out,
            dropped_stdout=tails[0].dropped,
            dropped_stderr=tails[1].dropped,
        )

    async def _exit_code(self, process: subprocess.Popen[bytes], control: socket.socket) -> int:
        """Waits for the supervisor, which ends when no process of the command is left."""
        loop = asyncio.get_running_loop()
        received = b""
        with suppress(ConnectionError):
            while piece := await loop.sock_recv(control, 4096):
                if not received:  # the command has begun
                    self._ends_in(self._program.timeout_s)
                received += piece
        process.wait()  # it closes its end by exiting
        words = dict(line.split(" ", 1) for line in received.decode().splitlines())
        self.began = "pid" in words and "failed" not in words
        if "exit" in words:
            return int(words["exit"])
        # Something killed the supervisor. The command's process group can still be killed.
        if "pid" in words:
            with suppress(OSError):
                os.killpg(int(words["pid"]), signal.SIGKILL)
        return _KILLED

    def _ends_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        self._timed_out = True
        self.stop()


def _start(program: Program) -> tuple[list[int], subprocess.Popen[bytes], socket.socket]:
    """Starts the supervisor. Returns the read ends of both outputs, the process, and our end of the control socket."""
    with tempfile.TemporaryFile() if program.stdin else open(os.devnull, "rb") as source:
        if program.stdin:
            source.write(program.stdin)  # a file needs no feeding, unlike a pipe
            source.seek(0)
        return _spawn(program, source.fileno())


def _spawn(program: Program, stdin: int) -> tuple[list[int], subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    pipes = [os.pipe(), os.pipe()]
    locale = program.env.get("LC_CTYPE", "")
    supervisor = [sys.executable, "-I", "-S", _SUPERVISOR, str(theirs.fileno()), str(program.stop_grace_s), locale]
    try:
        process = subprocess.Popen(
            [*supervisor, program.cwd, *program.argv],
            stdin=stdin,
            stdout=pipes[0][1],
            stderr=pipes[1][1],
            env=dict(program.env),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        for reading, _ in pipes:
            os.close(reading)
        raise
    finally:
        theirs.close()
        for _, writing in pipes:
            os.close(writing)
    return [reading for reading, _ in pipes], process, ours


class _Tail(asyncio.Protocol):
    """Keeps the end of an output. It always reads on, so that the command never blocks."""

    def __init__(self, max_bytes: int) -> None:
        self.dropped = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._max_bytes = max_bytes
        self._kept = bytearray()

    def data_received(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > 2 * self._max_bytes + _SLACK_BYTES:
            self._cut()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def data(self) -> bytes:
        self._cut()
        return bytes(self._kept)

    def _cut(self) -> None:
        surplus = len(self._kept) - self._max_bytes
        if surplus > 0:
            del self._kept[:surplus]
            self.dropped += surplus
