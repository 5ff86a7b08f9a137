"""What a served folder answers itself: its endpoints below each thread, and its controllers.

The definitions say which routes there are, so these take every path and look there. Whatever is not found is a 404,
also when only the method differs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from weftline.api.principal import NOBODY, Principal
from weftline.cases.base import find_thread
from weftline.errors import InvalidRequest, NotFound, RateLimited, Unavailable, WeftlineError
from weftline.server.app import App
from weftline.server.declared import Body, OtherProtocol
from weftline.server.http import NO_SNIFFING, Headers, Request, Response
from weftline.server.router import Route, no_such_route
from weftline.store.records.threads import ThreadRow
from weftline.text.percent import fields
from weftline.tools.base import ToolFailed
from weftline.work.turns import Places, on_behalf_of
from weftline.workspace import workspaces

if TYPE_CHECKING:
    from weftline.threads.definitions import endpoints as definitions
    from weftline.threads.serving import Answer, Folder

logger = logging.getLogger(__name__)

THREAD = "/api/v1/workspaces/{slug}/threads/{threadId}/{*rest}"
CONTROLLER = "/api/v1/workspaces/{slug}/endpoints/{*rest}"
FIRST_BYTE_S = 60.0
MAX_AT_ONCE = 256
"""How many requests of a workspace its endpoints and controllers answer at once, streams included."""
_HIDDEN = frozenset((b"authorization", b"x-api-key", b"proxy-authorization", b"cookie"))
"""Headers with credentials, which a handler does not see."""
_OURS = frozenset(("connection", "content-length", "date", "transfer-encoding", "upgrade", "x-content-type-options"))
"""Headers that the server sets itself."""
_MAX_QUERY_FIELDS = 1_000
_OF_STATE = ("thread_ended", "quota_exceeded", "queue_full")
"""What the state of a thread refuses is the client's to know, if the handler has not dealt with it."""
_BODY = Body[bytes](OtherProtocol, repaired=True)


class _Places:
    """The requests that are being answered, by workspace."""

    def __init__(self) -> None:
        self._taken = Places(per_owner=MAX_AT_ONCE)

    @asynccontextmanager
    async def place(self, workspace: int) -> AsyncGenerator[None]:
        if not self._taken.has_room(workspace):
            raise RateLimited(
                "Too many requests to the folder's own routes are under way.",
                code="too_many_streams",
                limit=MAX_AT_ONCE,
                retry_after_s=1,
            )
        self._taken.add(workspace)
        try:
            yield
        finally:
            self._taken.remove(workspace)


_places = _Places()


def is_public_endpoint(app: App, request: Request) -> bool:
    """Returns whether the definition of this endpoint says that it needs no credential."""
    found = None if app.folder is None else app.folder.endpoint(_method(request), _rest(request, skipped=7))
    return found is not None and found.definition.public


def is_public_controller(app: App, request: Request) -> bool:
    found = None if app.folder is None else app.folder.controller(_method(request), _rest(request, skipped=6))
    return found is not None and found.definition.public


async def on_thread(app: App, request: Request, principal: Principal) -> Response | None:
    thread_id, path = request.params["threadId"], _rest(request, skipped=7)
    if not thread_id:
        raise InvalidRequest("The path has no thread id.")
    folder = _folder(app, request)
    found = folder.endpoint(_method(request), path)
    if found is None:
        raise no_such_route(request.path)
    caller = principal if principal is not NOBODY else await _anybody(app, request)
    row = await _thread(app, caller, thread_id)
    on_behalf_of.set(row.workspace)
    given, stack = _Given(request, path), AsyncExitStack()

    async def answer() -> Answer:
        await stack.enter_async_context(_places.place(row.workspace))
        key = _key(request, row.uuid)
        state = stack.enter_context(folder.thread(app.workspaces, app.engine, row, key, of=found.definition))
        return await given.called(lambda sent: folder.call_endpoint(found, sent, state))

    return await _respond(app, request, principal, answer, stack)


