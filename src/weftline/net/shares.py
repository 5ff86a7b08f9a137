"""Limits the concurrent requests of a workspace, so that hanging peers do not block other workspaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager

from weftline.net.errors import RequestFailed
from weftline.work.turns import FairSemaphore

MAX_AT_ONCE = 64
WAIT_S = 20.0
"""How long a request may wait for its turn."""


class Shares:
    """Shares of concurrent requests. Those beyond `max_at_once` wait, the oldest first."""

    def __init__(self, *, max_at_once: int = MAX_AT_ONCE) -> None:
        self._max_at_once = max_at_once
        self._places = FairSemaphore(per_owner=max_at_once)

    @asynccontextmanager
    async def turn(self, owner: Hashable, *, timeout_s: float | None) -> AsyncGenerator[float | None]:
        """Waits for a turn, at most half of `timeout_s`, and yields the time that is left.

        Raises `RequestFailed` if it does not come.
        """
        left_s = timeout_s
        if self._places.is_full(owner):
            left_s = await self._wait(owner, timeout_s)
        else:
            await self._places.acquire(owner)
        try:
            yield left_s
        finally:
            self._places.release(owner)

    async def _wait(self, owner: Hashable, timeout_s: float | None) -> float | None:
        now = asyncio.get_running_loop().time
        began_s = now()
        wait_s = WAIT_S if timeout_s is None else min(WAIT_S, timeout_s / 2)
        try:
            async with asyncio.timeout(wait_s):
                await self._places.acquire(owner)
        except TimeoutError:
            raise RequestFailed(
                "busy",
                f"The request was not sent: it waited {wait_s:g} s for a free connection, and this workspace has"
                f" {self._max_at_once} requests under way.",
                sent=False,
            ) from None
        return None if timeout_s is None else max(timeout_s / 2, timeout_s - (now() - began_s))
