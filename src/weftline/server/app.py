"""The ASGI application: finds the route, checks the credential, and turns failures into error responses."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING

from weftline.api.cursors import SealedCursors
from weftline.api.principal import NOBODY
from weftline.errors import RateLimited, WeftlineError
from weftline.net.dial import Dialer
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.engine import Engine
from weftline.runtime.ids import new_salt
from weftline.server.auth import Authenticator
from weftline.server.cors import Cors
from weftline.server.hosted_mcp import HostedMcp
from weftline.server.http import PEER, Receive, Request, Response, Scope, Send, StreamedResponse, send_response
from weftline.server.large import LARGE_BYTES, LargeResponses
from weftline.server.memory import LargeBodies
from weftline.server.metrics import MetricsPage
from weftline.server.names import OwnNames
from weftline.server.oauth.app import OAuthServer
from weftline.server.open_streams import OpenStreams
from weftline.server.operators import PATHS, operator, peer_of
from weftline.server.options import ServerOptions
from weftline.server.request_log import AccessLine, RefusedRequests, UnknownFields, access
from weftline.server.router import Match, Route, Router, no_such_route
from weftline.server.sse import Backlog, shown_with, view_with
from weftline.store.base import ReadStore
from weftline.tools.loader import LoadedTool
from weftline.trace_context import RequestInfo, current_request, incoming_traceparent
from weftline.wire.errors import error_body, wire_code
from weftline.work.turns import FairSemaphore, LoopQueue, on_behalf_of
from weftline.workspace.client_documents import ReadDocument
from weftline.workspace.code_agents import NO_CODE, CodeAgents
from weftline.workspace.context import Change, ChangeKind, Workspaces
from weftline.workspace.scopes import MCP_SCOPE

if TYPE_CHECKING:
    from weftline.server.a2a.sending import Deliveries
    from weftline.threads.serving import Folder

logger = logging.getLogger(__name__)

PAGES_AT_ONCE = 8


class App:
    """The application. `engine` must be started before the first request. Its routes are a table; see
    `weftline.server.routes`.

    With `every_route`, `routes` are only the first ones; `load_routes`, or a request for another one, loads them all.

    `operator_routes` loads those that only the operator has; it is called by the first request for one.

    `own_tools` returns the tools that runs may name because this process has loaded them. `logins_changed` is called
    with the workspace whose logins at MCP servers change.

    `dialer` reads files of threads that are elsewhere; `read_document`, the documents by which OAuth clients describe
    themselves. Without them neither can be read.
    """

    def __init__(
        self,
        engine: Engine,
        store: ReadStore,
        models: WorkspaceCatalogs,
        routes: Iterable[Route],
        *,
        options: ServerOptions | None = None,
        dialer: Dialer | None = None,
        read_document: ReadDocument | None = None,
        code: CodeAgents = NO_CODE,
        folder: Folder | None = None,
        every_route: Callable[[], Iterable[Route]] | None = None,
        operator_routes: Callable[[], Iterable[Route]] = tuple,
        own_tools: Callable[[], list[LoadedTool]] = list,
        logins_changed: Callable[[int | None], None] = lambda _: None,
    ) -> None:
        options = options or ServerOptions()
        self.engine = engine
        self.store = store
        self.models = models
        self.workspaces = Workspaces(
            store.records,
            store.vault,
            engine.clock,
            self._on_change,
            options.oauth_redirect_schemes,
            code,
            dialer=dialer,
        )
        self.folder = folder
        """The folder that is served, whose endpoints answer requests."""
        self.router = Router(routes)
        self._every_route = every_route
        """None if the router knows them."""
        self._loading_routes = asyncio.Lock()
        self._operator_routes = operator_routes
        self._operator_router: Router | None = None
        self.names = OwnNames(
            url=options.url,
            public_url=options.public_url,
            hosts=options.allowed_hosts,
            local=options.local,
            cors=options.cors,
        )
        self.oauth = OAuthServer(
            self.workspaces,
            self.names,
            public_url=options.public_url,
            proxies=options.trusted_proxies,
            registration=options.oauth_registration,
            read_document=read_document,
        )
        self.auth = Authenticator(self.workspaces, rate_limit=options.rate_limit_per_minute)
        self.streams = OpenStreams(self.auth)
        self.large = LargeResponses()
        self.list_queue = LoopQueue()
        self.pages = FairSemaphore(per_owner=PAGES_AT_ONCE)
        """Limits how many pages of lists are built at once, as they may have several megabytes."""
        self.mcp = HostedMcp(self)
        self.metrics = MetricsPage(engine, folder=store.folder, local=options.local, token=options.metrics_token)
        self.backlog = Backlog()
        self.show = shown_with(options.display_hints)
        self.view = view_with(self.show)
        """What streams without a profile send."""
        self.bodies = LargeBodies(
            max_bytes=options.connections.max_body_bytes_held,
            max_bytes_per_workspace=options.connections.max_body_bytes_held_per_workspace,
        )
        self.refused = RefusedRequests()
        self._cors = options.cors
        self.unknown_fields = UnknownFields(refused=options.unknown_fields == "refuse")
        self.own_tools = own_tools
        self.listeners: dict[ChangeKind, Callable[[Change], None]] = {
            "logins": lambda change: logins_changed(change.workspace)
        }
        """Called with each change of their kind; `weftline.server.background` adds those of its tasks."""
        self.cursors = SealedCursors(store.log.id)
        self.read_sessions: set[int] = set()
        """Sessions whose messages are known to be readable."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        # Random rather than sequential, so that it does not reveal the number of requests.
        about = RequestInfo(f"req_{new_salt()}{new_salt()}")
        current_request.set(about)
        request = Request(scope, receive, send, about, self.bodies, self.auth)
        traceparent = request.header(b"traceparent")
        if traceparent is not None or incoming_traceparent.get() is not None:
            incoming_traceparent.set(traceparent)
        line = AccessLine(request) if access.isEnabledFor(logging.DEBUG) else None
        try:
            response = await self._respond(request)
            if isinstance(response, Response):
                await self._sending(request, response)
            elif response is not None:
                await response()
        except ConnectionResetError:
            pass
        except Exception as error:
            await self._sending(request, _failure(request, error))
        finally:
            if line is not None:
                line.write()

    @cached_property
    def deliveries(self) -> Deliveries:
        """Sends the events of A2A tasks."""
        from weftline.server.a2a.sending import Deliveries  # with all of A2A, which the routes of A2A load

        return Deliveries(self)

    async def load_routes(self) -> None:
        """Loads all routes, in a thread; until then requests for others than the first wait for it."""
        async with self._loading_routes:
            if self._every_route is not None:
                self.router = Router(await asyncio.to_thread(self._every_route))
                self._every_route = None

    async def _router_of(self, request: Request) -> Router:
        if request.operator and request.path.startswith(PATHS):
            if self._operator_router is None:
                self._operator_router = Router(await asyncio.to_thread(self._operator_routes))
            return self._operator_router
        if self._every_route is not None and not isinstance(self.router.match(request.method, request.path), Match):
            await self.load_routes()
        return self.router

    def _sending(self, request: Request, response: Response) -> Awaitable[None]:
        """Sends a response when it is awaited."""
        if response.status >= 400 and response.status != 500:  # a 500 was logged with its traceback
            self.refused.note(
                status=response.status,
                code=response.code or "refused",
                method=request.method,
                path=request.path,
                workspace=request.about.workspace,
            )
        return (send_response if len(response.body) <= LARGE_BYTES else self._send_large)(request, response)

    async def _send_large(self, request: Request, response: Response) -> None:
        try:
            room = self.large.hold(request.about.workspace, len(response.body))
        except RateLimited as error:
            await send_response(request, refusal(request, error))
            return
        with suppress(ConnectionResetError):
            await self.large.send(request, response, room)

    def refused_early(self, error: WeftlineError) -> None:
        """Logs a refused connection, or a request that was refused before it was complete."""
        self.refused.note(status=error.status, code=error.code, method="a", path="connection", workspace="")

    async def _on_change(self, change: Change) -> None:
        match change.kind:
            case "credentials":
                self.auth.forget()
                await self.streams.end_revoked(change.workspace)
            case "providers":
                await self.models.refresh(change.workspace)
            case "budgets":
                assert change.workspace is not None
                await self.engine.budgets_changed(change.workspace, by=change.by)
            case kind:
                if (listener := self.listeners.get(kind)) is not None:
                    listener(change)

    def _apply_cors(self, request: Request, cors: Cors) -> Response | None:
        """Handles CORS: adds headers to the response, and answers preflights."""
        origin = request.header(b"origin")
        request.send = cors.opened(request, self.router, origin=origin)
        return cors.preflight(request, self.router, origin=origin)

    async def _respond(self, request: Request) -> Response | StreamedResponse | None:
        if PEER in request.scope:
            request.operator = peer_of(request)
        router = await self._router_of(request)
        if self._cors is not None and (preflight := self._apply_cors(request, self._cors)) is not None:
            return preflight
        found = router.match(request.method, request.path)
        if found is None:
            raise no_such_route(request.path)
        if not isinstance(found, Match):  # cheaper to check than the other
            error = WeftlineError(f"{request.method} is not allowed here.", code="method_not_allowed")
            response = refusal(request, error)
            allow = ", ".join(found.allowed).encode()
            return Response(response.body, status=response.status, headers=((b"allow", allow),), code=error.code)
        route, request.params, request.declared = found.route, found.params, found.declared
        if route.has_metadata:
            request.metadata = self.oauth.resource_metadata(request)
        if route.access == "public" or (route.is_open is not None and route.is_open(self, request)):
            principal = NOBODY
        else:
            checking = operator(self.workspaces, self.engine.stored, request, route) if request.operator else None
            principal = request.principal = await (checking or self.auth.check(request, route))
        request.about.workspace = principal.slug
        on_behalf_of.set(principal.workspace)
        try:
            response = await route.handler(self, request, principal)
        finally:
            if request.rooms:
                request.body_is_read()
        if response is None or isinstance(response, Response) or principal is NOBODY:
            return response
        return partial(self.streams.carry, principal, response)


