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

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, FairSemaphore] = WeakKeyDictionary()


async def in_turn(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `asyncio.to_thread`; workspaces take turns."""
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = FairSemaphore(1)
    async with turns.place(on_behalf_of.get()):
        return await asyncio.to_thread(work, *args, **kwargs)
