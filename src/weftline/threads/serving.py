"""A folder while it is served: its endpoints and controllers, each called with a request and what it is about."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from weftline.agent.context import Entered
from weftline.errors import NotFound
from weftline.runtime.engine import Engine
from weftline.store.records.threads import ThreadRow
from weftline.threads.definitions.agents import AgentDefinition
from weftline.threads.definitions.base import Handler
from weftline.threads.definitions.endpoints import (
    ControllerContext,
    ControllerDefinition,
    EndpointDefinition,
    Request,
    Response,
    Route,
    find_route,
    routes_of,
)
from weftline.threads.importing import Generation
from weftline.threads.packages import package_of
from weftline.threads.registry import TABLES, Registry
from weftline.threads.speakers import sides_of
from weftline.threads.state import BlockingThread, LiveThread
from weftline.tools.workers import shared_workers
from weftline.workspace.context import Workspaces

_TOKEN = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_RAW = (bytes, bytearray, memoryview, AsyncIterator)

D = TypeVar("D", EndpointDefinition, ControllerDefinition)


class Found(Struct, Generic[D], frozen=True):
    """The endpoint or controller that a request is for."""

    definition: D
    params: Mapping[str, str]


class Answer(Struct, frozen=True):
    """What a handler has answered: a body, or the pieces of one. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    pieces: AsyncGenerator[bytes] | None = None


class BlockingRequest:
    """The same request for a plain function: reading its body blocks the function's own thread."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._request, name)
        if not inspect.iscoroutinefunction(value):
            return value

        def blocking() -> Any:
            return asyncio.run_coroutine_threadsafe(value(), self._loop).result()

        return blocking


class Folder:
    """The definitions of a folder that is served. `host` is what the operator supplies to its code.

    `generation` has the modules of its files.
    """

    def __init__(self, registry: Registry, *, host: Any = None, generation: Generation | None = None) -> None:
        self.registry = registry
        self.generation = generation
        self.busy = 0
        """How many of its handlers are at work."""
        self._host = host
        self._endpoints = routes_of(registry.endpoints)
        self._controllers = routes_of(registry.controllers)

    def endpoint(self, method: str, path: str) -> Found[EndpointDefinition] | None:
        """Returns the endpoint of a request; `path` is what follows the thread's id, as it was sent."""
        return _found(self._endpoints, self.registry.endpoints, method, path)

    def controller(self, method: str, path: str) -> Found[ControllerDefinition] | None:
        return _found(self._controllers, self.registry.controllers, method, path)

    @property
    def public(self) -> list[str]:
        """The routes that need no credential, for people to read."""
        kinds = (
            ("threads/{threadId}", self._endpoints, self.registry.endpoints),
            ("endpoints", self._controllers, self.registry.controllers),
        )
        return [
            f"{route.method} \N{HORIZONTAL ELLIPSIS}/{prefix}{route.path}"
            for prefix, routes, definitions in kinds
            for key, route in routes.items()
            if definitions[key].public
        ]

    def _agent(self, row: ThreadRow) -> AgentDefinition:
        agent = self.registry.served(row.seat_agent or row.agent or "")
        if agent is None:
            raise NotFound("The agent of this thread is not in the folder that this server serves.")
        return agent

    @contextmanager
    def thread(
        self, at: Workspaces, engine: Engine, row: ThreadRow, key: str, *, of: object = None
    ) -> Generator[LiveThread]:
        """The state of a thread for one handler, that `of` an endpoint or effect.

        `key` is the same for each attempt at it.

        Raises:
            NotFound: if the thread's agent is not one of the folder.
        """
        agent = self._agent(row)
        speakers = {one.name: one for one in sides_of(agent, self.registry)}
        state = LiveThread(at, row, self.registry, speakers=speakers, entered=Entered(), engine=engine, host=self._host)
        with state.during(key, package=package_of(of)) as scoped:
            yield scoped

    async def effect_args(self, row: ThreadRow, name: str, args: Mapping[str, Any]) -> bytes:
        """Returns the arguments of an effect of a thread as they are stored.

        Raises:
            NotFound: if there is no such effect, or the thread's agent is not one of the folder.
            InvalidRequest: if the arguments do not fit it.
        """
        self._agent(row)
        return await self.registry.seen_from("").effect(name).final_args(args)

    async def _called(self, handler: Handler, *given: Any) -> Answer:
        with self.in_use():
            return answer_of(await called(handler, *given))

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Inside, a handler of this generation of the folder is at work."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    async def call_endpoint(self, found: Found[EndpointDefinition], request: Request, state: LiveThread) -> Answer:
        """Returns what an endpoint answers."""
        return await self._called(found.definition.handler, request, state, found.params)

    async def call_controller(self, found: Found[ControllerDefinition], request: Request, *, url: str) -> Answer:
        """Returns what a controller answers."""
        host = cast(object, self._host)
        env = cast("Mapping[str, Any]", host) if isinstance(host, Mapping) else os.environ
        context = ControllerContext(request=request, url=url, params=found.params, env=env, registries=self._lazy())
        return await self._called(found.definition.handler, context)

    def _lazy(self) -> dict[str, dict[str, Callable[[], Any]]]:
        registry = self.registry
        return {
            table: {name: partial(registry.get, kind, name) for name in registry.table(kind)}
            for kind, table in TABLES.items()
        }


