"""Limits the concurrent requests of a workspace, so that hanging peers do not block other workspaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager

from weftline.net.errors import RequestFailed

MAX_AT_ONCE = 64
WAIT_S = 20.0
"""How long a request may wait for its turn."""


class Shares:
    """Shares of concurrent requests. Those beyond `max_at_once` wait, the oldest first."""

    def __init__(self, *, max_at_once: int = MAX_AT_ONCE) -> None:
        self._max_at_once = max_at_once
        self._shares: dict[Hashable, _Share] = {}

    @asynccontextmanager
    async def turn(self, owner: Hashable, *, timeout_s: float | None) -> AsyncGenerator[float | None]:
        """Waits for a turn, at most half of `timeout_s`, and yields the time that is left.

        Raises `RequestFailed` if it does not come.
        """
        share = self._shares.get(owner)
        if share is None:
            share = self._shares[owner] = _Share(self._max_at_once)
        share.users += 1
        try:
            left_s = timeout_s
            if share.turns.locked():
                left_s = await self._wait(share, timeout_s)
            else:
                await share.turns.acquire()
            try:
                yield left_s
            finally:
                share.turns.release()
        finally:
            share.users -= 1
            if not share.users:
                del self._shares[owner]

    async def _wait(self, share: _Share, timeout_s: float | None) -> float | None:
        now = asyncio.get_running_loop().time
        began_s = now()
        wait_s = WAIT_S if timeout_s is None else min(WAIT_S, timeout_s / 2)
        try:
            async with asyncio.timeout(wait_s):
                await share.turns.acquire()
        except TimeoutError:
            raise RequestFailed(
                "busy",
                f"The request was not sent: it waited {wait_s:g} s for a free connection, and this workspace has"
                f" {self._max_at_once} requests under way.",
                sent=False,
            ) from None
        return None if timeout_s is None else max(timeout_s / 2, timeout_s - (now() - began_s))


class _Share:
    __slots__ = ("turns", "users")

    def __init__(self, max_at_once: int) -> None:
        self.turns = asyncio.Semaphore(max_at_once)
        self.users = 0
        """How many are in progress or waiting."""
