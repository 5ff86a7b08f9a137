"""Measures how work grows with its input: in processor time of this thread, and only as a ratio."""

from __future__ import annotations

import time
from collections.abc import Callable

Work = Callable[[], object]
Maker = Callable[[int], Work]
"""Makes the work on an input of about that size; making it is not measured."""

FACTOR = 8
ALLOWED = 3.0
"""Work that grows with the input takes 8 times as long; with its square, 64 times. Up to 24 it is the former."""
NOTHING_S = 0.001
"""Less cannot be told from noise."""
_TRIES = 12


def growth(make: Maker, size: int) -> float:
    """How much more than in proportion the work grows from `size` to eight times of it; 1.0 is proportional.

    Noise only ever adds. The small input, whose time must not be overrated, is measured three times at once; the large
    one again only if it seems to take too long.
    """
    least = float("inf")
    for _ in range(_TRIES):
        small, large = _cpu_s(make(size), times=3), _cpu_s(make(size * FACTOR), times=1)
        least = min(least, large / max(small, NOTHING_S) / FACTOR)
        if least <= ALLOWED:
            break
    return least


def _cpu_s(work: Work, *, times: int) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.thread_time()
        work()
        best = min(best, time.thread_time() - start)
    return best
