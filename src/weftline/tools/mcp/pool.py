"""Connections to MCP servers, shared by the runs that use the same server with the same headers.

Each connection has one owner task that opens it, keeps it, and closes it; calls from other tasks go through it side by
side. A connection that nobody has used for a while is closed, and one whose session the server has forgotten is
replaced by a new one without the callers losing anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from weftline._version import __version__
from weftline.net.address import parse
from weftline.net.dial import Dialer
from weftline.redaction import Redactor, shown_url

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client.client import ConnectMode

logger = logging.getLogger(__name__)

MOST = 64
IDLE_S = 60.0
CONNECT_S = 10.0
MAX_SSE_EVENT_BYTES = 8 * 1024 * 1024


class McpAddress(Struct, frozen=True, dict=True):
    """A server as one workspace knows it. Sessions are never shared between workspaces."""

    workspace: int
    url: str
    headers: tuple[tuple[str, str], ...] = ()

    @cached_property
    def redactor(self) -> Redactor:
        """Of what the server is sent."""
        return Redactor.of_request(self.url, dict(self.headers))

    def __repr__(self) -> str:
        return f"McpAddress({self.workspace}, {shown_url(self.url)!r})"


class McpMissing(Exception):
    """The extra `mcp` is not installed."""


class McpPool:
    """At most `most` connections at a time; further ones wait for room."""

    def __init__(
        self, dialer: Dialer, *, most: int = MOST, idle_s: float = IDLE_S, connect_s: float = CONNECT_S
    ) -> None:
        self.connect_s = connect_s
        self._dialer = dialer
        self._idle_s = idle_s
        self._room = asyncio.Semaphore(most)
        self._connections: dict[McpAddress, Connection] = {}
        self._closing: set[Connection] = set()

    @asynccontextmanager
    async def use(self, address: McpAddress) -> AsyncGenerator[Connection]:
        """A connection that is open, held open meanwhile. Raises what opening it failed with."""
        connection = self._connections.get(address)
        if connection is None or connection.ended:
            await _load()
            connection = self._connections.get(address)
        if connection is None or connection.ended:
            self._make_room()
            connection = self._connections[address] = Connection(self._dialer, address, room=self._room)
        connection.users += 1
        if connection.expiry is not None:
            connection.expiry.cancel()
            connection.expiry = None
        try:
            await connection.opened(timeout_s=self.connect_s)
            yield connection
        finally:
            connection.users -= 1
            if not connection.users and self._connections.get(address) is connection:
                if connection.ended:
                    del self._connections[address]
                else:
                    loop = asyncio.get_running_loop()
                    connection.expiry = loop.call_later(self._idle_s, self.discard, connection)

    def discard(self, connection: Connection) -> None:
        """Uses a connection no more; those who still wait for an answer on it may get it."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        self._closing.add(connection)
        connection.owner.add_done_callback(lambda _: self._closing.discard(connection))
        connection.close()

    async def aclose(self) -> None:
        for connection in list(self._connections.values()):
            self.discard(connection)
        owners = [connection.owner for connection in self._closing]
        if owners:
            _, late = await asyncio.wait(owners, timeout=2.0)
            for owner in late:
                owner.cancel()
            if late:
                await asyncio.wait(late, timeout=2.0)

    def _make_room(self) -> None:
        if self._room.locked():
            idle = [connection for connection in self._connections.values() if not connection.users]
            if idle:
                self.discard(min(idle, key=lambda connection: connection.last_used))


class Connection:
    def __init__(self, dialer: Dialer, address: McpAddress, *, room: asyncio.Semaphore) -> None:
        loop = asyncio.get_running_loop()
        self.address = address
        self.users = 0
        self.last_used = loop.time()
        self.expiry: asyncio.TimerHandle | None = None
        self._dialer = dialer
        self._room = room
        self._client: asyncio.Future[Client] = loop.create_future()
        self._closing = asyncio.Event()
        self.owner = asyncio.create_task(self._own(), name="mcp connection")

    @property
    def ended(self) -> bool:
        return self.owner.done() or self._closing.is_set()

    @property
    def client(self) -> Client:
        """Of a connection that is open."""
        self.last_used = asyncio.get_running_loop().time()
        return self._client.result()

    async def opened(self, *, timeout_s: float) -> None:
        """Returns when the connection is open; raises what opening it failed with."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._client)
        except TimeoutError:
            self.close()
            raise TimeoutError("The server did not answer in time.") from None

    def close(self) -> None:
        self._closing.set()
        if not self._client.done():
            self.owner.cancel()

    async def _own(self) -> None:
        try:
            async with self._room:
                await self._keep("legacy")
        except BaseException as error:
            if not self._client.done():
                cause = _cause(error)
                if isinstance(cause, asyncio.CancelledError):
                    cause = ConnectionError("The connection was given up.")
                self._client.set_exception(cause)
                self._client.exception()  # seen: whoever waits gets it, and it may be that nobody does
            elif not isinstance(error, asyncio.CancelledError):
                logger.info("an MCP connection ended: %s", self.address.redactor.text(str(_cause(error))))
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _keep(self, mode: ConnectMode) -> None:
        import httpx2
        from mcp import Client, MCPError
        from mcp.client.streamable_http import streamable_http_client
        from mcp.types import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION, Implementation

        from weftline.tools.mcp.http import DialledTransport

        target = parse(self.address.url)
        transport = DialledTransport(self._dialer, origin=target.origin, headers=dict(self.address.headers))
        try:
            async with (
                httpx2.AsyncClient(transport=transport, timeout=None) as http,
                Client(
                    streamable_http_client(target.url, http_client=http, max_sse_event_size=MAX_SSE_EVENT_BYTES),
                    mode=mode,
                    client_info=Implementation(name="weftline", version=__version__),
                    cache=None,
                ) as client,
            ):
                # The package checks results against the server's own schemas, on the loop and however long it takes.
                # `McpTool` does that with a bound.
                setattr(client.session, "validate_tool_result", _unchecked)  # noqa: B010
                self._client.set_result(client)
                await self._closing.wait()
        except BaseException as error:
            cause = _cause(error)
            # Servers of the newest revision have no `initialize`.
            too_new = isinstance(cause, MCPError) and cause.code in (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION)
            if mode != "legacy" or self._client.done() or not too_new:
                raise
        else:
            return
        await self._keep("auto")


async def _unchecked(name: str, result: object) -> None:
    """In place of the package's own check."""


async def _load() -> None:
    """Imports the official client in a thread: it takes the better part of a second."""
    try:
        await asyncio.to_thread(_import_mcp)
    except ImportError:
        raise McpMissing from None


def _import_mcp() -> None:
    import mcp.client.streamable_http  # noqa: F401  # pyright: ignore[reportUnusedImport]

    import weftline.tools.mcp.http  # noqa: F401  # pyright: ignore[reportUnusedImport]  imported for its effect


def _cause(error: BaseException) -> BaseException:
    """The first failure inside a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
