"""Large pieces of work on the loop: one at a time, letting everybody else run in between."""

from __future__ import annotations

import asyncio

LARGE_CHARS = 256 * 1024
"""Arguments of this size take a noticeable time to parse, check and encode."""


class LargeSteps:
    """All methods belong to one event loop."""

    def __init__(self) -> None:
        self._next = asyncio.Lock()

    async def wait_for_slot(self) -> None:
        """Waits until a large step may be taken: at most one per loop iteration, however many wait."""
        async with self._next:
            await asyncio.sleep(0)
