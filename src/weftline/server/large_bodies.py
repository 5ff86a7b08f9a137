"""Limits how much memory large request bodies take.

A body is held until it is complete and parsed, and its sender determines how long that takes. A large one reserves its
whole room before more of it is read, if its size is known: otherwise a few incomplete ones could wait for each other.
While it waits for room, its socket is not read.
"""

from __future__ import annotations

from weftline.errors import RateLimited, Unavailable
from weftline.server.memory_budget import MemoryBudget, Reservation

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
