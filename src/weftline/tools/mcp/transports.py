"""The transports to MCP servers, as the official client needs them, with a notification when the server is gone."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TextIO

import anyio
import httpx2
from mcp import StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCRequest, JSONRPCResponse

from weftline.net.address import parse
from weftline.net.dial import Dialer
from weftline.tools.mcp.address import McpAddress, McpCommand, McpPlace
from weftline.tools.mcp.http import DialledTransport
from weftline.tools.mcp.login import Credential

if TYPE_CHECKING:
    from types import TracebackType

    from mcp.client._transport import TransportStreams, WriteStream

MAX_SSE_EVENT_BYTES = 8 * 1024 * 1024
MAX_OPEN_REQUESTS = 1000
"""How many requests of a server may be open: pings, questions to people, requests for a model."""


@asynccontextmanager
async def connect(
    place: McpPlace,
    *,
    dialer: Dialer,
    credential: Credential | None,
    on_lost: Callable[[], object],
    on_login_needed: Callable[[int, str], object],
) -> AsyncGenerator[TransportStreams]:
    """Yields the streams to and from a server. Calls `on_lost` when nothing more can come from it."""

    def dialled(address: McpAddress) -> DialledTransport:
        return DialledTransport(
            dialer,
            origin=parse(address.url).origin,
            headers=dict(address.headers),
            credential=credential,
            on_login_needed=on_login_needed,
        )

    match place:
        case McpCommand():
            async with _watch(stdio_client(_parameters(place), errlog=_stderr()), on_lost) as streams:
                yield streams
        case McpAddress(transport="sse"):

            def client(*_: Any, **__: Any) -> httpx2.AsyncClient:
                return httpx2.AsyncClient(transport=dialled(place), timeout=None)

            async with _watch(sse_client(place.url, httpx_client_factory=client), on_lost) as streams:
                yield streams
        case McpAddress():
            async with httpx2.AsyncClient(transport=dialled(place), timeout=None) as http:
                transport = streamable_http_client(
                    parse(place.url).url, http_client=http, max_sse_event_size=MAX_SSE_EVENT_BYTES
                )
                async with _watch(transport, on_lost) as streams:
                    yield streams


def _parameters(place: McpCommand) -> StdioServerParameters:
    program, *args = place.command
    return StdioServerParameters(
        command=program,
        args=args,
        env=dict(place.env),
        cwd=place.cwd,
        encoding_error_handler="replace",
    )


def _stderr() -> TextIO:
    """Returns our stderr for a server's own. Notebooks have one that is not a file."""
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return sys.__stderr__ or sys.stderr
    return sys.stderr


@asynccontextmanager
async def _watch(
    transport: AbstractAsyncContextManager[TransportStreams], on_lost: Callable[[], object]
) -> AsyncGenerator[TransportStreams]:
    """Wraps a transport to notice when its server is gone, so that a later call is not mistaken for one that was sent.

    It ends with a `ConnectionError` if the server sends too many requests at once: the official client has a task for
    each one until it is answered, and does not limit them.
    """
    async with transport as (read, write):
        outgoing, incoming = anyio.create_memory_object_stream[Any](0)
        answering = _Answering(write)

        async def pass_on() -> None:
            async with outgoing:
                try:
                    async for item in read:
                        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCRequest):
                            answering.expect()
                        await outgoing.send(item)
                except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                    pass  # we are closing it ourselves
                finally:
                    on_lost()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_on)
            try:
                yield incoming, answering
            finally:
                tasks.cancel_scope.cancel()
                incoming.close()


class _Answering:
    """A stream to a server that counts the server's unanswered requests."""

    def __init__(self, stream: WriteStream[SessionMessage]) -> None:
        self._stream = stream
        self._open = 0

    def expect(self) -> None:
        """Counts a request of the server. Raises `ConnectionError` if there are too many."""
        self._open += 1
        if self._open > MAX_OPEN_REQUESTS:
            raise ConnectionError(f"The server sent more than {MAX_OPEN_REQUESTS:,} requests at once.")

    async def send(self, item: SessionMessage, /) -> None:
        await self._stream.send(item)
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self._open -= 1

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._stream.__aexit__(exc_type, exc_val, exc_tb)
