"""How the C library keeps memory that has been freed."""

from __future__ import annotations

import ctypes
import os

LARGE_BYTES = 1024 * 1024
"""Blocks from this size on go back to the system when they are freed."""
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_ARENAS = 2


def return_large_blocks() -> bool:
    """Has large blocks returned to the system as soon as they are freed; False where that cannot be set.

    glibc takes larger and larger blocks from its heaps once it has seen one freed, and has a heap for each thread: a
    server that has once read a few bodies of many megabytes would keep several hundred for good. What the environment
    says about this is left as it is.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library, which has its own ways
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)) and bool(mallopt(_M_ARENA_MAX, _ARENAS))
