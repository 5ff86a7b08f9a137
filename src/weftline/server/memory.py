"""Limits the memory for large things, in total and per workspace."""

from __future__ import annotations

import asyncio
from collections import Counter

from weftline.errors import RateLimited, Unavailable


class MemoryBudget:
    """A budget of bytes.

    A single thing larger than the limit is allowed if nothing else is held, as it could never fit.
    """

    def __init__(self, *, max_bytes: int, max_bytes_per_workspace: int) -> None:
        self._max_bytes = max_bytes
        self._max_per_workspace = max_bytes_per_workspace
        self._held: Counter[str] = Counter()
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def held(self) -> int:
        """In bytes."""
        return self._held.total()

    @property
    def waiting(self) -> int:
        """The number of requests that wait for room."""
        return len(self._waiting)

    def hold(self, workspace: str, size: int) -> Reservation | None:
        """Reserves room; returns None if there is not enough."""
        if not self._fits(workspace, size):
            return None
        self._held[workspace] += size
        return Reservation(self, workspace, size)

    async def wait_to_hold(self, workspace: str, size: int, *, wait_s: float) -> Reservation | None:
        """Like `hold`, but waits for a while until there is room."""
        try:
            async with asyncio.timeout(wait_s):
                while not self._fits(workspace, size):
                    waiting = asyncio.get_running_loop().create_future()
                    self._waiting.append(waiting)
                    await waiting
        except TimeoutError:
            return None
        return self.hold(workspace, size)

    def is_full_for(self, workspace: str, size: int) -> bool:
        """Returns True if the workspace itself holds too much, whatever others hold."""
        own = self._held[workspace]
        return bool(own) and own + size > self._max_per_workspace

    def change(self, workspace: str, by: int) -> None:
        self._held[workspace] += by
        if not self._held[workspace]:
            del self._held[workspace]
        if by < 0:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                if not one.done():
                    one.set_result(None)

    def _fits(self, workspace: str, size: int) -> bool:
        if self.is_full_for(workspace, size):
            return False
        held = self.held
        return not held or held + size <= self._max_bytes


class Reservation:
    """The room that one thing takes up; must be freed with `free`."""

    __slots__ = ("_all", "_size", "_workspace")

    def __init__(self, rooms: MemoryBudget, workspace: str, size: int) -> None:
        self._all = rooms
        self._workspace = workspace
        self._size = size

    def resize(self, size: int) -> None:
        """Changes the size, when it turned out to be different."""
        by, self._size = size - self._size, size
        self._all.change(self._workspace, by)

    def free(self) -> None:
        self.resize(0)


LARGE_BYTES = 64 * 1024
"""Bodies of at least this size are large; the connection itself buffers as much."""
MAX_BODY_BYTES_HELD = 128 * 1024 * 1024
MAX_BODY_BYTES_HELD_PER_WORKSPACE = 64 * 1024 * 1024
"""Two of the largest, so that one slow sender does not keep another waiting. A single body may be larger."""
WAIT_S = 30.0


class LargeBodies:
    """The room for large bodies."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BODY_BYTES_HELD,
        max_bytes_per_workspace: int = MAX_BODY_BYTES_HELD_PER_WORKSPACE,
        wait_s: float = WAIT_S,
    ) -> None:
        self._rooms = MemoryBudget(max_bytes=max_bytes, max_bytes_per_workspace=max_bytes_per_workspace)
        self._wait_s = wait_s

    @property
    def held(self) -> int:
        """In bytes."""
        return self._rooms.held

    async def hold(self, workspace: str, size: int) -> Reservation:
        """Waits for a while until there is room.

        Raises `RateLimited` if the workspace's own bodies take too much, and `Unavailable` if those of others do.
        """
        room = await self._rooms.wait_to_hold(workspace, size, wait_s=self._wait_s)
        if room is not None:
            return room
        if self._rooms.is_full_for(workspace, size):
            message = "Too many large bodies of this workspace are being sent."
            raise RateLimited(message, code="too_many_large_bodies", retry_after_s=5)
        raise Unavailable("Too many large bodies are being sent to this server.", retry_after_s=5)
