"""MCP servers that this process connects to: their tools are offered to the run, and called from here.

Each connection lives in one task on a loop in its own thread, because the library ties a connection to the task that
opened it. So it works the same from the sync and the async client, and runs on different loops can share one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from weftline.client.arguments import SchemaArguments, ToolContext, as_text
from weftline.client.errors import ClientError, InvalidSpec, NetworkError, ToolError
from weftline.client.events import OfferedCall
from weftline.client.tools import Handler
from weftline.peer_responses import is_closed, read_leniently
from weftline.work.loop_thread import LoopThread
from weftline.work.threads import Threads

if TYPE_CHECKING:
    from mcp import Client as McpClient

logger = logging.getLogger("weftline.client")

_MAX_PAGES = 1000
_MAX_NAME = 64


def local_mcp(
    name: str,
    *,
    command: str | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    url: str | None = None,
    headers: Mapping[str, str] | None = None,
    only: Sequence[str] | None = None,
    prefix: str = "",
    timeout_s: float | None = 300.0,
) -> LocalMcp:
    """The tools of an MCP server: `command` starts one on stdio, `url` reaches one over streamable HTTP.

    Needs the extra `mcp`. The connection opens with the first run that uses it, is shared by concurrent runs,
    and closes after the last; `with` or `async with` keeps it open longer.

    Args:
        name: A label of your choice, which events show as `mcpServer`.
        only: The names of the tools to offer; all when left out.
        prefix: Put in front of every tool's name, to keep the tools of two servers apart.
        timeout_s: For one call.
    """
    if (command is None) == (url is None):
        raise InvalidSpec("give either command or url")
    return LocalMcp(
        name,
        command=command,
        args=tuple(args),
        env=env,
        cwd=cwd,
        url=url,
        headers=headers,
        only=None if only is None else frozenset(only),
        prefix=prefix,
        timeout_s=timeout_s,
    )


class LocalMcp:
    """An MCP server, made by `local_mcp`."""

    def __init__(
        self,
        name: str,
        *,
        command: str | None,
        args: tuple[str, ...],
        env: Mapping[str, str] | None,
        cwd: str | Path | None,
        url: str | None,
        headers: Mapping[str, str] | None,
        only: frozenset[str] | None,
        prefix: str,
        timeout_s: float | None,
    ) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self._command = command
        self._args = args
        self._env = env
        self._cwd = cwd
        self._url = url
        self._headers = headers
        self._only = only
        self._prefix = prefix
        self._lock = threading.Lock()
        self._users = 0
        self._connection: _Connection | None = None

    def __repr__(self) -> str:
        return f"<local_mcp {self.name!r}, {self._users} users>"

    async def acquire(self) -> dict[str, Any]:
        with self._lock:
            self._users += 1
            if self._connection is None:
                self._connection = _Connection(self)
            connection = self._connection
        try:
            return await connection.ready()
        except BaseException:
            await self.release()
            raise

    async def release(self) -> None:
        with self._lock:
            self._users -= 1
            connection = None if self._users else self._connection
            if connection is not None:
                self._connection = None
        if connection is not None:
            await connection.close()

    def handler(self, call: OfferedCall) -> Handler | None:
        connection = self._connection
        if call.kind != "mcp_local" or call.mcp_server not in (self.name, None) or connection is None:
            return None
        return connection.handler(call.mcp_tool_name or call.name)

    async def call(self, connection: _Connection, name: str, args: dict[str, Any]) -> str:
        """Calls a tool. If the server has gone away since `connection` was opened, it is started again first."""
        if connection.is_lost:
            connection = await self._replaced(connection)
        return await connection.call(name, args)

    async def _replaced(self, lost: _Connection) -> _Connection:
        with self._lock:
            mine = self._connection is lost
            if mine:
                logger.warning("the MCP server %s has gone away and is being restarted", self.name)
                self._connection = _Connection(self)
            connection = self._connection
        if mine:
            await lost.close()
        if connection is None:
            raise ToolError(f"The MCP server {self.name} is not connected.")
        try:
            await connection.ready()
        except ClientError as error:
            raise ToolError(f"The MCP server {self.name} has gone away and cannot be restarted: {error}") from error
        return connection

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    def __enter__(self) -> Self:
        asyncio.run(self.acquire())
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run(self.release())

    async def open(self, stack: AsyncExitStack) -> McpClient:
        """Opens a connection, in the task and on the loop that own it."""
        try:
            from mcp import Client, StdioServerParameters
            from mcp.client.streamable_http import streamable_http_client
        except ImportError as error:
            raise ClientError("local_mcp needs the extra `mcp`: pip install '.[mcp]' in a checkout") from error
        if self._command is not None:
            target: Any = StdioServerParameters(
                command=self._command,
                args=list(self._args),
                env=None if self._env is None else dict(self._env),
                cwd=self._cwd,
            )
        else:
            import httpx2

            assert self._url is not None
            timeout = httpx2.Timeout(30.0, read=None)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=self._headers, timeout=timeout))
            target = streamable_http_client(self._url, http_client=http)
        return await stack.enter_async_context(Client(target))

    def offered(self, tools: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Returns the tools to send, and the mapping back from the names that the model sees."""
        shipped: list[dict[str, Any]] = []
        names: dict[str, str] = {}
        chosen = [one for one in tools if self._only is None or one.name in self._only]
        # A tool whose name needs no change keeps it, whatever the other names become.
        exact = {whole for one in chosen if model_name(whole := self._prefix + one.name, taken=()) == whole}
        for one in chosen:
            whole = self._prefix + one.name
            visible = model_name(whole, taken=names if whole in exact else names.keys() | exact)
            names[visible] = one.name
            shipped.append({**one.model_dump(mode="json", by_alias=True, exclude_none=True), "name": visible})
        return shipped, names


