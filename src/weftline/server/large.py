"""Limits how much memory large responses take, and for how long.

A response is held in memory until its client has read it. For large ones, the total size is limited, and so is the part
of one workspace. A client that reads a response too slowly loses it, as others wait for the room.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from weftline.errors import RateLimited
from weftline.server.http import DISCONNECT, PIECE_BYTES, Disconnect, Request, Response, Send, send_response
from weftline.server.memory import MemoryBudget, Reservation

LARGE_BYTES = PIECE_BYTES
"""Responses of at least this size are large."""
MAX_HELD_BYTES = 128 * 1024 * 1024
MAX_HELD_BYTES_PER_WORKSPACE = 32 * 1024 * 1024
"""A single response may be larger."""
WAIT_S = 10.0
_TIMES_READ = 3
"""What is read is held as bytes, as decoded objects, and as the response made from them."""
GRACE_S, MIN_BYTES_PER_S = 30.0, 128 * 1024


class LargeResponses:
    """The room for large responses."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_HELD_BYTES,
        max_bytes_per_workspace: int = MAX_HELD_BYTES_PER_WORKSPACE,
        wait_s: float = WAIT_S,
        grace_s: float = GRACE_S,
        min_bytes_per_s: int = MIN_BYTES_PER_S,
    ) -> None:
        self._rooms = MemoryBudget(max_bytes=max_bytes, max_bytes_per_workspace=max_bytes_per_workspace)
        self._wait_s = wait_s
        self._grace_s = grace_s
        self._min_bytes_per_s = min_bytes_per_s
        self.making = asyncio.Semaphore(1)
        """Held while a large response is created, which temporarily takes a multiple of its size."""

    @property
    def held(self) -> int:
        """In bytes."""
        return self._rooms.held

    @property
    def waiting(self) -> int:
        """The number of requests that wait for room."""
        return self._rooms.waiting

    def hold(self, workspace: str, size: int) -> Reservation:
        """Reserves room. Raises `RateLimited` if there is not enough."""
        return _require_room(self._rooms.hold(workspace, size))

    async def wait_to_hold(self, workspace: str, size: int) -> Reservation:
        """Like `hold`, but waits for a while until there is room."""
        return _require_room(await self._rooms.wait_to_hold(workspace, size, wait_s=self._wait_s))

    async def make_and_send(
        self, request: Request, workspace: str, *, size: int, make: Callable[[], Awaitable[Response]]
    ) -> None:
        """Creates and sends a response of about `size` bytes, which needs room before it is created."""
        room = await self.wait_to_hold(workspace, size)
        disconnect: Disconnect | None = request.scope.get(DISCONNECT)
        try:
            if disconnect is not None and disconnect.gone:
                raise ConnectionResetError
            async with self.making:
                answer = await make()
            room.resize(len(answer.body))
            await self.send(request, answer, room)
        finally:
            room.free()

    @asynccontextmanager
    async def room_to_work(self, workspace: str, size: int) -> AsyncGenerator[None]:
        """Reserves room for a request that reads this much and sends little. Raises `RateLimited` if there is none."""
        if size <= LARGE_BYTES:
            yield
            return
        room = await self.wait_to_hold(workspace, _TIMES_READ * size)
        try:
            yield
        finally:
            room.free()

    async def send(self, request: Request, answer: Response, room: Reservation) -> None:
        """Sends a response and frees its room. Raises `ConnectionResetError` if the client is too slow."""
        try:
            async with self._in_time(len(answer.body)):
                await send_response(request, answer)
        finally:
            room.free()

    async def send_frame(self, send: Send, data: bytes) -> None:
        """Sends a part of a stream, in pieces. Raises `ConnectionResetError` if the client is too slow."""
        async with self._in_time(len(data)):
            for at in range(0, len(data), PIECE_BYTES):
                piece = data[at : at + PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(0)  # yield to others, even if the client reads everything at once

    @asynccontextmanager
    async def _in_time(self, size: int) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._grace_s + size / self._min_bytes_per_s):
                yield
        except TimeoutError:
            raise ConnectionResetError from None


class RequestRoom:
    """The room that one request has taken so far, to read things before it knows the size of its response."""

    def __init__(self, all_responses: LargeResponses, workspace: str) -> None:
        self._all = all_responses
        self._workspace = workspace
        self._room: Reservation | None = None

    @property
    def held(self) -> Reservation | None:
        return self._room

    async def need(self, size: int) -> None:
        """Waits for this much room, replacing what was held before. Raises `RateLimited` if there is not enough."""
        self.free()
        self._room = await self._all.wait_to_hold(self._workspace, size)

    def free(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.free()


def _require_room(room: Reservation | None) -> Reservation:
    if room is None:
        message = "Too many large responses are under way; read those first."
        raise RateLimited(message, code="too_many_large_responses", retry_after_s=5)
    return room
