"""Python processes that are forked from one with everything imported, instead of started from nothing.

Tests start some hundreds of servers, commands and examples, and nine tenths of each start is Python reading the same
modules. So there is one process that has read them (`nursery.py`), and tests get copies of it: processes of their own,
with their own environment, which can be killed like any other. They are the nursery's children, so it is the nursery
that tells how they ended; that they ended, Linux tells anybody. Elsewhere, and in the deep profile, processes are
started as always.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Self, cast

from commands import weftline
from weftline.testing import process

_OURS = [sys.executable, "-m", "weftline"]
MINUTES_S = 240.0
"""Only so that a hang ends."""


class Forked:
    """The part of `subprocess.Popen` that tests use, for a process that somebody else forked for us."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        self._lock = threading.Lock()
        self._gone = os.pidfd_open(pid)

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._gone], [], [], 0)[0]:
                self.returncode = os.waitstatus_to_exitcode(self._nursery.status(self.pid))
                os.close(self._gone)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        while (code := self.poll()) is None:
            if not select.select([self._gone], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(_OURS, timeout or 0)
        return code

    def communicate(self, text: str = "", *, timeout: float) -> tuple[str, str]:
        """Gives the process a line to read; returns what it prints to its end. One that takes longer is killed."""
        assert self.stdin is not None and self.stdout is not None and self.stderr is not None
        with contextlib.suppress(BrokenPipeError), self.stdin:
            self.stdin.write(text)
        with ThreadPoolExecutor(2) as threads:
            out, err = threads.submit(self.stdout.read), threads.submit(self.stderr.read)
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            finally:
                self.wait()
            return out.result(), err.result()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()


class Nursery:
    """A process that copies itself. It ends with the process that started it."""

    def __init__(self, address: str | bytes = b"") -> None:
        """Without the `address` of one that is there, one is started when the first copy is wanted."""
        self._address = address
        self._line: socket.socket | None = None
        self._lock = threading.Lock()

    def start(self) -> Self:
        """Starts it now, for this process and those that it forks later, each with a line of its own."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.bind("")  # the system chooses a name
            door.listen()
            self._address = door.getsockname()
            _start(door)
        return self

    def fork(
        self, arguments: Sequence[str], *, env: Mapping[str, str], cwd: str, terminal: int | None = None
    ) -> Forked:
        """A process that does what `python` would do with these arguments, with three pipes or in a terminal."""
        request = json.dumps([list(arguments), dict(env), cwd, terminal is not None]).encode()
        if terminal is not None:
            return Forked(self, self._ask(request, [terminal] * 3))
        (their_stdin, stdin), (stdout, their_stdout), (stderr, their_stderr) = os.pipe(), os.pipe(), os.pipe()
        theirs = [their_stdin, their_stdout, their_stderr]
        try:
            child = Forked(self, self._ask(request, theirs))
        finally:
            for fd in theirs:
                os.close(fd)
        child.stdin = os.fdopen(stdin, "w", encoding="utf-8")
        child.stdout = os.fdopen(stdout, encoding="utf-8")
        child.stderr = os.fdopen(stderr, encoding="utf-8")
        return child

    def status(self, pid: int) -> int:
        """How a copy ended that has ended."""
        return self._ask(json.dumps(pid).encode(), [])

    def _ask(self, request: bytes, fds: list[int]) -> int:
        with self._lock:
            self._line = self._line or self._reached()
            socket.send_fds(self._line, [request], fds)
            return int(self._line.recv(32))

    def _reached(self) -> socket.socket:
        if not self._address:
            self.start()
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.connect(self._address)
        return line


def _start(door: socket.socket) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        fds = [theirs.fileno(), door.fileno()]
        program = [sys.executable, str(Path(__file__).with_name("nursery.py")), *map(str, fds)]
        child = subprocess.Popen(program, pass_fds=fds, stdin=subprocess.DEVNULL)

    def close() -> None:
        ours.close()
        child.wait()

    atexit.register(close)


_nurseries: list[Nursery] = []


def fork_from(nursery: Nursery) -> None:
    """From now on processes are copies of this one, here and in `ServerProcess`, if the system tells of their end."""
    if sys.platform == "linux":
        _nurseries.append(nursery)
        process.subprocess = cast("Any", SimpleNamespace(Popen=_popen, PIPE=subprocess.PIPE, run=_run))


def python(*arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Any:
    """Another Python, as a `Popen` with three pipes."""
    env = dict(os.environ if env is None else env)
    if nursery := _nursery_for(env):
        return nursery.fork(arguments, env=env, cwd=str(cwd or os.getcwd()))
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env, cwd=cwd
    )


def python_in_terminal(*arguments: str, env: Mapping[str, str]) -> tuple[Any, int]:
    """Another Python, as a `Popen`, in a terminal and a session of its own; and our end of the terminal."""
    ours, theirs = pty.openpty()
    try:
        if nursery := _nursery_for(env):
            return nursery.fork(arguments, env=env, cwd=os.getcwd(), terminal=theirs), ours
        command = [sys.executable, *arguments]
        return subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
        ), ours
    finally:
        os.close(theirs)


def _nursery_for(env: Mapping[str, str]) -> Nursery | None:
    return _nurseries[-1] if _nurseries and _python_settings(env) == _python_settings(os.environ) else None


def run_python(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Another Python, run to its end with nothing to read."""
    with python(*arguments, env=env, cwd=cwd) as child:
        out, err = child.communicate(timeout=MINUTES_S)
        return subprocess.CompletedProcess(arguments, child.returncode, out, err)


def _popen(command: list[str], **options: Any) -> Any:
    if command[:3] != _OURS:
        return subprocess.Popen(command, **options)
    child = python(*command[1:], env=options.get("env"))
    child.stdin.close()
    return child


def _run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    if command[:3] != _OURS or options != {"capture_output": True, "text": True, "check": True}:
        return cast("subprocess.CompletedProcess[str]", subprocess.run(command, **options))
    with ThreadPoolExecutor(1) as thread:  # the caller may have a loop running in its own
        done = thread.submit(weftline, *command[3:]).result()
    if done.code:
        raise subprocess.CalledProcessError(done.code, command, done.out, done.err)
    return subprocess.CompletedProcess(command, 0, done.out, done.err)


def _python_settings(env: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter looks at when it starts, and never again."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}
