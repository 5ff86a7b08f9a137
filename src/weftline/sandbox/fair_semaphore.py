"""Decides who runs next: a fixed number at once, taken round robin over owners, first come first served within one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque


class FairSemaphore:
    """A semaphore with `limit` places. An owner, such as a workspace, is not held up by floods of others."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def acquire(self, owner: str) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # it was our turn, and we will not use it
            else:
                self._forget(owner, turn)
            raise

    def release(self) -> None:
        while self._waiting:
            owner, queue = next(iter(self._waiting.items()))
            turn = queue.popleft()
            if queue:
                self._waiting.move_to_end(owner)
            else:
                del self._waiting[owner]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _forget(self, owner: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(owner)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[owner]
