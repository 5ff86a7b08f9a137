"""Connections to MCP servers, shared by the runs that use the same server with the same headers.

Each connection has one owner task that opens and closes it; calls from other tasks use it concurrently. A connection
that has been idle for a while is closed, and one whose session the server has forgotten is replaced without callers
noticing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, cast

from weftline import prompts
from weftline._version import __version__
from weftline.net.address import parse
from weftline.net.dial import Dialer
from weftline.peer_responses import read_leniently
from weftline.text.redaction import Redactor
from weftline.tools.mcp.address import McpAddress, McpPlace, Revision
from weftline.tools.mcp.asking import Caller, Responders, caller_of
from weftline.tools.mcp.login import Credential
from weftline.work.turns import FairSemaphore

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client.client import ConnectMode
    from mcp.client.session import ClientRequestContext
    from mcp.types import (
        CreateMessageRequestParams,
        CreateMessageResult,
        ElicitRequestParams,
        ElicitResult,
        ErrorData,
    )

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
"""The limit of one workspace."""
IDLE_S = 60.0
CONNECT_S = 10.0
_REMEMBERED_SERVERS = 1024
_END_PROGRAMS_S = 10.0
_LATE_QUESTION_S = 5.0
"""How long a process may take to ask about a call that was interrupted. A connection is not reused after that."""


Credentials: TypeAlias = Callable[[McpAddress], Awaitable[Credential | None]]
"""Finds the credential for a server; None if there is none."""


class McpMissing(Exception):
    """The extra `mcp` is not installed."""


class McpPool:
    """A pool of connections. A workspace has at most `max_connections` at a time; further ones wait."""

    def __init__(
        self,
        dialer: Dialer,
        *,
        max_connections: int = MAX_CONNECTIONS,
        idle_s: float = IDLE_S,
        connect_s: float = CONNECT_S,
        credentials: Credentials | None = None,
        mode: ConnectMode = "legacy",
        revision: Revision | None = None,
        asked: Responders | None = None,
    ) -> None:
        """`asked` answers the requests of servers; without it they are declined.

        Without a `revision`, an address is tried with `mode` and, if it refuses, with the newest one; a command is
        tried with the newest first.
        """
        self.connect_s = connect_s
        self._asked = asked or Responders()
        self._credentials = credentials
        self._mode: ConnectMode = mode
        self._revision: Revision | None = revision
        self._modern: OrderedDict[str, None] = OrderedDict()
        """Servers without `initialize`, so that it is not tried again each time."""
        self._dialer = dialer
        self._idle_s = idle_s
        self._rooms = FairSemaphore(per_owner=max_connections)
        self._connections: dict[McpPlace, Connection] = {}
        self._replaced: set[Connection] = set()
        """Those that only finish the calls in progress."""
        self._closing: set[Connection] = set()

    @asynccontextmanager
    async def use(self, address: McpPlace) -> AsyncGenerator[Connection]:
        """Yields an open connection, and keeps it open for the duration. Raises the error if it cannot be opened."""
        connection = self._fit(address)
        if connection is None:
            await _load()
            connection = self._fit(address)
        if connection is None:
            self._make_room(address.workspace)
            connection = self._connections[address] = Connection(
                self._dialer,
                address,
                rooms=self._rooms,
                credentials=self._credentials,
                mode=self._mode_of(address),
                may_change=self._revision is None,
                asked=self._asked,
            )
        connection.users += 1
        if connection.expiry is not None:
            connection.expiry.cancel()
            connection.expiry = None
        try:
            await connection.opened(timeout_s=self.connect_s)
            self._remember(connection)
            yield connection
        finally:
            connection.users -= 1
            if not connection.users and self._connections.get(address) is not connection:
                self._replaced.discard(connection)
                if not connection.ended:
                    self.discard(connection)
            elif not connection.users and self._connections.get(address) is connection:
                if connection.ended or not connection.is_fit:
                    self.discard(connection)
                elif isinstance(address, McpAddress):
                    # Processes stay, as the next call may rely on their state.
                    loop = asyncio.get_running_loop()
                    connection.expiry = loop.call_later(self._idle_s, self.discard, connection)

    def _fit(self, address: McpPlace) -> Connection | None:
        """Returns the open connection that the next call may use."""
        connection = self._connections.get(address)
        return connection if connection is not None and not connection.ended and connection.is_fit else None

    def discard(self, connection: Connection) -> None:
        """Closes a connection, and with it the calls in progress."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        self._replaced.discard(connection)
        self._closing.add(connection)
        connection.owner.add_done_callback(lambda _: self._closing.discard(connection))
        connection.close()

    def forget_logins(self, workspace: int | None = None) -> None:
        """Replaces connections whose login may have changed; those without one may get one now.

        Calls in progress finish: a person who logs in must not put them in doubt.
        """
        for address, connection in list(self._connections.items()):
            if _takes_logins(address) and workspace in (None, address.workspace):
                self.replace(connection)

    def replace(self, connection: Connection) -> None:
        """Has the next call open another connection; calls in progress finish on this one."""
        if not connection.users:
            self.discard(connection)
        elif self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            self._replaced.add(connection)

    async def login_has_come(self, connection: Connection) -> bool:
        """Returns True if there is a login by now for a server that refused a connection without one."""
        address = connection.address
        if self._credentials is None or connection.credential is not None or not _takes_logins(address):
            return False
        return await self._credentials(address) is not None

    async def aclose(self) -> None:
        for connection in [*self._connections.values(), *self._replaced]:
            self.discard(connection)
        owners = [connection.owner for connection in self._closing]
        if owners:
            # A program gets time to exit and is then killed; cancelling that midway would leave it behind.
            programs = any(not isinstance(connection.address, McpAddress) for connection in self._closing)
            _, late = await asyncio.wait(owners, timeout=_END_PROGRAMS_S if programs else 2.0)
            for owner in late:
                owner.cancel()
            if late:
                await asyncio.wait(late, timeout=2.0)

    def _mode_of(self, address: McpPlace) -> ConnectMode:
        if self._revision is not None:
            return "legacy" if self._revision == "2025-11-25" else self._revision
        if isinstance(address, McpAddress) and address.url not in self._modern:
            return self._mode
        return "auto"

    def _remember(self, connection: Connection) -> None:
        if self._revision is None and isinstance(connection.address, McpAddress) and connection.mode != self._mode:
            self._modern[connection.address.url] = None
            if len(self._modern) > _REMEMBERED_SERVERS:
                self._modern.popitem(last=False)

    def _make_room(self, workspace: int) -> None:
        if self._rooms.is_full(workspace):
            own = [one for one in self._connections.values() if one.address.workspace == workspace]
            idle = [connection for connection in own if not connection.users]
            if idle:
                self.discard(min(idle, key=lambda connection: connection.last_used))


