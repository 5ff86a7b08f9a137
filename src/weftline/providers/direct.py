"""The transport for model APIs that is nothing but HTTP/1.1: connections, a parser in C, and a pool.

Model calls are the busiest thing a server does, and a general HTTP client is most of what such a call costs. This one
posts a body and reads an answer: TLS by the standard library, kept-alive connections, chunked and compressed bodies,
one deadline for the whole call. It knows no proxies, cookies or redirects; where the environment names a proxy, the
transport over aiohttp is used (`weftline.net.transport`).
"""

from __future__ import annotations

import asyncio
import os
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol, TypeAlias, cast
from urllib.parse import SplitResult, urlsplit

import httptools

from weftline.net.transport import AiohttpTransport, Response
from weftline.providers.base import ProviderError

Origin: TypeAlias = tuple[str, str, int]

_IDLE_EACH = 256
"""Connections to one origin that are kept for later."""
_IDLE_S = 30.0
_HIGH_BYTES = 256 * 1024
"""Unread bytes of an answer from which on the socket is no longer read."""
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


def default_transport() -> AiohttpTransport | DirectTransport:
    """Direct connections, or aiohttp where the environment asks for a proxy."""
    if any(os.environ.get(name) for name in _PROXIES):
        return AiohttpTransport(trust_env=True)
    return DirectTransport()


class _Headers(Mapping[str, str]):
    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def add(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self._values[key] = f"{self._values[key]}, {text}" if key in self._values else text

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self):
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class _Inflate(Protocol):
    def decompress(self, data: bytes, /) -> bytes: ...


class _Broken(Exception):
    """The connection ended before the answer did."""


class _Connection(asyncio.Protocol):
    """One connection, one answer at a time. The parser calls the `on_…` methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._pieces: list[bytes] = []
        self._unread = 0
        self._paused = False
        self._error: BaseException | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.idle_since = 0.0
        self.answers = 0
        self.heard = False
        """Whether a byte of the present answer has arrived."""
        self.status = 0
        self.headers = _Headers()
        self.head_complete = False
        self.complete = True
        self._may_stay = False
        self._inflate: _Inflate | None = None

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._error is None

    @property
    def keep_alive(self) -> bool:
        return self.complete and self.usable and self._may_stay

    def send(self, data: bytes, *, deadline: float) -> None:
        assert self._transport is not None
        self.status, self.headers = 0, _Headers()
        self.heard = self.head_complete = self.complete = self._may_stay = False
        self._inflate = None
        self._pieces, self._unread = [], 0
        self._deadline = self._loop.call_at(deadline, self._fail, TimeoutError())
        self._transport.write(data)

    def release(self) -> None:
        """The answer was read to its end, or nobody wants the rest of it."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if not self.keep_alive:
            self.close()
            return
        self.answers += 1
        self.idle_since = self._loop.time()
        self._parser = httptools.HttpResponseParser(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def head(self) -> None:
        while not self.head_complete:
            await self._wait()

    async def piece(self) -> bytes:
        """The next bytes of the body; b"" at its end."""
        while not self._pieces and not self.complete:
            await self._wait()
        if not self._pieces:
            return b""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._unread = [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._error)
        self.close()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.complete:
            self._fail(_Broken())  # nobody asked: an answer to nothing, or the server's farewell
            return
        self.heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, zlib.error) as error:
            self._fail(error)
            return
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        ends_with_connection = (
            self.head_complete
            and exc is None
            and "content-length" not in self.headers
            and "chunked" not in self.headers.get("transfer-encoding", "").lower()
        )
        if ends_with_connection and not self.complete and self._error is None:
            self.complete = True
            self._error = _Broken()
            self._wake()
            return
        self._fail(exc or _Broken())

    # The parser's side

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.add(name, value)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return
        if self.headers.get("content-encoding", "").lower() in ("gzip", "x-gzip", "deflate"):
            self._inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        self.head_complete = True

    def on_body(self, body: bytes) -> None:
        if self._inflate is not None:
            body = self._inflate.decompress(body)
        if not body:
            return
        self._pieces.append(body)
        self._unread += len(body)
        if self._unread > _HIGH_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status < 200:  # 100 Continue and its like: the real head is still to come
            self.headers = _Headers()
            return
        self.complete = True
        self._may_stay = self._parser.should_keep_alive()


