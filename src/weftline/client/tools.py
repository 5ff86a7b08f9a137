"""The tools of a run: functions in this process, and references to tools that the server runs."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import FrameType
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload
from weakref import WeakKeyDictionary

from weftline.client.arguments import ToolContext, arguments_of, as_text
from weftline.client.errors import InvalidSpec, ToolError
from weftline.client.events import OfferedCall
from weftline.tools.signature import Docstring
from weftline.wire.limits import TOOL_NAME_PATTERN
from weftline.work.threads import Threads

P = ParamSpec("P")
R = TypeVar("R")


class Handler(Protocol):
    """Answers one call. The model reads the text of an exception."""

    timeout_s: float | None

    async def __call__(self, args: dict[str, Any], context: ToolContext, workers: Threads) -> str: ...


class Tool(Protocol):
    """A tool that a run can be given."""

    async def acquire(self) -> dict[str, Any]:
        """Prepares the tool (connects, lists, fetches) and returns its reference for the server."""
        ...

    async def release(self) -> None:
        """Undoes one `acquire`."""
        ...

    def handler(self, call: OfferedCall) -> Handler | None:
        """Returns the handler of a call, if the call is for this tool."""
        ...


class LocalTool(Generic[P, R]):
    """A function that the model may call and that runs here. It can still be called like the original function."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: object = None,
        output_schema: Mapping[str, Any] | None = None,
        long_running: bool = False,
        timeout_s: float | None = None,
        max_concurrency: int | None = None,
        tags: Sequence[str] = (),
        local_names: Mapping[str, Any] | None = None,
    ) -> None:
        self.fn = fn
        self.name = name or getattr(fn, "__name__", "")
        if not re.fullmatch(TOOL_NAME_PATTERN, self.name):
            raise InvalidSpec(f"tool name {self.name!r} must match {TOOL_NAME_PATTERN}")
        self.description = Docstring.parse(inspect.getdoc(fn)).description if description is None else description
        self.timeout_s = timeout_s
        self._arguments = arguments_of(parameters, fn, name=self.name, local_names=local_names)
        self._output_schema = output_schema
        self._long_running = long_running
        self._tags = list(tags)
        self._is_async = inspect.iscoroutinefunction(fn)
        self._max_concurrency = max_concurrency
        # One tool may serve clients on several loops, but a semaphore belongs to one.
        self._free: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def ref(self) -> dict[str, Any]:
        """The tool as the protocol describes it."""
        ref: dict[str, Any] = {
            "kind": "local",
            "name": self.name,
            "description": self.description,
            "parameters": self._arguments.schema(),
        }
        if self._output_schema is not None:
            ref["outputSchema"] = dict(self._output_schema)
        if self._long_running:
            ref["longRunning"] = True
        if self._tags:
            ref["tags"] = self._tags
        return ref

    async def acquire(self) -> dict[str, Any]:
        return self.ref()

    async def release(self) -> None:
        pass

    def handler(self, call: OfferedCall) -> Handler | None:
        return _FunctionCall(self) if call.kind == "local" and call.name == self.name else None

    async def answer(self, args: dict[str, Any], context: ToolContext, workers: Threads) -> str:
        if not self._max_concurrency:
            return await self._run_handler(args, context, workers)
        loop = asyncio.get_running_loop()
        free = self._free.get(loop)
        if free is None:
            free = self._free[loop] = asyncio.Semaphore(self._max_concurrency)
        async with free:
            return await self._run_handler(args, context, workers)

    async def _run_handler(self, args: dict[str, Any], context: ToolContext, workers: Threads) -> str:
        positional, keywords = self._arguments.bind(args, context)
        fn = cast("Callable[..., Any]", self.fn)
        if self._is_async:
            value: Any = await fn(*positional, **keywords)
        else:
            value = await workers.run(lambda: fn(*positional, **keywords))
            if inspect.isawaitable(value):
                value = await value
        return as_text(value)


class _FunctionCall:
    def __init__(self, tool: LocalTool[Any, Any]) -> None:
        self._tool = tool
        self.timeout_s = tool.timeout_s

    async def __call__(self, args: dict[str, Any], context: ToolContext, workers: Threads) -> str:
        return await self._tool.answer(args, context, workers)


@overload
def tool(fn: Callable[P, R], /) -> LocalTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: object = None,
    output_schema: Mapping[str, Any] | None = None,
    long_running: bool = False,
    timeout_s: float | None = None,
    max_concurrency: int | None = None,
    tags: Sequence[str] = (),
) -> Callable[[Callable[P, R]], LocalTool[P, R]]: ...