async def beside_threads(app: App, request: Request, principal: Principal) -> Response | None:
    path = _rest(request, skipped=6)
    folder = _folder(app, request)
    found = folder.controller(_method(request), path)
    if found is None:
        raise no_such_route(request.path)
    caller = principal if principal is not NOBODY else await _anybody(app, request)
    on_behalf_of.set(caller.workspace)
    query = f"?{request.raw_query.decode('latin-1')}" if request.raw_query else ""
    url = f"{app.names.base(request)}{_raw_path(request)}{query}"
    given, stack = _Given(request, path), AsyncExitStack()

    async def answer() -> Answer:
        await stack.enter_async_context(_places.place(caller.workspace))
        return await given.called(lambda sent: folder.call_controller(found, sent, url=url))

    return await _respond(app, request, principal, answer, stack)


def _folder(app: App, request: Request) -> Folder:
    if app.folder is None:
        raise no_such_route(request.path)
    return app.folder


async def _anybody(app: App, request: Request) -> Principal:
    """The caller of a public route: nobody, in the workspace of the path. Counts the request for its address."""
    slug = request.params["slug"]
    who = f"endpoints of {slug}: {app.oauth.client(request)}"
    if wait_s := app.auth.limit.take(who, now_us=app.workspaces.clock.now_us()):
        raise RateLimited("Too many requests from this address.", retry_after_s=wait_s)
    return Principal("", await workspaces.find(app.workspaces, slug), slug)


async def _thread(app: App, caller: Principal, thread_id: str) -> ThreadRow:
    if not caller.id and "-" not in thread_id:  # only the UUID, which nobody can guess, protects a public endpoint
        raise NotFound("There is no such thread.")
    return await find_thread(app, caller, thread_id)


def _method(request: Request) -> str:
    return "GET" if request.method == "HEAD" else request.method


def _raw_path(request: Request) -> str:
    """The path as it was sent, or as good as that where another application has decoded it."""
    raw: bytes | None = request.scope.get("raw_path")
    return request.path if raw is None else raw.decode("latin-1")


def _rest(request: Request, *, skipped: int) -> str:
    """What follows the first segments of a path, not decoded. Where this server is mounted, more come before them."""
    parts = _raw_path(request).split("/")
    skipped += len(parts) - len(request.path.split("/"))
    return "/" + "/".join(parts[skipped:])


def _key(request: Request, about: str) -> str:
    """The same for each attempt at a request that has an `Idempotency-Key`; any other is an attempt of its own."""
    given = dict(request.scope["headers"]).get(b"idempotency-key")
    if given is None:
        return request.about.id
    said = "\n".join((about, request.method, _raw_path(request), given.decode("latin-1")))
    return blake2b(said.encode(), digest_size=16).hexdigest()


class _Given:
    """A request as a handler sees it, and what reading its body has raised."""

    def __init__(self, request: Request, path: str) -> None:
        self._request = request
        self._path = path
        self._failed: Exception | None = None

    async def called(self, call: Callable[[definitions.Request], Awaitable[Answer]]) -> Answer:
        """Raises whatever the server refuses, and `internal_error` for anything else that the handler raises."""
        from weftline.threads.definitions.endpoints import Request as SentRequest  # once a folder is served

        request = self._request
        query: dict[str, str] = {}
        if request.raw_query:
            try:
                pairs = fields(request.raw_query, max_fields=_MAX_QUERY_FIELDS)
            except ValueError as error:
                raise InvalidRequest(f"The query cannot be read: {error}.") from None
            query = dict(reversed(pairs))
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in reversed(request.scope["headers"])
            if name not in _HIDDEN
        }
        read = None if request.declared.body is None else self._read
        try:
            return await call(SentRequest(request.method, self._path, query=query, headers=headers, read=read))
        except (Unavailable, ConnectionResetError):
            raise
        except ToolFailed as error:  # from the workers, whose threads are all stuck
            raise Unavailable(str(error), retry_after_s=5) from error
        except Exception as error:
            if error is self._failed or (isinstance(error, WeftlineError) and error.code in _OF_STATE):
                raise
            raise _failed(request, error) from error

    async def _read(self) -> bytes:
        try:
            return await self._request.body()
        except Exception as error:
            self._failed = error
            raise


