"""Endpoints of a folder: its own routes below each of its threads, named by their files in `agents/api`.

status.py            GET    …/status            notes/[id].put.py    PUT …/notes/7, params["id"] == "7"
report.post.py       POST   …/report            files/[*].py         GET …/files/a/b, params["*"] == "a/b"
index.py             GET    …/                  notes/index.py       GET …/notes
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, overload
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from weftline.threads.definitions.base import Checks, Handler, PackedMetadata
from weftline.threads.definitions.handlers import check_function

Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
METHODS: dict[str, Method] = {"get": "GET", "post": "POST", "put": "PUT", "patch": "PATCH", "delete": "DELETE"}
RESERVED_SEGMENTS = ("messages", "stream", "values", "env", "fs", "effects", "logs", "children", "runs")
"""The first segments of the routes that each thread has anyway."""
_DYNAMIC = re.compile(r"\[([A-Za-z_][A-Za-z0-9_]*)\]")
_STATIC = re.compile(r"[A-Za-z0-9_~.-]+")
REST = "[*]"


class Request:
    """A request to an endpoint or controller: what of it a handler may know. The credential is not in `headers`."""

    def __init__(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        read: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        self.method = method
        self.path = path
        """What follows the thread's id, with a slash at its beginning."""
        self.query: Mapping[str, str] = query or {}
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in (headers or {}).items()}
        self._read = read
        self._body: bytes | None = None

    async def body(self) -> bytes:
        """Returns the body, which is read once."""
        if self._body is None:
            self._body = b"" if self._read is None else await self._read()
        return self._body

    async def text(self) -> str:
        return (await self.body()).decode()

    async def json(self) -> Any:
        """Returns the body as JSON values. Raises `ValueError` if it is not JSON."""
        return msgspec.json.decode(await self.body())