class Connection:
    def __init__(
        self,
        dialer: Dialer,
        address: McpPlace,
        *,
        rooms: FairSemaphore,
        credentials: Credentials | None = None,
        mode: ConnectMode = "legacy",
        may_change: bool = True,
        asked: Responders,
    ) -> None:
        """`may_change` allows trying the newest revision for a server without `initialize`."""
        loop = asyncio.get_running_loop()
        self.address = address
        self.mode: ConnectMode = mode
        self._may_change = may_change
        self.credential: Credential | None = None
        self._wants_login: tuple[int, str] | None = None
        """The error of the last request that a login is missing for: tries of other revisions may end otherwise."""
        self.callers: list[Caller] = []
        """The calls in progress."""
        self._cut_off: set[str] = set()
        """Runs whose calls were interrupted: a question of the server may still belong to them."""
        self._credentials = credentials
        self._asked = asked
        self.users = 0
        self.last_used = loop.time()
        self.expiry: asyncio.TimerHandle | None = None
        self._dialer = dialer
        self._rooms = rooms
        self._has_room = False
        self._client: asyncio.Future[Client] = loop.create_future()
        self._closing = asyncio.Event()
        self.owner = asyncio.create_task(self._own(), name="mcp connection")

    @property
    def ended(self) -> bool:
        return self.owner.done() or self._closing.is_set()

    @property
    def is_fit(self) -> bool:
        """True if further calls may use it. A process may have state that they rely on, so it is always used."""
        return not self._cut_off or not isinstance(self.address, McpAddress)

    def cut_off(self, run: str) -> None:
        """Records that a call of this run ended without an answer."""
        self._cut_off.add(run)
        if not isinstance(self.address, McpAddress):
            asyncio.get_running_loop().call_later(_LATE_QUESTION_S, self._cut_off.discard, run)

    @property
    def redactor(self) -> Redactor:
        """Redacts what the server was sent, including the tokens of the login."""
        own = self.address.redactor
        return own if self.credential is None else own | self.credential.redactor

    @property
    def client(self) -> Client:
        """The session of an open connection."""
        self.last_used = asyncio.get_running_loop().time()
        return self._client.result()

    async def opened(self, *, timeout_s: float) -> None:
        """Waits until the connection is open; raises the error if it cannot be opened."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._client)
        except TimeoutError:
            self.close()
            raise TimeoutError(
                prompts.remote.MCP_TIMED_OUT if self._has_room else prompts.remote.MCP_NO_CONNECTION
            ) from None

    def close(self) -> None:
        if self._closing.is_set():
            return  # a second cancellation would interrupt the ending of its program
        self._closing.set()
        if not self._client.done():
            self.owner.cancel()

    async def _own(self) -> None:
        try:
            async with self._rooms.place(self.address.workspace):
                self._has_room = True
                address = self.address
                if self._credentials is not None and _takes_logins(address):
                    self.credential = await self._credentials(address)
                await self._keep()
        except BaseException as error:
            if not self._client.done():
                cause = _cause(error)
                if isinstance(cause, asyncio.CancelledError):
                    cause = ConnectionError("The connection was given up.")
                self._client.set_exception(cause)
                self._client.exception()  # retrieved here, as there may be no callers to do so
            elif not isinstance(error, asyncio.CancelledError):
                logger.info("an MCP connection ended: %s", self.redactor.text(str(_cause(error))))
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _keep(self) -> None:
        from mcp import Client, MCPError
        from mcp.types import Implementation

        from weftline.tools.mcp.http import BROKEN, NOT_SENT, UNAUTHORIZED
        from weftline.tools.mcp.transports import connect as streams

        transport = streams(
            self.address,
            dialer=self._dialer.of(self.address.workspace),
            credential=self.credential,
            on_lost=self._lost,
            on_login_needed=self._login_needed,
        )
        try:
            async with Client(
                transport,
                mode=self.mode,
                elicitation_callback=self._elicited,
                sampling_callback=None if self._asked.on_sample is None else self._sampled,
                client_info=Implementation(name="weftline", version=__version__),
                cache=None,
            ) as client:
                # The package validates results against the server's own schemas, on the loop and without a time limit.
                # `McpTool` does that with bounded work.
                setattr(client.session, "validate_tool_result", _unchecked)  # noqa: B010
                read_leniently(client, server=self.address.display_url, redact=lambda text: self.redactor.text(text))
                self._client.set_result(client)
                await self._closing.wait()
        except BaseException as error:
            cause = _cause(error)
            # Servers of the newest revision have no `initialize`, and refuse it in many ways: with an unknown method,
            # missing headers or metadata, a status without a body, or another version.
            reached = isinstance(cause, Exception) and not isinstance(cause, TimeoutError)
            if isinstance(cause, MCPError):
                reached = cause.code not in (NOT_SENT, BROKEN, UNAUTHORIZED)
            if self.mode != "legacy" or not self._may_change or self._client.done() or not reached:
                if reached and self._wants_login is not None and not self._client.done():
                    raise MCPError(*self._wants_login) from None
                raise
        else:
            return
        self.mode = "auto"
        await self._keep()

    def _login_needed(self, code: int, message: str) -> None:
        self._wants_login = code, message

    def _lost(self) -> None:
        if self._client.done():
            self._closing.set()

    async def _elicited(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        """Answers the server's question to a person."""
        from mcp.types import ElicitResult

        caller = caller_of(self.callers, self._cut_off)
        values = await self._asked.values(params, caller)
        if values is not None:
            return ElicitResult(action="accept", content=values or None)
        for one in self.callers:
            if caller is None:
                one.decline("")
            elif caller.ask is None and one.run == caller.run:
                one.decline(params.message)
        return ElicitResult(action="decline")

    async def _sampled(
        self, context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        """Answers the server's request for a model."""
        return await self._asked.text(params, caller_of(self.callers, self._cut_off))


def _takes_logins(address: McpPlace) -> TypeGuard[McpAddress]:
    """Returns True if a stored login is used there: not if the tool's own headers include Authorization."""
    if not isinstance(address, McpAddress) or parse(address.url).basic is not None:
        return False
    return not any(name.lower() == "authorization" for name, _ in address.headers)


async def _unchecked(name: str, result: object) -> None:
    """Replaces the package's own validation."""


async def _load() -> None:
    """Imports the official client in a thread, as it takes most of a second."""
    try:
        await asyncio.to_thread(_import_mcp)
    except ImportError:
        raise McpMissing from None


def _import_mcp() -> None:
    import mcp  # noqa: F401  # pyright: ignore[reportUnusedImport]

    import weftline.tools.mcp.transports  # noqa: F401  # pyright: ignore[reportUnusedImport]  imported for its effect


def _cause(error: BaseException) -> BaseException:
    """Returns the first failure inside an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
