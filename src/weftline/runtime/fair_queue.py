"""Taking turns: one piece of work per loop iteration, workspace by workspace.

Reading a page of a log takes the loop up to a millisecond. A thousand readers that all want one would be served before
anyone else; here each waits for its turn, and a workspace with many readers waits longer than one with few.
"""

from __future__ import annotations

import asyncio
from collections import deque


class FairQueue:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        self._taken = False
        """Whether this loop iteration is already taken."""

    async def take(self, workspace: int) -> None:
        """Returns when it is this workspace's turn; at once if the loop iteration is still free."""
        if not self._taken:
            self._taken = True
            self._loop.call_soon(self._next)
            return
        turn = self._loop.create_future()
        self._waiting.setdefault(workspace, deque()).append(turn)
        await turn

    def _next(self) -> None:
        while self._waiting:
            workspace = next(iter(self._waiting))
            queue = self._waiting.pop(workspace)
            turn = queue.popleft()
            if queue:
                self._waiting[workspace] = queue  # to the end of the round
            if not turn.done():
                turn.set_result(None)
                self._loop.call_soon(self._next)
                return
        self._taken = False
