"""Routes as data: a table that the server matches on, and that the docs, the tests and the OpenAPI page read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from weftline.api.principal import Principal
from weftline.errors import NotFound
from weftline.server.declared import (
    IDEMPOTENCY_KEY,
    OF_EVERY_REQUEST,
    PREFER,
    AnyBody,
    Declared,
    Header,
    QueryParameter,
)
from weftline.server.http import Request, Response, StreamedResponse

Handler: TypeAlias = Callable[[Any, Request, Principal], Awaitable[Response | StreamedResponse | None]]
"""Handles a request; returns None if it has sent the response itself. The first argument is the `App`."""


Narrowed: TypeAlias = Literal["yes", "its agents", "no"]
"""How a route treats a credential that is restricted to some agents.

Such a credential only works through its agents: what belongs to others does not exist for it, and what belongs to the
whole workspace is read-only at best. With `its agents`, the route works only for what belongs to these agents.
"""

_REMEMBERED = 64
"""How many requests have a cached route, as new runs all have one path. Bounded, as paths can be as long as a head."""


class EventStream:
    """A response of server-sent events."""


class HtmlPage:
    """A response that is an HTML page."""


class PlainText:
    """A response that is plain text."""


class Redirect:
    """A response that redirects the browser."""


class Route(Struct, frozen=True):
    """A route. `access` is `public` without a credential, `workspace` for one of the workspace in the path's `{slug}`,
    `operator` over the store's own socket only.

    It is the only source of the OpenAPI document. A handler can read nothing of a request that is not declared here.
    """

    method: str
    path: str
    """`{name}` is one part of it; `{*name}`, at the end, all that follows, with its slashes."""
    handler: Handler
    access: Literal["public", "workspace", "operator"] = "workspace"
    scopes: tuple[str, ...] = ()
    """The scopes that an OAuth token must have; API keys have no scopes."""
    usages: tuple[str, ...] = ("developer_api",)
    """The kinds of API key that may use it."""
    has_metadata: bool = False
    """Whether its refusals name the metadata of a protected resource, where a client can get a token."""
    narrowed: Narrowed = "no"
    """How it treats a credential with an agent allow-list."""
    every_workspace: bool = False
    """Whether the operator may use it for all workspaces at once, with `-` as the slug."""
    is_open: Callable[[Any, Request], bool] | None = None
    """Says of a request, to the `App`, whether it needs no credential although others of this route do."""
    live: bool = False
    """Whether it needs runs that go on: while nobody has the store open, it is refused before anything is done."""
    limited: bool = True
    """Whether requests count against the credential's rate limit and may be refused by it."""
    by_cookie: bool = False
    """Whether it authenticates by cookie, and so must not be open to pages of other origins."""
    summary: str = ""
    body: AnyBody | None = None
    """None if the request has no body."""
    query: tuple[QueryParameter, ...] = ()
    headers: tuple[Header, ...] = ()
    """Headers of its own, besides those that the following fields stand for."""
    idempotent: bool = False
    """Whether it supports an `Idempotency-Key`."""
    warns: bool = False
    """Whether it names unknown fields in its response, and refuses them if the client prefers that."""
    returns: Any = None
    """The type of a success: a struct for JSON, one of the classes above, or a union of both."""
    status: int = 200
    """The status of a success."""
    silent: bool = False
    """Whether a success may also be a 204, without a body."""
    errors: tuple[int, ...] = ()
    """Statuses of refusals beyond those that follow from the other fields."""
    refuses: Any = None
    """The type of a 400 or 401 that does not have the usual shape."""


def headers_of(route: Route) -> tuple[Header, ...]:
    """Returns all headers that a route declares."""
    kinds = ((route.idempotent, IDEMPOTENCY_KEY), (route.warns, PREFER))
    return (*route.headers, *(header for has, header in kinds if has))


def declared_by(route: Route) -> Declared:
    return Declared(
        frozenset(one.name for one in route.query),
        OF_EVERY_REQUEST.union(one.name.lower().encode() for one in headers_of(route)),
        route.body,
    )


class Match(Struct, frozen=True):
    route: Route
    declared: Declared
    params: Mapping[str, str]


class WrongMethod(Struct, frozen=True):
    """The path exists, for these methods."""

    allowed: tuple[str, ...]


class Router:
    """Matches requests to routes. A parameter has the same name in all routes that share the path before it.

    `{*rest}` at the end of a path takes what is left of it, which may be empty, if no other route has the path. The id
    before it may be empty as well, and methods that it does not have are unknown paths.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes: tuple[Route, ...] = tuple(routes)
        self._root: _Node = _Node()
        for route in self.routes:
            node = self._root
            for part in route.path.split("/")[1:]:
                if part.startswith("{*"):
                    node.rest = node.rest or _Node(part[2:-1])
                    node = node.rest
                elif part.startswith("{"):
                    node.any = node.any or _Node(part[1:-1])
                    node = node.any
                    if node.name != part[1:-1]:
                        raise ValueError(f"{route.path}: {part} is {{{node.name}}} in another route")
                else:
                    node = node.exact.setdefault(part, _Node())
            node.routes[route.method] = (route, declared_by(route))
        self.match = lru_cache(maxsize=_REMEMBERED)(self._match)
        """Returns the route of a request, by method and path; None for an unknown path."""

    def _match(self, method: str, path: str) -> Match | WrongMethod | None:
        method = "GET" if method == "HEAD" else method
        node, params, blank = self._root, dict[str, str](), False
        rest: Match | None = None
        parts = path.split("/")[1:]
        for place, part in enumerate(parts):
            if node.rest is not None and (found := node.rest.routes.get(method)) is not None:
                rest = Match(*found, {**params, node.rest.name: "/".join(parts[place:])})
            child = node.exact.get(part)
            if child is None:
                child = node.any
                if child is None:
                    return rest
                blank = blank or not part
                params[child.name] = part
            node = child
        if not node.routes or blank:
            return rest
        found = node.routes.get(method)
        return WrongMethod(tuple(sorted(node.routes))) if found is None else Match(*found, params)


_OF_OTHER_SERVERS = {
    "eval-datasets": "This server has no evaluations.",
    "eval-runs": "This server has no evaluations.",
    "feedback": "This server stores no feedback on runs.",
}
"""What newer clients ask for that is not here, by a part of the path; docs/compatibility.md has the list."""


def no_such_route(path: str) -> NotFound:
    parts = path.split("/")[:8]
    words = next((_OF_OTHER_SERVERS[part] for part in parts[5:] if part in _OF_OTHER_SERVERS), "")
    if words:
        return NotFound(words, hint="docs/compatibility.md lists what newer clients ask for and is not here.")
    return NotFound("There is no such route.")


class _Node:
    __slots__ = ("any", "exact", "name", "rest", "routes")

    def __init__(self, name: str = "") -> None:
        self.name = name
        """The name of the parameter that leads here."""
        self.exact: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.rest: _Node | None = None
        self.routes: dict[str, tuple[Route, Declared]] = {}
