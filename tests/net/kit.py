"""Loopback servers that speak raw HTTP, so that each test decides on every byte and every close."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from weftline.net.dial import Dialer
from weftline.net.errors import RequestFailed, TimeLimits
from weftline.net.transport import AiohttpTransport

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Served: yes\r\n\r\nhello"
WAIT_S = 60.0
LIMITS = TimeLimits(connect_s=WAIT_S, first_byte_s=WAIT_S, idle_s=WAIT_S, total_s=WAIT_S)


@asynccontextmanager
async def listening(serve: Serve, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[int]:
    """The port of a server on 127.0.0.1; each connection ends when `serve` returns."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def serving(serve: Serve) -> AsyncGenerator[str]:
    async with listening(serve) as port:
        yield f"http://127.0.0.1:{port}/v1/messages?key=sk-secret"


def answering(answer: bytes, *, requests: list[bytes] | None = None, stay: bool = False) -> Serve:
    """Answers each connection's first request with these bytes, and then hangs up unless it is to `stay`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        if requests is not None:
            requests.append(request)
        writer.write(answer)
        await writer.drain()
        if stay:
            await reader.read()

    return serve


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    fields = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    length = next((int(value) for name, _, value in fields if name == b"content-length"), 0)
    return head + await reader.readexactly(length)


@asynccontextmanager
async def transport() -> AsyncGenerator[AiohttpTransport]:
    opened = AiohttpTransport()
    try:
        yield opened
    finally:
        await opened.aclose()


async def post(http: AiohttpTransport, url: str, *, limits: TimeLimits = LIMITS) -> bytes:
    """The whole body of an answer."""
    async with http.post(url, headers={}, body=b"{}", limits=limits) as response:
        return await response.read()


async def dialled(dialer: Dialer, method: str, url: str, *, redirects: int = 0) -> bytes | RequestFailed:
    """The body of an answer, or why there is none."""
    try:
        async with dialer.request(method, url, body=b"{}", timeout_s=WAIT_S, redirects=redirects) as response:
            return await response.read()
    except RequestFailed as error:
        return error


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
