"""Parses large bodies in a thread, so that other requests are served in the meantime."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from weftline.work.heavy import in_turn

T = TypeVar("T")

PARSE_ON_LOOP_BYTES = 16 * 1024
"""Below this size, switching to a thread costs more than parsing."""


def is_small(body: bytes) -> bool:
    """Whether a body should be parsed directly. Saves even the cost of `parsed`, for every run."""
    return len(body) <= PARSE_ON_LOOP_BYTES


async def parsed(parse: Callable[[bytes], T], body: bytes) -> T:
    """Returns `parse(body)`, in a thread if the body is large. The work is bounded by limits on bytes and counts."""
    return parse(body) if len(body) <= PARSE_ON_LOOP_BYTES else await in_turn(parse, body)


async def off_loop(work: Callable[[], T], *, size: int) -> T:
    """Returns `work()`, in a thread if `size` is so large that other requests would notice."""
    return work() if size <= PARSE_ON_LOOP_BYTES else await in_turn(work)
