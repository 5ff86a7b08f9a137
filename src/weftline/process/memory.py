"""Makes the C library return freed memory to the system."""

from __future__ import annotations

import ctypes
import os

LARGE_BYTES = 1024 * 1024
"""Blocks from this size on go back to the system when they are freed."""
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_ARENAS = 2


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
