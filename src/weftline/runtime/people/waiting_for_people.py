"""Tells whether a tree of runs waits for people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from weftline.errors import WeftlineError
from weftline.runtime import ids
from weftline.runtime.live import LiveRun


async def waits_for_people(
    key: int, *, load: Callable[[int], Awaitable[LiveRun]], settled: Callable[[LiveRun], Awaitable[None]]
) -> bool:
    """Returns True if neither the run nor any run below it can advance before a person has answered. Their awaits are
    durable then.

    A run that cannot continue here does not count, because it is not known what it waits for.
    """
    try:
        run = await load(key)
    except WeftlineError:
        return False
    state = run.state
    if state.ended:
        return False  # its parent continues
    asks = bool(state.questions.open) and state.waits_for_people
    if not (asks or state.control.paused or state.waits_for_children):
        return False
    for child in state.open_children:
        if not await waits_for_people(ids.key_of(child), load=load, settled=settled):
            return False
    await settled(run)
    return True