def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Turns a function, sync or async, into a tool. The model reads its signature and docstring.

        @tool
        def weather(city: str, days: int = 1) -> str:
            '''The weather of a city.

            Args:
                city: Its name, with the country.
            '''

    With `parameters` (a JSON Schema, or a pydantic model class) the function has one parameter, the arguments as a dict
    or as that model. A sync function runs in a thread. Raise `ToolError` to tell the model what went wrong.
    """
    if fn is not None:
        return LocalTool(fn, local_names=_names_around(fn, inspect.currentframe()))

    def made(given: Callable[..., Any]) -> LocalTool[..., Any]:
        return LocalTool(given, **options, local_names=_names_around(given, inspect.currentframe()))

    return made


def _names_around(fn: Callable[..., Any], frame: FrameType | None) -> Mapping[str, Any] | None:
    """Returns the names that the type hints of a nested function may refer to, if they are strings.

    `frame` is the decorator's, whose caller defines the function.
    """
    if frame is None or frame.f_back is None or "<locals>" not in getattr(fn, "__qualname__", ""):
        return None
    return frame.f_back.f_locals


class ServerTool:
    """A reference to a tool that the server runs; see `plugin_tool` and its siblings."""

    def __init__(self, ref: dict[str, Any]) -> None:
        self._ref = ref

    def ref(self) -> dict[str, Any]:
        return dict(self._ref)

    async def acquire(self) -> dict[str, Any]:
        return self.ref()

    async def release(self) -> None:
        pass

    def handler(self, call: OfferedCall) -> Handler | None:
        return None

    def __repr__(self) -> str:
        return f"<{self._ref['kind']} {self._ref.get('name') or self._ref.get('id')}>"


def server_tool(name: str) -> ServerTool:
    """Returns a tool of the server itself: built in, from its tools file, or `@package/tool` of a package."""
    # The protocol's name, which servers of every version know.
    return ServerTool({"kind": "mantyx_plugin", "name": name})


def plugin_tool(name: str) -> ServerTool:
    """Alias of `server_tool`."""
    return server_tool(name)


def stored_tool(tool_id: str) -> ServerTool:
    """Returns a tool that is stored in the workspace, by its id."""
    return ServerTool({"kind": "mantyx", "id": tool_id})


def mcp_server(
    name: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    only: Sequence[str] | None = None,
    elicitation: Literal["ask", "decline"] | None = None,
) -> ServerTool:
    """An MCP server that Weftline's server connects to. Its tools are prefixed with `name` and an underscore.

    With `elicitation="ask"`, its questions to people during a call become awaits of the run; otherwise they are
    declined.
    """
    ref: dict[str, Any] = {"kind": "mcp", "name": name, "url": url}
    if elicitation is not None:
        ref["elicitation"] = elicitation
    if headers is not None:
        ref["headers"] = dict(headers)
    if only is not None:
        ref["toolFilter"] = list(only)
    return ServerTool(ref)


def a2a_agent(
    name: str,
    card_url: str,
    *,
    description: str | None = None,
    headers: Mapping[str, str] | None = None,
    context_id: str | None = None,
) -> ServerTool:
    """Returns an A2A agent that Weftline's server connects to."""
    ref: dict[str, Any] = {"kind": "a2a", "name": name, "agentCardUrl": card_url}
    if description is not None:
        ref["description"] = description
    if headers is not None:
        ref["headers"] = dict(headers)
    if context_id is not None:
        ref["contextId"] = context_id
    return ServerTool(ref)


ToolLike: TypeAlias = Tool | Callable[..., Any] | Mapping[str, Any]
"""A tool, a plain function, or a reference in the protocol's JSON."""


class Toolset:
    """The tools of one run or session, prepared together and released together."""

    def __init__(self, tools: Sequence[ToolLike] = ()) -> None:
        self._tools = [_as_tool(one) for one in tools]
        self._stack = AsyncExitStack()
        self.refs: list[dict[str, Any]] = []

    async def acquire(self) -> None:
        """Prepares all tools or none: if one fails, the others are released again."""
        try:
            for one in self._tools:
                self.refs.append(await one.acquire())
                self._stack.push_async_callback(one.release)
        except BaseException:
            await self.release()
            raise

    async def release(self) -> None:
        await self._stack.aclose()

    def borrowed(self) -> Toolset:
        """Returns the same tools for a run of a session.

        It holds them itself, so that the session may be closed first.
        """
        return Toolset(self._tools)

    def handler(self, call: OfferedCall) -> Handler:
        for one in self._tools:
            found = one.handler(call)
            if found is not None:
                return found
        raise ToolError(f"This client has no handler for the {call.kind} tool {call.name!r}.")


def _as_tool(given: ToolLike) -> Tool:
    if isinstance(given, Mapping):
        return ServerTool(dict(cast("Mapping[str, Any]", given)))
    if hasattr(given, "acquire"):
        return given  # pyright: ignore[reportReturnType]  (a function has no such attribute)
    if hasattr(given, "asks_people"):
        return _of_library(given)
    if callable(given):
        return LocalTool(given)
    raise InvalidSpec(f"{given!r} is not a tool")


def _of_library(given: Any) -> Tool:
    """Takes a function of `@weftline.tool`, whose class clients do not load."""
    if given.traits.asks:
        raise InvalidSpec(
            f"The tool {given.name} asks a person before each call (confirm=…), and a client has nobody to ask: give"
            " the tool to the server (`weftline serve --tools …`), or take confirm away and ask in the function itself."
        )
    return LocalTool(given, name=given.name, description=given.description, timeout_s=given.timeout_s)
