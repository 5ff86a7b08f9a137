"""The processes that do bounded work, seen from the server.

    text = await shared_workers().run("weftline.tools.builtin.page:page_job", html, url)

Processes start when needed and end after being idle for a while. Waiting jobs are served round robin over owners
(workspaces), and one process is always left to other owners, so that an owner who sends nothing but bombs delays only
itself.
"""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import BinaryIO, cast

import msgspec

from weftline.work.process_worker import Request, Response, write_frame
from weftline.work.turns import Turns, on_behalf_of

CPU_S = 2.0
"""CPU time of one job, which is the same however busy the machine is."""
WALL_S = 60.0
"""Wall-clock limit, for a job that waits instead of working and for an overloaded machine."""
MAX_PROCESSES = max(2, min(4, os.cpu_count() or 1))
IDLE_S = 60.0
MAX_REPLY_BYTES = 64 * 1024 * 1024

_START = "import sys; sys.path[:] = sys.argv[1:]; from weftline.work.process_worker import main; main()"
_encode_request = msgspec.msgpack.Encoder().encode
_decode_response = msgspec.msgpack.Decoder(Response).decode


class GaveUp(Exception):
    """The work took more time or memory than allowed, or failed."""


class _Gone(Exception):
    """The process ended before it took the request."""


class _Job:
    __slots__ = ("future", "owner", "request")

    def __init__(self, request: bytes, owner: int | None) -> None:
        self.request = request
        self.owner = owner
        self.future: Future[bytes] = Future()


class Workers:
    """At most `max_processes` processes, each with a thread of ours that talks to it."""

    def __init__(
        self,
        *,
        max_processes: int = MAX_PROCESSES,
        cpu_s: float = CPU_S,
        wall_s: float = WALL_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._max_processes = max_processes
        self._cpu_s = cpu_s
        self._wall_s = wall_s
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._turns: Turns[_Job] = Turns(lambda job: job.owner, per_owner=max(1, max_processes - 1))
        self._idle = 0
        self._threads = 0

    async def run(self, job: str, *arguments: bytes) -> bytes:
        """The result of `job` (`module:function`) for these arguments. Raises `GaveUp`."""
        request = _encode_request(Request(job, list(arguments), self._cpu_s))
        waiting = _Job(request, on_behalf_of.get())
        with self._changed:
            self._turns.queue.put(waiting, owner=waiting.owner)
            if self._idle:
                self._changed.notify()
            if self._idle < len(self._turns.queue) and self._threads < self._max_processes:
                self._threads += 1
                threading.Thread(target=self._serve, name="weftline-bounded", daemon=True).start()
        return await asyncio.wrap_future(waiting.future)

    def _serve(self) -> None:
        process: _Process | None = None
        while (job := self._next()) is not None:
            if not job.future.set_running_or_notify_cancel():
                self._done(job)
                continue
            try:
                if process is None:
                    process = _Process(self._wall_s)
                try:
                    value = process.ask(job.request)
                except _Gone:
                    # It died while idle, for another reason.
                    process.kill()
                    process = _Process(self._wall_s)
                    value = process.ask(job.request)
            except (GaveUp, _Gone, OSError) as error:
                if process is not None:
                    process.kill()
                    process = None
                job.future.set_exception(error if isinstance(error, GaveUp) else GaveUp(f"no process: {error}"))
            else:
                if value.failure is None:
                    job.future.set_result(value.value)
                else:
                    job.future.set_exception(GaveUp(value.failure))
            self._done(job)
            del job
        if process is not None:
            process.kill()

    def _next(self) -> _Job | None:
        """The next job of the owner whose turn it is; None if there has been none for a while."""
        with self._changed:
            while (job := self._turns.admit()) is None:
                self._idle += 1
                notified = self._changed.wait(self._idle_s)
                self._idle -= 1
                if not notified and not self._turns.queue:
                    self._threads -= 1
                    return None
            if self._idle and self._turns.queue:
                self._changed.notify()  # it may be another owner's turn by now
            return job

    def _done(self, job: _Job) -> None:
        with self._changed:
            self._turns.places.remove(job.owner)


class _Process:
    def __init__(self, wall_s: float) -> None:
        self._wall_s = wall_s
        # The server's environment is not passed on, because it may contain secrets.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, *[path or os.getcwd() for path in sys.path]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ},
            start_new_session=True,
        )
        self._replies = cast("BinaryIO", self._process.stdout).fileno()

    def ask(self, request: bytes) -> Response:
        deadline = time.monotonic() + self._wall_s
        try:
            write_frame(cast("BinaryIO", self._process.stdin), request)
        except OSError:
            raise _Gone("it ended") from None
        size = int.from_bytes(self._read(4, deadline))
        if size > MAX_REPLY_BYTES:
            raise GaveUp("the result is too large")
        return _decode_response(self._read(size, deadline))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _read(self, size: int, deadline: float) -> bytes:
        poll = select.poll()
        poll.register(self._replies, select.POLLIN | select.POLLHUP)
        pieces: list[bytes] = []
        while size:
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            if not poll.poll(left_ms):
                raise GaveUp("it took too long")
            piece = os.read(self._replies, size)
            if not piece:
                raise GaveUp("it took too much CPU time or memory")
            size -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)


_shared: list[Workers] = []


def shared_workers() -> Workers:
    """The pool of this process."""
    if not _shared:
        _shared.append(Workers(cpu_s=CPU_S))
    return _shared[0]


os.register_at_fork(after_in_child=_shared.clear)  # the processes belong to the parent
