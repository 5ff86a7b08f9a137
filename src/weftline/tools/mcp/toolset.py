"""`mcp(…)`: the tools of an MCP server, for an agent."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias
from weakref import WeakKeyDictionary

from msgspec import Struct

from weftline.messages import Text, UserPart
from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.tools.base import Tool, ToolOutput
from weftline.tools.mcp.address import REVISIONS, TRANSPORTS, McpAddress, McpCommand, McpPlace, Revision, Transport
from weftline.tools.mcp.asking import OnElicit, OnSample, Responders, ServerQuestion
from weftline.tools.mcp.pool import CONNECT_S, McpPool
from weftline.tools.mcp.tools import McpEntry, McpTool, content_parts, list_tools, offered, resource_part, unavailable
from weftline.tools.remote import name_of_command, name_of_url, redacted

if TYPE_CHECKING:
    from mcp import Client

Disclosure: TypeAlias = Literal["eager", "lazy"]

START_S = 60.0
"""For a server that is started here, as its first start may download it."""
MAX_PAGES = 100
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
_MAX_NAME = 32


class McpResource(Struct, frozen=True):
    uri: str
    name: str
    description: str = ""
    media_type: str | None = None


class McpPrompt(Struct, frozen=True):
    name: str
    description: str = ""
    arguments: tuple[str, ...] = ()


def mcp(
    server: str | Sequence[str],
    *,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    headers: Mapping[str, str] | None = None,
    transport: Transport = "http",
    revision: Revision | None = None,
    disclosure: Disclosure | None = None,
    only: Sequence[str] | None = None,
    timeout_s: float | None = None,
    connect_s: float | None = None,
    on_elicit: OnElicit | Literal["ask", "decline"] = "ask",
    on_sample: OnSample | Literal["model"] | None = None,
) -> McpServer:
    """The tools of an MCP server, as `<name>__<tool>`. Needs the extra `mcp`.

    The server is connected, or started, with the first run that needs it, together with the agent's other servers; the
    engine closes it. If it goes away, it is connected or started again at the next call.

    Args:
        server: The command line that starts a server on stdio (`"npx -y some-server"`, or a list), or a URL.
        name: The prefix of its tools' names; by default derived from the command or the URL.
        env: For a command: variables besides PATH, HOME and the like. No other variables of this process are passed on.
        cwd: For a command: where it is started.
        headers: For a URL: sent with every request to its origin.
        transport: For a URL: `sse` for servers that only support the older transport.
        revision: The protocol revision, for servers that support several: "2025-11-25" (or an older one, as the server
        chooses), in which a server can ask during a call, or "2026-07-28". By default the former is tried first for
        a URL, and the latter for a command.
        disclosure: `lazy` withholds the tools until the model looks for them, `eager` offers them at once; by default
        the agent's setting.
        only: The tools to offer, by the server's own names; all by default.
        timeout_s: For one call.
        connect_s: For connecting and listing the tools; 10 s for a URL, 60 s for a command.
        on_elicit: Answers the server's questions to a person. By default ("ask") people are asked, as with `ask_user`;
        with "decline" nobody is.
        on_sample: Answers the server's requests for a model; with "model" the run's own model does, in a child run. By
        default such requests are refused.
    """
    place: McpPlace
    if isinstance(on_elicit, str) and on_elicit not in ("ask", "decline"):
        raise ValueError(f"on_elicit must be 'ask', 'decline' or a function, not {on_elicit!r}")
    if isinstance(on_sample, str) and on_sample != "model":
        raise ValueError(f"on_sample must be 'model' or a function, not {on_sample!r}")
    if transport not in TRANSPORTS:
        raise ValueError(f"transport must be {' or '.join(map(repr, TRANSPORTS))}, not {transport!r}")
    if revision is not None and revision not in REVISIONS:
        raise ValueError(f"revision must be {' or '.join(map(repr, REVISIONS))}, not {revision!r}")
    if isinstance(server, str) and re.match(r"https?://", server, re.IGNORECASE):
        if env is not None or cwd is not None:
            raise ValueError("env and cwd are for a server that is started; a URL takes headers")
        if transport == "sse" and revision == "2026-07-28":
            raise ValueError("the sse transport is older than revision 2026-07-28")
        place = McpAddress(0, server, tuple(sorted((headers or {}).items())), transport)
        found = name_of_url(server)
    else:
        if headers is not None or transport != "http":
            raise ValueError("headers and transport are for a URL; a command takes env and cwd")
        command = tuple(shlex.split(server) if isinstance(server, str) else server)
        if not command:
            raise ValueError("mcp() takes the command that starts a server, or its URL")
        place = McpCommand(command, tuple(sorted((env or {}).items())), None if cwd is None else os.fspath(cwd))
        found = name_of_command(command)
    name = found[:_MAX_NAME].strip("_") if name is None else name
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
        raise ValueError(
            f"an MCP server cannot be named {name!r}: a letter, then letters, digits and single underscores, "
            f"at most {_MAX_NAME}"
        )
    return McpServer(
        name,
        place,
        disclosure=disclosure,
        only=None if only is None else tuple(only),
        timeout_s=timeout_s,
        connect_s=connect_s or (START_S if isinstance(place, McpCommand) else CONNECT_S),
        revision=revision,
        asked=Responders(None if on_elicit == "decline" else on_elicit, on_sample),
    )


def named_tools(
    server: str, entries: Sequence[McpEntry], *, pool: McpPool, place: McpPlace, only: tuple[str, ...] | None
) -> list[McpTool]:
    """Returns the tools as `<server>__<tool>`, independent of the order in which they are listed.

    A server's name has neither double underscores nor one at the end, so the first double underscore in a tool's name
    ends it: tools of different servers cannot have the same name.
    """
    in_order = tuple(sorted(entries, key=lambda entry: entry.name))
    return offered(f"{server}_", in_order, pool=pool, address=place, tool_filter=only)


class _Connected:
    """The connections of an event loop to a server, shared by the engines on it."""

    def __init__(self, *, connect_s: float, revision: Revision | None, asked: Responders) -> None:
        # The program itself chose the address, so private ones are allowed.
        self.dialer = Dialer(Egress("private"))
        self.pool = McpPool(self.dialer, connect_s=connect_s, revision=revision, asked=asked)
        self.users = 0

    async def aclose(self) -> None:
        await self.pool.aclose()
        await self.dialer.aclose()


class McpServer:
    """The toolset of an MCP server, made by `mcp(…)`; a `weftline.tools.base.ServerToolset`."""

    def __init__(
        self,
        name: str,
        place: McpPlace,
        *,
        disclosure: Disclosure | None,
        only: tuple[str, ...] | None,
        timeout_s: float | None,
        connect_s: float,
        revision: Revision | None,
        asked: Responders,
    ) -> None:
        self.name = name
        self.prefix = f"{name}__"
        self.disclosure = disclosure
        self._place = place
        self._only = only
        self._timeout_s = timeout_s
        self._connect_s = connect_s
        self._revision: Revision | None = revision
        self._asked = asked
        self._connected: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connected] = WeakKeyDictionary()

    @property
    def samples(self) -> bool:
        """True if the server may ask the model of a run that calls it."""
        return self._asked.on_sample == "model"

    def __repr__(self) -> str:
        return f"<mcp {self.name!r} {self._place.display_url}>"

    # Methods of `ServerToolset`

    async def open(self) -> Sequence[Tool]:
        connected = self._enter()
        try:
            entries = await list_tools(connected.pool, self._place)
        except BaseException:
            await self.close()
            raise
        tools = named_tools(self.name, entries, pool=connected.pool, place=self._place, only=self._only)
        asks = self._asked.on_elicit == "ask"
        question = ServerQuestion(self.name, taken=[one.name for one in tools])
        for one in tools:
            one.server, one.timeout_s = self.name, self._timeout_s
            one.ask_through(question=question.spec.name if asks else "")
        return [*tools, question] if asks else tools

    def stand_in(self, error: Exception) -> Sequence[Tool]:
        reason = self._place.redactor.text(str(error) or type(error).__name__)
        reason = reason if reason.endswith((".", "!", "?")) else f"{reason}."
        return [unavailable(self.name, reason, tool=f"{self.prefix}unavailable")]

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        connected = self._connected.get(loop)
        if connected is None:
            return
        connected.users -= 1
        if connected.users <= 0:
            self._connected.pop(loop, None)
            await connected.aclose()

    # Resources and prompts

    async def resources(self) -> list[McpResource]:
        """Returns everything that the server allows to be read."""
        found: list[McpResource] = []
        async with self._client() as client:
            cursor: str | None = None
            for _ in range(MAX_PAGES):
                page = await client.list_resources(cursor=cursor)
                found += [
                    McpResource(str(one.uri), one.name, one.description or "", one.mime_type) for one in page.resources
                ]
                cursor = page.next_cursor
                if cursor is None:
                    break
        return found

    async def read_resource(self, uri: str) -> tuple[UserPart, ...]:
        """Returns the content of a resource, to give it to a run or show it to a person."""
        async with self._client() as client:
            result = await client.read_resource(uri)
        return self._redacted([resource_part(one) for one in result.contents])

    async def prompts(self) -> list[McpPrompt]:
        """Returns the prompts that the server offers to its users."""
        found: list[McpPrompt] = []
        async with self._client() as client:
            cursor: str | None = None
            for _ in range(MAX_PAGES):
                page = await client.list_prompts(cursor=cursor)
                found += [
                    McpPrompt(one.name, one.description or "", tuple([each.name for each in one.arguments or ()]))
                    for one in page.prompts
                ]
                cursor = page.next_cursor
                if cursor is None:
                    break
        return found

    async def prompt(self, name: str, **arguments: str) -> str:
        """Returns one of the server's prompts as text, its messages one after the other."""
        async with self._client() as client:
            result = await client.get_prompt(name, arguments)
        parts = self._redacted([part for one in result.messages for part in content_parts(one.content)])
        return "\n\n".join([part.text for part in parts if isinstance(part, Text)])

    def _redacted(self, parts: list[UserPart]) -> tuple[UserPart, ...]:
        return redacted(ToolOutput(tuple(parts)), self._place.redactor).parts

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[Client]:
        """Connects temporarily, if no engine on this loop has a connection."""
        connected = self._enter()
        try:
            async with connected.pool.use(self._place) as connection:
                yield connection.client
        finally:
            await self.close()

    def _enter(self) -> _Connected:
        loop = asyncio.get_running_loop()
        connected = self._connected.get(loop)
        if connected is None:
            connected = self._connected[loop] = _Connected(
                connect_s=self._connect_s, revision=self._revision, asked=self._asked
            )
        connected.users += 1
        return connected