class _Connection:
    """One connection: a thread, its loop, and the task that owns the connection."""

    def __init__(self, server: LocalMcp) -> None:
        self._server = server
        self._thread = LoopThread(f"weftline-mcp-{server.name}")
        self._client: McpClient | None = None
        self._lost = False
        self._names: dict[str, str] = {}
        self._schemas: dict[str, SchemaArguments] = {}
        self._stop: asyncio.Event | None = None
        self._opened: asyncio.Future[dict[str, Any]] | None = None
        self._owner = self._thread.submit(self._own())

    async def ready(self) -> dict[str, Any]:
        """Waits until the server has listed its tools, and returns the reference to send."""
        return await asyncio.wrap_future(self._thread.submit(self._reference()))

    async def close(self) -> None:
        self._thread.submit(self._end())
        try:
            await asyncio.wrap_future(self._owner)
        except Exception:
            pass  # the caller that opened the connection got the error
        await asyncio.to_thread(self._thread.stop)

    def handler(self, visible: str) -> Handler | None:
        upstream = self._names.get(visible)
        return None if upstream is None else _McpCall(self._server, self, upstream, self._schemas[visible])

    @property
    def is_lost(self) -> bool:
        """True if the server has gone away."""
        return self._lost or (self._client is not None and is_closed(self._client))

    async def call(self, name: str, args: dict[str, Any]) -> str:
        return await asyncio.wrap_future(self._thread.submit(self._call_on_thread(name, args)))

    async def _own(self) -> None:
        self._stop = asyncio.Event()
        self._opened = asyncio.get_running_loop().create_future()
        try:
            async with AsyncExitStack() as stack:
                try:
                    client = await self._server.open(stack)
                    read_leniently(client, server=self._server.name)
                    reference = await self._listed(client)
                except ClientError as error:
                    self._opened.set_exception(error)
                    return
                except Exception as error:
                    failure = NetworkError(f"the MCP server {self._server.name!r} cannot be used: {_root(error)}")
                    failure.__cause__ = error
                    self._opened.set_exception(failure)
                    return
                self._client = client
                self._opened.set_result(reference)
                await self._stop.wait()
                self._client = None
        finally:
            if not self._opened.done():
                self._opened.set_exception(NetworkError(f"the MCP server {self._server.name!r} was closed"))
            # Waiting callers already have the error.
            self._opened.exception()

    async def _reference(self) -> dict[str, Any]:
        assert self._opened is not None  # the owner was submitted first and has begun
        return await asyncio.shield(self._opened)

    async def _end(self) -> None:
        assert self._stop is not None
        self._stop.set()

    async def _listed(self, client: McpClient) -> dict[str, Any]:
        tools: list[Any] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        else:
            logger.warning("the MCP server %s has more than %d pages of tools", self._server.name, _MAX_PAGES)
        shipped, self._names = self._server.offered(tools)
        if not shipped:
            raise NetworkError(f"the MCP server {self._server.name!r} offers no tools")
        self._schemas = {
            one["name"]: SchemaArguments(one.get("inputSchema") or {}, name=one["name"]) for one in shipped
        }
        reference: dict[str, Any] = {"kind": "mcp_local", "name": self._server.name, "tools": shipped}
        if client.server_info is not None:
            reference["serverInfo"] = client.server_info.model_dump(mode="json", by_alias=True, exclude_none=True)
        return reference

    async def _call_on_thread(self, name: str, args: dict[str, Any]) -> str:
        if self._client is None:
            raise ToolError(f"The MCP server {self._server.name} is not connected.")
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        try:
            result = await self._client.call_tool(name, args)
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise ToolError(f"The MCP server {self._server.name} failed: {_root(error)}") from error
            self._lost = True
            raise ToolError(
                f"The MCP server {self._server.name} went away during the call, "
                "which may or may not have taken effect. It will be restarted for the next call."
            ) from error
        except Exception as error:
            raise ToolError(f"The MCP server {self._server.name} failed: {_root(error)}") from error
        text = content_text(result)
        if result.is_error:
            raise ToolError(text or f"{name} failed.")
        return text


class _McpCall:
    def __init__(self, server: LocalMcp, connection: _Connection, name: str, schema: SchemaArguments) -> None:
        self._server = server
        self._connection = connection
        self._name = name
        self._schema = schema
        self.timeout_s = server.timeout_s

    async def __call__(self, args: dict[str, Any], context: ToolContext, workers: Threads) -> str:
        self._schema.check(args)
        return await self._server.call(self._connection, self._name, args)


def content_text(result: Any) -> str:
    """Returns the text blocks of a result, one per line.

    Other content is only named; structured content is used if there is nothing else.
    """
    lines: list[str] = []
    for block in result.content:
        if block.type == "text":
            lines.append(block.text)
        elif block.type == "resource" and getattr(block.resource, "text", None) is not None:
            lines.append(block.resource.text)
        elif block.type == "resource_link":
            lines.append(f"[resource {block.uri}]")
        else:
            kind = getattr(block, "mime_type", None) or getattr(getattr(block, "resource", None), "mime_type", None)
            lines.append(f"[{block.type} {kind or ''}".rstrip() + "]")
    if not lines and result.structured_content is not None:
        return as_text(result.structured_content)
    return "\n".join(lines)


def model_name(name: str, *, taken: Collection[str]) -> str:
    """Returns a name for the model: unchanged if it is valid and free, otherwise the nearest that is."""
    visible = re.sub(r"[^a-zA-Z0-9_]", "_", name) or "tool"
    if len(visible) <= _MAX_NAME and visible not in taken:
        return visible
    mark = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{visible[: _MAX_NAME - 9]}_{mark}"


def _root(error: BaseException) -> str:
    """Returns the first cause inside exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
