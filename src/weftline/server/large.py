"""Large responses: how much of them is held at once, and for how long.

A response is held in memory until its client has taken it. Small ones do not matter; of large ones there is room for
so many bytes in all, and for one workspace no more than a part of that. A client that takes a response too slowly loses
it: others wait for the room.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from weftline.errors import RateLimited
from weftline.server.http import DEPARTURE, PIECE_BYTES, Departure, Request, Response, Send, send_response
from weftline.server.memory_budget import MemoryBudget, Reservation

LARGE_BYTES = PIECE_BYTES
"""From here on a response is large."""
MAX_HELD_BYTES = 128 * 1024 * 1024
MAX_HELD_BYTES_PER_WORKSPACE = 32 * 1024 * 1024
"""Or a single response, however large."""
WAIT_S = 10.0
_TIMES_READ = 3
"""What is read is there as bytes, as what was decoded from them, and as what is made of that."""
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
        """Held while a large response is made, which takes a multiple of its size for a moment."""

    @property
    def held(self) -> int:
        """Bytes."""
        return self._rooms.held

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return self._rooms.waiting

    def hold(self, workspace: str, size: int) -> Reservation:
        """Raises `RateLimited` if there is no room for so much."""
        return _there_is(self._rooms.hold(workspace, size))

    async def wait_to_hold(self, workspace: str, size: int) -> Reservation:
        """Like `hold`, but waits for a while until there is room."""
        return _there_is(await self._rooms.wait_to_hold(workspace, size, wait_s=self._wait_s))

    async def make_and_send(
        self, request: Request, workspace: str, *, size: int, make: Callable[[], Awaitable[Response]]
    ) -> None:
        """Sends a response of about `size` bytes that needs room before it is made."""
        room = await self.wait_to_hold(workspace, size)
        departure: Departure | None = request.scope.get(DEPARTURE)
        try:
            if departure is not None and departure.gone:
                raise ConnectionResetError
            async with self.making:
                answer = await make()
            room.resize(len(answer.body))
            await self.send(request, answer, room)
        finally:
            room.free()

    @asynccontextmanager
    async def room_to_work(self, workspace: str, size: int) -> AsyncGenerator[None]:
        """Room for a request that reads so much and sends little. Raises `RateLimited` if there is none."""
        if size <= LARGE_BYTES:
            yield
            return
        room = await self.wait_to_hold(workspace, _TIMES_READ * size)
        try:
            yield
        finally:
            room.free()

    async def send(self, request: Request, answer: Response, room: Reservation) -> None:
        """Sends it and frees its room. Raises `ConnectionResetError` if the client is too slow."""
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
                await asyncio.sleep(0)  # a client that takes it all at once leaves others their turn

    @asynccontextmanager
    async def _in_time(self, size: int) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._grace_s + size / self._min_bytes_per_s):
                yield
        except TimeoutError:
            raise ConnectionResetError from None


class RequestRoom:
    """The room that one request has taken so far, for what it must read before it knows how much it will send."""

    def __init__(self, all_responses: LargeResponses, workspace: str) -> None:
        self._all = all_responses
        self._workspace = workspace
        self._room: Reservation | None = None

    @property
    def held(self) -> Reservation | None:
        return self._room

    async def need(self, size: int) -> None:
        """Waits for room for so much, in place of what was held before. Raises `RateLimited` if there is none."""
        self.free()
        self._room = await self._all.wait_to_hold(self._workspace, size)

    def free(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.free()


def _there_is(room: Reservation | None) -> Reservation:
    if room is None:
        message = "Too many large responses are under way; read those first."
        raise RateLimited(message, code="too_many_large_responses", retry_after_s=5)
    return room
