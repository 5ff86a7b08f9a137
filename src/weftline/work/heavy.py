"""Heavy work in a thread, a piece at a time: parsing and encoding what is large.

Such work holds the interpreter, so several threads of it are no faster than one, but make everybody else wait longer:
the loop and the writer need the interpreter back after each of their system calls, and stand in line for it every time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from weftline.work.turns import FairSemaphore, on_behalf_of

P = ParamSpec("P")
T = TypeVar("T")

PARSE_ON_LOOP_BYTES = 16 * 1024
"""Below this size, switching to a thread costs more than parsing."""
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, FairSemaphore] = WeakKeyDictionary()


async def in_turn(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `asyncio.to_thread`; workspaces take turns."""
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = FairSemaphore(1)
    async with turns.place(on_behalf_of.get()):
        return await asyncio.to_thread(work, *args, **kwargs)


def is_small(body: bytes) -> bool:
    """Whether a body should be parsed directly. Saves even the cost of `parsed`, for every run."""
    return len(body) <= PARSE_ON_LOOP_BYTES


async def parsed(parse: Callable[[bytes], T], body: bytes) -> T:
    """Returns `parse(body)`, in a thread if the body is large. The work is bounded by limits on bytes and counts."""
    return parse(body) if len(body) <= PARSE_ON_LOOP_BYTES else await in_turn(parse, body)


async def off_loop(work: Callable[[], T], *, size: int) -> T:
    """Returns `work()`, in a thread if `size` is so large that other requests would notice."""
    return work() if size <= PARSE_ON_LOOP_BYTES else await in_turn(work)
