"""A response whose head has arrived, and its body, read in pieces or whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from weftline.net.errors import BodyTooLarge
from weftline.net.failures import failure
from weftline.net.limits import TimeLimits
from weftline.net.watch import BodyWatch

if TYPE_CHECKING:
    import aiohttp


MAX_PIECE_BYTES = 8 * 1024


class HttpResponse:
    """A response. The body can be read once.

    `max_bytes` limits it after decompression; None leaves that to the reader.
    """

    __slots__ = (
        "_content",
        "_host",
        "_left",
        "_limit",
        "_response",
        "_rest",
        "_watch",
        "headers",
        "reason",
        "status",
        "url",
    )

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        *,
        url: str,
        host: str,
        limits: TimeLimits,
        started: float,
        max_bytes: int | None,
    ) -> None:
        self._response = response
        self._content = response.content
        self._host = host
        self._limit = self._left = max_bytes
        self._rest = memoryview(b"")
        """Received data that was not returned yet."""
        self._watch = BodyWatch(response.content, host=host, limits=limits, started=started)
        self.url = url
        self.status = response.status
        self.reason = response.reason or ""
        self.headers: Mapping[str, str] = response.headers

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str | None:
        return self._response.charset

    def chunks(self) -> AsyncIterator[bytes]:
        """Returns the body in pieces, each what had arrived when it was requested, at most 8 KiB.

        A reader that parses them blocks the loop for one piece at most, however fast the server sends: other tasks get
        a turn between pieces that arrived together.
        """
        # Not a generator, so that an iterator abandoned midway leaves nothing to close.
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._rest:
            await asyncio.sleep(0)
        else:
            arrived = await self._arrived()
            if not arrived:
                raise StopAsyncIteration
            if len(arrived) <= MAX_PIECE_BYTES:
                return arrived
            self._rest = memoryview(arrived)
        piece, self._rest = self._rest[:MAX_PIECE_BYTES], self._rest[MAX_PIECE_BYTES:]
        return bytes(piece)

    async def _arrived(self) -> bytes:
        """Returns what has arrived, about 256 KiB at most; empty at the end."""
        watch = self._watch
        watch.waiting_since = watch.now()
        try:
            piece = await self._content.readany()
        except Exception as error:
            # aiohttp drops what it has not passed on yet. That may include the last events of a response, as some
            # servers hang up without a proper end.
            piece = self._content._read_nowait(-1)  # pyright: ignore[reportPrivateUsage]
            if not piece:
                raise failure(error, host=self._host, begun=True) from None
        watch.waiting_since = None
        if self._left is not None and self._limit is not None:
            self._left -= len(piece)
            if self._left < 0:
                raise BodyTooLarge(self._host, self._limit)
        return piece

    async def read(self, *, limit: int | None = None) -> bytes:
        """Returns the whole body. Raises `BodyTooLarge` as soon as it exceeds `limit` bytes."""
        pieces: list[bytes] = []
        size = 0
        while piece := await self._arrived():
            pieces.append(piece)
            size += len(piece)
            if limit is not None and size > limit:
                raise BodyTooLarge(self._host, limit)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read_up_to(self, limit: int) -> tuple[bytes, bool]:
        """Returns the body, or its first `limit` bytes, and whether that is all of it."""
        pieces: list[bytes] = []
        left = limit
        while piece := await self._arrived():
            pieces.append(piece[:left])
            left -= len(piece)
            if left < 0:
                return b"".join(pieces), False
        return b"".join(pieces), True

    def close(self) -> None:
        """Closes the connection, unless the body was read to its end: then it is already back in the pool."""
        self._watch.stop()
        if not self._response.closed:
            self._response.close()