class DirectTransport:
    """Connections of our own. Redirects are not followed, cookies not kept, proxies not known.

    A request on a kept-alive connection that the server had already closed is sent once more, on condition that not a
    byte of an answer had arrived; any other failure is the caller's to retry.
    """

    def __init__(self) -> None:
        self._idle: dict[Origin, list[_Connection]] = {}
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    async def preload(self) -> None:
        """Loads the system's certificates in a thread, so that the first call does not stall the event loop."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)

    @asynccontextmanager
    async def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> AsyncGenerator[Response]:
        if self._closed:
            raise ProviderError("server", "The transport is closed.", retryable=False)
        parts, origin = _origin(url)
        data = _request(parts, headers, body)
        deadline = asyncio.get_running_loop().time() + timeout_s
        connection = await self._answered(origin, data, deadline)
        try:
            yield _DirectResponse(connection, origin[1])
        finally:
            connection.release()
            if connection.usable:
                self._keep(origin, connection)

    async def aclose(self) -> None:
        self._closed = True
        for line in self._idle.values():
            for connection in line:
                connection.close()
        self._idle.clear()

    async def _answered(self, origin: Origin, data: bytes, deadline: float) -> _Connection:
        """A connection on which the head of the answer has arrived."""
        kept = self._take(origin)
        if kept is not None:
            try:
                return await _asked(kept, data, deadline, origin[1])
            except ProviderError:
                if kept.heard or asyncio.get_running_loop().time() >= deadline:
                    raise
        fresh = await self._connect(origin, deadline)
        return await _asked(fresh, data, deadline, origin[1])

    def _take(self, origin: Origin) -> _Connection | None:
        line = self._idle.get(origin)
        now = asyncio.get_running_loop().time()
        while line:
            connection = line.pop()
            if connection.usable and now - connection.idle_since < _IDLE_S:
                return connection
            connection.close()
        return None

    def _keep(self, origin: Origin, connection: _Connection) -> None:
        line = self._idle.setdefault(origin, [])
        if self._closed or len(line) >= _IDLE_EACH:
            connection.close()
        else:
            line.append(connection)

    async def _connect(self, origin: Origin, deadline: float) -> _Connection:
        scheme, host, port = origin
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline):
                if scheme == "https":
                    await self.preload()
                context = self._tls if scheme == "https" else None
                _, connection = await loop.create_connection(lambda: _Connection(loop), host, port, ssl=context)
        except TimeoutError:
            raise ProviderError("timeout", f"{host} did not answer in time.") from None
        except ssl.SSLCertVerificationError:
            raise ProviderError("server", f"The certificate of {host} is not trusted.", retryable=False) from None
        except (OSError, ssl.SSLError, UnicodeError):
            raise ProviderError("server", f"Could not connect to {host}.") from None
        return connection


class _DirectResponse:
    def __init__(self, connection: _Connection, host: str) -> None:
        self._connection = connection
        self._host = host
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers

    async def read(self) -> bytes:
        pieces: list[bytes] = []
        while piece := await self._piece():
            pieces.append(piece)
        return b"".join(pieces)

    def chunks(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._piece()
        if not piece:
            raise StopAsyncIteration
        return piece

    async def _piece(self) -> bytes:
        try:
            return await self._connection.piece()
        except Exception as error:
            raise _translated(error, self._host, begun=True) from None


async def _asked(connection: _Connection, data: bytes, deadline: float, host: str) -> _Connection:
    connection.send(data, deadline=deadline)
    try:
        await connection.head()
    except BaseException as error:
        connection.close()
        connection.release()
        if isinstance(error, Exception):
            raise _translated(error, host, begun=False) from None
        raise
    return connection


def _origin(url: str) -> tuple[SplitResult, Origin]:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname:
            return parts, (parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    except ValueError:
        pass
    raise ProviderError("invalid_request", "The base URL of the provider is not a valid HTTP URL.")


def _request(parts: SplitResult, headers: Mapping[str, str], body: bytes) -> bytes:
    path = parts.path or "/"
    target = f"{path}?{parts.query}" if parts.query else path
    host = parts.netloc.rpartition("@")[2]
    fields = {"accept": "*/*", "accept-encoding": "gzip, deflate", "host": host}
    fields |= {name.lower(): value for name, value in headers.items()}
    fields["content-length"] = str(len(body))
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    head = "\r\n".join(lines)
    if any("\r" in line or "\n" in line for line in lines):
        raise ProviderError("invalid_request", "A header of the request has a line break in it.")
    try:
        return head.encode("latin-1") + b"\r\n\r\n" + body
    except UnicodeEncodeError:
        raise ProviderError("invalid_request", "The URL or a header of the request is not plain text.") from None


def _translated(error: Exception, host: str, *, begun: bool) -> ProviderError:
    """The error as a caller may see it: with the host, without path, query, headers or body."""
    match error:
        case TimeoutError():
            return ProviderError("timeout", f"{host} did not answer in time.")
        case _Broken() | OSError() | ssl.SSLError() | httptools.HttpParserError() | zlib.error():
            when = "in the middle of the answer" if begun else "before an answer came"
            return ProviderError("server", f"The connection to {host} broke {when}.")
        case _:
            return ProviderError("unknown", f"The request to {host} failed: {type(error).__name__}.")