async def called(handler: Handler, *given: Any, **arguments: Any) -> Any:
    """Returns what a handler returns. A plain function runs in a thread, with blocking forms of what it is given."""
    if inspect.iscoroutinefunction(handler):
        return await handler(*given, **arguments)
    if inspect.isasyncgenfunction(handler):
        return handler(*given, **arguments)
    blocking = [_blocking(one) for one in given]
    keywords = {name: _blocking(one) for name, one in arguments.items()}
    made = await shared_workers().run(lambda: handler(*blocking, **keywords))
    return await made if inspect.isawaitable(made) else made


def answer_of(value: object) -> Answer:
    """Returns what a handler has returned as an answer: bytes and streams as they are, anything else as JSON.

    Raises:
        TypeError, ValueError: if it cannot be sent.
    """
    given: Response
    if isinstance(value, Response):
        given = value
    elif value is None:
        given = Response(status=204)
    elif isinstance(value, _RAW):
        given = Response(cast(Any, value))
    else:
        given = Response.json(value)
    status, body = cast(object, given.status), cast(object, given.body)
    if not isinstance(status, int) or not 200 <= status <= 599:
        raise ValueError(f"a response has a status from 200 to 599, not {status!r}")
    headers = {name.lower(): text for name, text in given.headers.items()}
    for name, text in headers.items():
        if not _TOKEN.fullmatch(name) or any(char in text for char in "\r\n\0"):
            raise ValueError(f"{name!r} is not a header that can be sent")
        text.encode("latin-1")
    headers.setdefault("content-type", "application/octet-stream")
    if isinstance(body, AsyncIterator):
        return Answer(status, headers, b"", _pieces(cast("AsyncIterator[object]", body)))
    return Answer(status, headers, b"" if status in (204, 304) else _bytes(body))


async def _pieces(body: AsyncIterator[object]) -> AsyncGenerator[bytes]:
    """The pieces of a streamed body. The handler that makes them is closed at the end."""
    try:
        async for piece in body:
            yield _bytes(piece)
    finally:
        close: Callable[[], Awaitable[None]] | None = getattr(body, "aclose", None)
        if close is not None:
            await close()


def _bytes(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(cast(bytes, value))
    raise TypeError(f"a body is bytes or text, or a stream of them, not {type(value).__name__}")


def _blocking(value: Any) -> Any:
    match value:
        case LiveThread():
            return BlockingThread(value)
        case Request():
            return BlockingRequest(value)
        case ControllerContext():
            return msgspec.structs.replace(value, request=cast(Request, BlockingRequest(value.request)))
        case _:
            return value


def _found(routes: Mapping[str, Route], definitions: Mapping[str, D], method: str, path: str) -> Found[D] | None:
    found = find_route(routes, method, path)
    return None if found is None else Found(definitions[found[0]], found[1])