class Response(Struct, frozen=True):
    """What a handler answers: `Response.json(…)`, `Response.text(…)`, or bytes or a stream of them as they are."""

    body: bytes | AsyncIterator[bytes] | Any = b""
    status: int = 200
    headers: dict[str, str] = {}

    @classmethod
    def json(cls, value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        given = {"content-type": "application/json", **(headers or {})}
        return cls(msgspec.json.encode(value), status, given)

    @classmethod
    def text(cls, value: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        return cls(value.encode(), status, {"content-type": "text/plain; charset=utf-8", **(headers or {})})


class ControllerContext(Struct, frozen=True, kw_only=True):
    """What a controller is called with. The registries load a definition only when it is asked for by name."""

    request: Request
    url: str
    params: Mapping[str, str]
    env: Mapping[str, Any]
    registries: Mapping[str, Mapping[str, Callable[[], Any]]] = {}


class EndpointDefinition(Struct, frozen=True, kw_only=True, rename="camel"):
    """A route below each thread: `handler(request, state, params)`. Without `public` it needs the usual credential."""

    handler: Handler
    public: bool = False
    packed: PackedMetadata | None = None
    """The package that it is from; None for one of the folder itself."""

    def __post_init__(self) -> None:
        checks = Checks("endpoint", getattr(self.handler, "__name__", ""))
        check_function(self.handler, "handler", checks)
        checks.flag(self.public, "public")
        checks.done()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler(*args, **kwargs)


class ControllerDefinition(Struct, frozen=True, kw_only=True, rename="camel"):
    """A route beside the threads: `handler(context)`."""

    handler: Handler
    public: bool = False

    def __post_init__(self) -> None:
        checks = Checks("controller", getattr(self.handler, "__name__", ""))
        check_function(self.handler, "handler", checks)
        checks.flag(self.public, "public")
        checks.done()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler(*args, **kwargs)


@overload
def define_thread_endpoint(fn: Handler, /) -> EndpointDefinition: ...
@overload
def define_thread_endpoint(*, public: bool = False) -> Callable[[Handler], EndpointDefinition]: ...
def define_thread_endpoint(fn: Handler | None = None, /, *, public: bool = False) -> Any:
    """Turns a function into an endpoint of each thread; its file says where.

    With `public`, whoever knows the id of a thread may call it.
    """
    if fn is not None:
        return EndpointDefinition(handler=fn, public=public)

    def made(handler: Handler) -> EndpointDefinition:
        return EndpointDefinition(handler=handler, public=public)

    return made


@overload
def define_controller(fn: Handler, /) -> ControllerDefinition: ...
@overload
def define_controller(*, public: bool = False) -> Callable[[Handler], ControllerDefinition]: ...
def define_controller(fn: Handler | None = None, /, *, public: bool = False) -> Any:
    """Turns a function into a route beside the threads; its file says where."""
    if fn is not None:
        return ControllerDefinition(handler=fn, public=public)

    def made(handler: Handler) -> ControllerDefinition:
        return ControllerDefinition(handler=handler, public=public)

    return made


def is_thread_endpoint(value: object) -> bool:
    """Returns whether `define_thread_endpoint` has made this."""
    return isinstance(value, EndpointDefinition)


class BadRoute(ValueError):
    """A file name that says no route; the message says why."""


class Route(Struct, frozen=True):
    """A method and the segments of a path; `[id]` takes one segment, `[*]` at the end takes all that are left."""

    method: Method
    segments: tuple[str, ...]

    @classmethod
    def parse(cls, key: str) -> Route:
        """Reads the name of a file without `.py`, or a package's key: `notes/[id].put`.

        Raises:
            BadRoute: if it is not a route.
        """
        stem, dot, suffix = key.strip("/").rpartition(".")
        method: Method = "GET"
        if dot and suffix.lower() in METHODS:
            method = METHODS[suffix.lower()]
        elif dot:
            raise BadRoute(f"ends in .{suffix}, which is not one of {', '.join('.' + one for one in METHODS)}")
        else:
            stem = suffix
        segments = stem.split("/")
        if segments[-1] == "index":
            segments.pop()
        route = cls(method, tuple(segments))
        route._check()
        return route

    def _check(self) -> None:
        seen: set[str] = set()
        for place, segment in enumerate(self.segments, start=1):
            if segment == REST:
                if place < len(self.segments):
                    raise BadRoute(f"has {REST} before its last segment")
                continue
            named = _DYNAMIC.fullmatch(segment)
            if named is None and not _STATIC.fullmatch(segment):
                raise BadRoute(f"has a segment {segment!r}, which is not a name, [name] or {REST}")
            if named is not None:
                if named[1] in seen:
                    raise BadRoute(f"has two segments [{named[1]}]")
                seen.add(named[1])

    def match(self, method: str, path: str) -> dict[str, str] | None:
        """Returns the params of a request that this route is for; None for any other.

        `path` is as it was sent, with a slash at its beginning. Segments are percent-decoded; one that then has a slash
        matches no `[name]`.
        """
        if method != self.method:
            return None
        given = path.removeprefix("/").split("/") if path != "/" else []
        params: dict[str, str] = {}
        for place, segment in enumerate(self.segments):
            if segment == REST:
                params["*"] = "/".join([unquote(one) for one in given[place:]])
                return params
            if place >= len(given):
                return None
            value = unquote(given[place])
            named = _DYNAMIC.fullmatch(segment)
            if named is None:
                if value != segment:
                    return None
            elif not value or "/" in value:
                return None
            else:
                params[named[1]] = value
        return params if len(given) == len(self.segments) else None

    @property
    def key(self) -> str:
        """How it is written in a registry, the method included: `notes/[id].put`."""
        return f"{'/'.join(self.segments) or 'index'}.{self.method.lower()}"

    @property
    def path(self) -> str:
        return "/" + "/".join(self.segments)

    @property
    def shape(self) -> tuple[str, ...]:
        """Equal for routes that match the same requests: the names in brackets do not count."""
        return (self.method, *["[]" if _DYNAMIC.fullmatch(one) else one for one in self.segments])

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def routes_of(keys: Iterable[str]) -> dict[str, Route]:
    """Returns the routes by their keys, in the order in which they are tried: by segment, static ones before `[name]`
    before `[*]`.
    """
    routes = {key: Route.parse(key) for key in keys}
    return dict(sorted(routes.items(), key=lambda item: [_rank(one) for one in item[1].segments]))


def find_route(routes: Mapping[str, Route], method: str, path: str) -> tuple[str, dict[str, str]] | None:
    """Returns the key of the route that a request is for, among those of `routes_of`, and its params."""
    for key, route in routes.items():
        if (params := route.match(method, path)) is not None:
            return key, params
    return None


def _rank(segment: str) -> tuple[int, str]:
    return (2 if segment == REST else 1 if segment.startswith("[") else 0, segment)
