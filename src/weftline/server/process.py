"""The server's own process: its signals, an event loop that stalls, and the memory that it gives back.

It stops on SIGTERM and SIGINT, within bounded time whatever hangs:

              SIGTERM                 second signal               third signal
    SERVING ──────────▶ DRAINING ───────────────────▶ HURRYING ──────────────▶ exit 1
                            │                             │
                            ├── in time ──▶ exit 0 ◀──────┤    (74 if the store refused results to the end)
                            └── late ─────▶ exit 1 ◀──────┘

A separate thread handles signals, so the process ends even if the event loop, the store or a tool is stuck. A forced
exit leaves the same state as a crash, and the next process continues from it.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import faulthandler
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from enum import IntEnum
from types import TracebackType
from typing import Any, Self

from weftline.work.outcomes import ignore_signal

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
CLOSING_S = 20.0
"""How long everything after the drain may take: stopping what is left, closing streams and the store."""
HURRY_S = 10.0
"""`CLOSING_S` after a second signal: longer than work that ignores its cancellation is waited for."""
_LEAVING_S = 3.0
"""How long it may take once the store is closed, when only threads are left that cannot be stopped."""
_FINAL_LOG_S = 0.5
LOST_ANSWERS = 74
"""The exit code if the store refused results of runs: EX_IOERR of sysexits.h."""

STALL_S = 30.0
BEAT_S = 1.0
_MAX_CORES = 8
LARGE_BYTES = 1024 * 1024
"""Blocks from this size on go back to the system when they are freed."""
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_ARENAS = 2


class Phase(IntEnum):
    SERVING = 0
    DRAINING = 1
    HURRYING = 2


class Stopping:
    """Listens for signals while the context is open; must be entered in the main thread, on the running loop."""

    def __init__(self, *, drain_s: float, leave: Callable[[int], Any] = os._exit) -> None:
        self.phase = Phase.SERVING
        self.asked = asyncio.Event()
        """Set by the first signal."""
        self.hurry = asyncio.Event()
        """Set by the second."""
        self.code = 0
        """The exit code if everything was closed in time."""
        self._drain_s = drain_s
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._deadline: float | None = None
        self._code = 1
        self._closed = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._thread = threading.Thread(target=self._listen, name="weftline-signals", daemon=True)

    def __enter__(self) -> Self:
        # Signal numbers are written to this descriptor whatever the main thread is doing.
        self._other_wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._other_handlers = {number: signal.signal(number, ignore_signal) for number in SIGNALS}
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Called when everything is closed. Gives hanging threads a moment, then exits without them.

        Another signal exits at once, with the same code; with the default handlers, it would look like a crash.
        """
        signal.set_wakeup_fd(self._other_wakeup)
        leaving = kind is None and bool(self.phase)
        for number, handler in self._other_handlers.items():
            signal.signal(number, self._leave_now if leaving else handler)
        if leaving:
            self._code = self.code
            self._end_by(_LEAVING_S)
            # While the interpreter shuts down, it puts the default handlers back, but not in place of SIG_IGN.
            for number in self._other_handlers:
                atexit.register(signal.signal, number, signal.SIG_IGN)
        else:
            self._closed = True
        self._wake()

    def received(self) -> None:
        """Handles one more signal."""
        match self.phase:
            case Phase.SERVING:
                self.phase = Phase.DRAINING
                self._end_by(self._drain_s + CLOSING_S)
                self._set(self.asked)
            case Phase.DRAINING:
                self.phase = Phase.HURRYING
                self._end_by(HURRY_S)
                self._set(self.hurry)
            case Phase.HURRYING:
                self._leave(1)

    def _leave_now(self, number: int, frame: object) -> None:
        self._leave(self.code)

    def _end_by(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def _set(self, event: asyncio.Event) -> None:
        try:
            self._loop.call_soon_threadsafe(event.set)
        except RuntimeError:
            pass  # the loop is closed: there is nothing left to stop

    def _wake(self) -> None:
        try:
            self._writer.send(b"\0")
        except OSError:
            pass

    def _listen(self) -> None:
        while not self._closed:
            deadline = self._deadline
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._reader], [], [], left_s)[0]:
                self._give_up()
                return
            for number in self._reader.recv(64):
                if number in SIGNALS:
                    self.received()
        self._reader.close()
        self._writer.close()

    def _give_up(self) -> None:
        if self._code == 1:
            # In a thread, since a log whose reader has gone may hang as well.
            words = threading.Thread(
                target=logger.critical, args=("something did not stop in time; exiting anyway",), daemon=True
            )
            words.start()
            words.join(_FINAL_LOG_S)
        self._leave(self._code)


async def finish_within(seconds: float, work: Awaitable[object], *, what: str) -> None:
    """Waits for one step of stopping, for a limited time. A step that fails or is late is logged."""
    task = asyncio.ensure_future(work)
    _, late = await asyncio.wait([task], timeout=seconds)
    if late:
        logger.warning("%s did not end within %g s", what, seconds)
        task.cancel()
    elif not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s failed", what, exc_info=error)


def default_stall_s() -> float:
    """Returns more on machines with more processors, as other threads use the process's CPU time too."""
    return STALL_S * max(1.0, min(os.cpu_count() or 1, _MAX_CORES) / 2)


class LoopWatchdog:
    """Ends the process with SIGPROF if the loop does not run for `stall_s` of CPU time; 0 disables it.

    The loop resets it once a second. The stacks of all threads are written to stderr first.

    Untrusted input is bounded before it reaches the loop. If something slips through (a tool that never yields, a bug
    in a library), the server would stall forever, and so would every process that takes over its runs. Exiting instead
    makes it an ordinary crash: the runs in progress are suspects at the next start, and only the one that stalls the
    loop repeatedly is given up (`weftline.runtime.recovery`).

    The limit is CPU time: a process that is frozen, swapped out or on a busy machine does not use any, and is left
    alone. The kernel delivers the signal even while a library holds the interpreter's lock.
    """

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._stall_s > 0:
            faulthandler.register(signal.SIGPROF, file=2, all_threads=True, chain=True)
            self._beat()

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.unregister(signal.SIGPROF)
            self._next = None

    def _beat(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, self._stall_s)
        self._next = asyncio.get_running_loop().call_later(BEAT_S, self._beat)


def return_large_blocks() -> bool:
    """Makes large blocks return to the system when they are freed; returns False if that cannot be set.

    Once glibc has seen a large block freed, it takes blocks of that size from its heaps, one per thread: a server that
    has read a few bodies of many megabytes would keep several hundred megabytes forever. Settings in the environment
    are left as they are.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library, which works differently
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)) and bool(mallopt(_M_ARENA_MAX, _ARENAS))
