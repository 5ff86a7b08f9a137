"""A response whose head has arrived, and its body, read in pieces or whole."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from weftline.net.egress import EgressRefused
from weftline.net.errors import DEFAULT_LIMITS, BodyTooLarge, RequestFailed, TimeLimits

if TYPE_CHECKING:
    import aiohttp


def failure(error: Exception, *, host: str, begun: bool, limits: TimeLimits = DEFAULT_LIMITS) -> RequestFailed:
    """Returns the failure.

    `begun` says whether the head of the response had arrived; `limits` were those of the request.
    """
    import aiohttp

    match error:
        case RequestFailed():
            return error
        case EgressRefused() | aiohttp.ClientConnectorError(os_error=EgressRefused()):
            refusal = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            return RequestFailed("refused", str(refusal), sent=False)
        case aiohttp.ClientConnectorCertificateError():
            cause = error.certificate_error
            why = f": {cause.verify_message}" if isinstance(cause, ssl.SSLCertVerificationError) else ""
            return RequestFailed("certificate", f"The certificate of {host} is not trusted{why}.", sent=False)
        case aiohttp.ClientProxyConnectionError():
            return RequestFailed("connect", "Could not connect to the proxy.", sent=False)
        case aiohttp.ClientHttpProxyError():
            return RequestFailed("proxy", f"The proxy did not connect to {host}: status {error.status}.", sent=False)
        case aiohttp.ClientConnectorError():
            return RequestFailed("connect", f"Could not connect to {host}.", sent=False)
        case aiohttp.ConnectionTimeoutError():
            return RequestFailed(
                "timeout", f"Could not connect to {host} within {limits.connect_s or 0:g} s.", sent=False
            )
        case TimeoutError():
            return RequestFailed("timeout", f"{host} did not answer within {limits.head_s or 0:g} s.", sent=True)
        case aiohttp.InvalidURL() | ValueError():
            return RequestFailed("invalid", "The URL or a header of the request is not valid.", sent=False)
        case aiohttp.ClientError() | OSError():
            when = "in the middle of its response" if begun else "before it responded"
            return RequestFailed("broken", f"The connection to {host} broke {when}.", sent=True)
        case _:
            return RequestFailed("unknown", f"The request to {host} failed: {type(error).__name__}.", sent=True)


class BodyWatch:
    """One timer per body, which is not reset at every read: when it fires, it checks the progress.

    The reader sets `waiting_since` while it waits for the next piece.
    """

    __slots__ = ("_content", "_deadline", "_host", "_limits", "_timer", "now", "waiting_since")

    def __init__(self, content: aiohttp.StreamReader, *, host: str, limits: TimeLimits, started: float) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time
        self.waiting_since: float | None = None
        self._content = content
        self._host = host
        self._limits = limits
        self._deadline = None if limits.total_s is None else started + limits.total_s
        self._timer: asyncio.TimerHandle | None = None
        if not content.is_eof():
            self._look()
            # A body that has fully arrived may be read at any pace.
            content.on_eof(self.stop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now, idle_s = self.now(), self._limits.idle_s
        since = now if self.waiting_since is None else self.waiting_since
        if self._deadline is not None and now >= self._deadline:
            self._give_up(f"{self._host} did not finish its response within {self._limits.total_s:g} s.")
        elif idle_s is not None and now - since >= idle_s:
            self._give_up(f"{self._host} sent nothing for {idle_s:g} s in the middle of its response.")
        else:
            times = [time for time in (self._deadline, None if idle_s is None else since + idle_s) if time is not None]
            self._timer = asyncio.get_running_loop().call_at(min(times), self._look) if times else None

    def _give_up(self, message: str) -> None:
        self._timer = None
        self._content.set_exception(RequestFailed("timeout", message, sent=True))


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