def _failure(request: Request, error: Exception) -> Response:
    if not isinstance(error, WeftlineError):
        logger.error("%s %s failed (%s)", request.method, request.path, request.about.id, exc_info=error)
        error = WeftlineError("The server failed to answer this request.")
    return refusal(request, error)


def refusal(request: Request, error: WeftlineError) -> Response:
    """Returns the response to a request that failed."""
    headers: list[tuple[bytes, bytes]] = []
    invalid_token = error.details.pop("invalid_token", False)
    if error.status == 401:
        headers.append(_challenge(request, error="invalid_token" if invalid_token else ""))
    elif error.code == "insufficient_scope":
        required = error.details["required"]
        scope = required if isinstance(required, str) else " ".join(required)
        headers.append(_challenge(request, error="insufficient_scope", scope=scope))
    retry_after = error.details.get("retry_after_s")
    if retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(retry_after))).encode()))
    code = wire_code(error.code, path=request.path)
    body = error_body(error, request.about.id, path=request.path)
    return Response(body, status=error.status, headers=tuple(headers), code=code)


def _challenge(request: Request, *, error: str, scope: str = "") -> tuple[bytes, bytes]:
    """Returns the `WWW-Authenticate` header: the scope that a token needs, and where to find out how to get one."""
    given = {
        "error": error,
        "scope": scope or (MCP_SCOPE if request.metadata else ""),
        "resource_metadata": request.metadata,
    }
    fields = ", ".join(f'{name}="{value}"' for name, value in given.items() if value)
    return b"www-authenticate", f"Bearer {fields}".rstrip().encode()
