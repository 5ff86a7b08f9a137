"""Server processes that are forked from one with everything imported, instead of started from nothing.

Tests start some hundreds of servers, and nine tenths of each start is Python reading the same modules. So every test
process keeps one child that has read them, and `ServerProcess` gets copies of that child: processes of their own, with
their own environment, which can be killed like any other. Only Linux can hand a grandchild over to us (and we need that
to wait for it); elsewhere, and for whatever is not `python -m weftline`, processes are started as always.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import IO, Any, cast

from commands import weftline

_PR_SET_CHILD_SUBREAPER = 36
_OURS = [sys.executable, "-m", "weftline"]
_LARGEST_REQUEST_BYTES = 1 << 20
_READ_BEFORE = ("weftline.cli.serve", "weftline.server.serve", "apsw", "uvicorn", "uvloop")


class Forked:
    """The part of `subprocess.Popen` that `ServerProcess` uses, for a process that somebody else forked for us."""

    def __init__(self, pid: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: IO[str] | None = os.fdopen(stdout, encoding="utf-8")
        self.stderr: IO[str] | None = os.fdopen(stderr, encoding="utf-8")
        self._lock = threading.Lock()
        self._gone = os.pidfd_open(pid)

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                    os.close(self._gone)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        while (code := self.poll()) is None:
            if not select.select([self._gone], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(_OURS, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that is copied, and the line to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line = ours
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        atexit.register(self.close)

    def close(self) -> None:
        self._line.close()
        self._process.wait()

    def fork(self, arguments: Sequence[str], env: Mapping[str, str]) -> Forked:
        request = json.dumps([list(arguments), dict(env), os.getcwd()]).encode()
        (stdout, their_stdout), (stderr, their_stderr) = os.pipe(), os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._line, [request], [their_stdout, their_stderr])
                pid = int(self._line.recv(32))
        finally:
            os.close(their_stdout)
            os.close(their_stderr)
        return Forked(pid, stdout, stderr)


def subprocesses() -> Any:
    """What `weftline.testing.process` shall know as `subprocess`: the same, but for our servers and commands."""
    if sys.platform != "linux" or not _adopt_orphans():
        return subprocess
    nursery: list[Nursery] = []

    def popen(command: list[str], **options: Any) -> Any:
        env = cast("dict[str, str]", options.get("env") or dict(os.environ))
        if command[:3] != _OURS or _python_settings(env) != _python_settings(os.environ):
            return subprocess.Popen(command, **options)
        if not nursery:
            nursery.append(Nursery())
        return nursery[0].fork(command[3:], env)

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[:3] != _OURS or options != {"capture_output": True, "text": True, "check": True}:
            return cast("subprocess.CompletedProcess[str]", subprocess.run(command, **options))
        with ThreadPoolExecutor(1) as thread:  # the caller may have a loop running in its own
            done = thread.submit(weftline, *command[3:]).result()
        if done.code:
            raise subprocess.CalledProcessError(done.code, command, done.out, done.err)
        return subprocess.CompletedProcess(command, 0, done.out, done.err)

    return SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, run=run)


def _python_settings(env: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter looks at when it starts, and never again."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


def _adopt_orphans() -> bool:
    import ctypes

    return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _serve(line: socket.socket) -> list[str]:
    """Forks for every request; returns only in a copy, with the arguments that it is to run with."""
    fds = array.array("i")
    while True:
        request, fds, _, _ = socket.recv_fds(line, _LARGEST_REQUEST_BYTES, 2)
        if not request:
            os._exit(0)
        # The copy's parent ends at once, so that the copy becomes a child of the test process.
        parent = os.fork()
        if not parent:
            copy = os.fork()
            if copy:
                line.send(str(copy).encode())
                os._exit(0)
            break
        os.waitpid(parent, 0)
        for fd in fds:
            os.close(fd)
    line.close()
    for fd, place in zip(fds, (1, 2), strict=True):
        os.dup2(fd, place)
        os.close(fd)
    arguments, env, folder = json.loads(request)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    return arguments


def _main(line: socket.socket) -> None:
    import gc
    import random

    from weftline.cli import main
    from weftline.testing.crash import arm

    for name in _READ_BEFORE:
        importlib.import_module(name)
    gc.freeze()
    sys.argv = ["weftline", *_serve(line)]
    random.seed()
    # These were read when the module was imported.
    arm(os.environ.get("WEFTLINE_CRASH"))
    main()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _main(socket.socket(fileno=int(sys.argv[1])))
