"""Ends the process when the event loop stalls, so that the next one can find out which run stalls it.

Untrusted input is bounded before it reaches the loop. If something slips through (a tool that never yields, a bug in a
library), the server would stall forever, and so would every process that takes over its runs. Exiting instead makes it
an ordinary crash: the runs in progress are suspects at the next start, and only the one that stalls the loop repeatedly
is given up (`weftline.runtime.recovery`).

The limit is CPU time: a process that is frozen, swapped out or on a busy machine does not use any, and is left alone.
The kernel delivers the signal even while a library holds the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal

STALL_S = 30.0
BEAT_S = 1.0
_MAX_CORES = 8


def default_stall_s() -> float:
    """Returns more on machines with more processors, as other threads use the process's CPU time too."""
    return STALL_S * max(1.0, min(os.cpu_count() or 1, _MAX_CORES) / 2)


class LoopWatchdog:
    """Ends the process with SIGPROF if the loop does not run for `stall_s` of CPU time; 0 disables it.

    The loop resets it once a second. The stacks of all threads are written to stderr first.
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
