"""Work on large bodies is done in a thread, so that others are answered in the meantime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PARSE_ON_LOOP_BYTES = 16 * 1024
"""A hop to a thread costs more than reading so little."""


def is_small(body: bytes) -> bool:
    """Whether a body is better read at once: for what `parsed` costs as well, on the path of every run."""
    return len(body) <= PARSE_ON_LOOP_BYTES


async def parsed(parse: Callable[[bytes], T], body: bytes) -> T:
    """`parse(body)`; what it may do in a thread is bounded by the limits on bytes and counts."""
    return parse(body) if len(body) <= PARSE_ON_LOOP_BYTES else await asyncio.to_thread(parse, body)


async def off_loop(work: Callable[[], T], *, size: int) -> T:
    """`work()`, in a thread if it is about so many bytes that others would notice."""
    return work() if size <= PARSE_ON_LOOP_BYTES else await asyncio.to_thread(work)