async def _respond(
    app: App,
    request: Request,
    principal: Principal,
    answer: Callable[[], Awaitable[Answer]],
    stack: AsyncExitStack,
) -> Response | None:
    """Returns the response of a handler; None for a stream, which has been sent then. Closes `stack` at its end.

    All of it is one task, which is cancelled if the client leaves.
    """

    async def answered() -> Response | None:
        async with stack:
            made, first = await _begun(request, answer, stack)
            if made.pieces is None:
                return Response(made.body, status=made.status, headers=_headers(made))
            request.body_is_read()
            sent = partial(_stream, app, request, made, first, made.pieces)
            await (sent() if principal is NOBODY else app.streams.carry(principal, sent))
            return None

    return await request.unless_gone(answered())


async def _begun(
    request: Request, answer: Callable[[], Awaitable[Answer]], stack: AsyncExitStack
) -> tuple[Answer, bytes]:
    """Returns the answer, and the first piece of one that is a stream."""
    deadline = asyncio.timeout(FIRST_BYTE_S)
    try:
        async with deadline:
            made, first = await answer(), b""
            if made.pieces is not None:
                stack.push_async_callback(made.pieces.aclose)
                try:
                    first = b"" if request.method == "HEAD" else await anext(made.pieces, b"")
                except Exception as error:
                    raise _failed(request, error) from error
            return made, first
    except TimeoutError as error:
        if not deadline.expired():
            raise _failed(request, error) from error
        raise WeftlineError(
            f"The handler of this route has not answered in {FIRST_BYTE_S:g} s.", code="handler_timeout"
        ) from None


async def _stream(app: App, request: Request, made: Answer, first: bytes, pieces: AsyncIterator[bytes]) -> None:
    headers = [(b"x-request-id", request.about.id.encode()), NO_SNIFFING, *_headers(made)]
    await request.send({"type": "http.response.start", "status": made.status, "headers": headers})
    if request.method != "HEAD":
        if first:
            await app.large.send_frame(request.send, first)
        try:
            async for piece in pieces:
                if piece:
                    await app.large.send_frame(request.send, piece)
        except ConnectionResetError:
            raise
        except Exception as error:
            _failed(request, error)
            # The head is out, so the client learns of it by a response that breaks off.
            raise ConnectionResetError from error
    await request.send({"type": "http.response.body", "body": b""})


def _headers(made: Answer) -> Headers:
    return tuple([(name.encode(), text.encode("latin-1")) for name, text in made.headers.items() if name not in _OURS])


def _failed(request: Request, error: Exception) -> WeftlineError:
    """Logs what a handler has raised, of which the client is told nothing."""
    logger.error("the handler of %s %s failed (%s)", request.method, _shown(request), request.about.id, exc_info=error)
    return WeftlineError("The handler of this route failed.", code="internal_error")


def _shown(request: Request) -> str:
    """The path for the log, without the thread's id, which is all that protects its public endpoints."""
    return request.path.replace(request.params.get("threadId") or "\n", "{threadId}")


def _route(method: str, path: str, kind: str) -> Route:
    of_thread = path == THREAD
    return Route(
        method,
        path,
        on_thread if of_thread else beside_threads,
        scopes=("sessions:read",) if method == "GET" else ("sessions:write",),
        narrowed="its agents" if of_thread else "no",
        is_open=is_public_endpoint if of_thread else is_public_controller,
        body=None if method in ("GET", "DELETE") else _BODY,
        returns=OtherProtocol,
        summary=f"Call {kind} of the served folder",
    )


ROUTES = tuple(
    _route(method, path, kind)
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    for path, kind in ((THREAD, "an endpoint"), (CONTROLLER, "a controller"))
)
