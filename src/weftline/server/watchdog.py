"""Ends the process when the event loop stalls, so that the next one can find out which run stalls it.

Whatever strangers send is bounded before it reaches the loop. Should something slip through (a tool that never yields,
a library with a bad day), the server would stall forever, and so would every process that takes over its runs.
Dying instead makes it a death like any other: the runs that were under way are on trial at the next start, and the one
that stops the loop again and again is given up alone (`weftline.runtime.recovery`).

The clock is CPU time: a process that is frozen, swapped out or on a busy machine does not use any, and is left alone.
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
    """More where there are more processors: threads at work use up the process's time as well."""
    return STALL_S * max(1.0, min(os.cpu_count() or 1, _MAX_CORES) / 2)


class LoopWatchdog:
    """While it runs, the loop beats once a second; without a beat for `stall_s` of processor time the process ends
    by SIGPROF, after the stacks of all threads were written to stderr. 0 watches nothing."""

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
