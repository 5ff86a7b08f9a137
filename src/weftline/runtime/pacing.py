"""Large pieces of work on the loop: one at a time, with a turn for everybody else in between."""

from __future__ import annotations

import asyncio

LARGE_CHARS = 256 * 1024
"""Arguments of this size take a noticeable time to read, check and write down."""


class LargeSteps:
    """All methods belong to one event loop."""

    def __init__(self) -> None:
        self._next = asyncio.Lock()

    async def turn(self) -> None:
        """Returns when a large step may be taken. No iteration of the loop has two of them, however many wait."""
        async with self._next:
            await asyncio.sleep(0)
