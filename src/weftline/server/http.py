"""Requests and responses of this server: a thin layer over ASGI."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from operator import itemgetter
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from weftline.api.principal import Principal
from weftline.errors import InvalidRequest, TooLarge
from weftline.server.declared import (
    IDEMPOTENCY_KEY_CHARS,
    IDEMPOTENCY_KEY_PATTERN,
    NOTHING,
    AnyBody,
    Body,
    Declared,
    RawBytes,
    Undeclared,
)
from weftline.server.memory import LARGE_BYTES, LargeBodies, Reservation
from weftline.store.rows import IdempotencyKey
from weftline.text.characters import may_have_nul
from weftline.text.percent import fields
from weftline.trace_context import RequestInfo
from weftline.wire.json_text import refuse_nul
from weftline.work.heavy import off_loop, parsed
from weftline.work.turns import current_caller

T = TypeVar("T")

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
StreamedResponse: TypeAlias = Callable[[], Awaitable[None]]
"""A response that takes long: it is sent after the handler has returned and released what it held."""

_name = itemgetter(0)
_KEY = re.compile(IDEMPOTENCY_KEY_PATTERN)
_JSON = (b"content-type", b"application/json")
NO_SNIFFING = (b"x-content-type-options", b"nosniff")
"""Tells browsers to trust the content type, so that foreign content is not taken for a page."""

PIECE_BYTES = 64 * 1024
"""Larger bodies are sent in pieces, each when the client has read most of the previous ones."""

_MAX_QUERY_FIELDS = 1_000

DISCONNECT = "weftline.disconnect"
"""Key in the scope: the `Disconnect` of the client; see `weftline.server.protocol`."""
FLOW = "weftline.flow"
"""Key in the scope: the `Flow` of the connection."""
PEER = "weftline.peer"
"""Key in the scope: the user of this machine who has connected to the store's own socket. Only its listener sets it."""


class Flow(Protocol):
    """Flow control: tells whether the client keeps up with what is sent to it."""

    @property
    def write_paused(self) -> bool:
        """True if much is waiting to be sent."""
        ...

    async def drain(self) -> None:
        """Waits until little is waiting to be sent, or the client is gone."""
        ...


class Credentials(Protocol):
    """Checks whether an accepted credential is still valid."""

    def remembers(self, principal: Principal) -> bool:
        """Returns True if no credential has changed since this one was looked up."""
        ...

    async def require_valid(self, principal: Principal) -> None:
        """Raises `Unauthorized` if it would no longer be accepted."""
        ...


class Disconnect(Struct, eq=False):
    """Notifies listeners when the client goes away before its response has ended.

    The ASGI way would need a task per open stream that waits on `receive`.
    """

    gone: bool = False
    _calls: list[Callable[[], object]] = []

    def then(self, call: Callable[[], object]) -> None:
        """Calls `call` when the client goes away, or at once if it has."""
        if self.gone:
            call()
        else:
            self._calls.append(call)

    def notify(self) -> None:
        self.gone = True
        calls, self._calls = self._calls, []
        for call in calls:
            call()


class Request(Struct, eq=False):
    """One HTTP request.

    Only what the route has declared can be read of it; anything else raises `Undeclared`. So the table of routes, and
    the OpenAPI page with it, cannot lack a parameter.
    """

    scope: Scope
    receive: Receive
    """The rest of the request, for a handler that uses ASGI directly."""
    send: Send
    about: RequestInfo
    """For the log."""
    bodies: LargeBodies | None = None
    credentials: Credentials | None = None
    """Checks the credential again when the body, which may take a while, has arrived."""
    principal: Principal | None = None
    """Whose credential was accepted."""
    operator: str = ""
    """The user of this machine whose request this is, if it came over the store's own socket without a credential."""
    method: str = ""
    path: str = ""
    root: str = ""
    """The path that the server is mounted at; `path` is relative to it."""
    raw_query: bytes = b""
    params: Mapping[str, str] = {}
    declared: Declared = NOTHING
    """What its route reads; nothing before the route is known."""
    metadata: str = ""
    """The URL of the protected resource's metadata (RFC 9728), if it has any."""
    rooms: tuple[Reservation, ...] = ()
    """What the body holds until `body_is_read`, if it is large."""
    _first: dict[bytes, bytes] = {}
    _query: list[tuple[str, str]] | None = None

    __repr__ = object.__repr__  # its credential belongs in no log

    def __post_init__(self) -> None:
        scope = self.scope
        self.method, self.path = scope["method"], scope["path"]
        self.root = scope.get("root_path", "")
        self.raw_query = scope.get("query_string", b"")
        self._first = dict(reversed(scope["headers"]))

    def header(self, name: bytes) -> str | None:
        """Returns the first header of that name, in lower case."""
        if name not in self.declared.headers:
            raise Undeclared(f"the header {name.decode()}")
        value = self._first.get(name)
        return None if value is None else value.decode("latin-1")

    def header_lines(self, name: bytes) -> list[str]:
        """Returns all values of a header that may occur several times."""
        if name not in self.declared.headers:
            raise Undeclared(f"the header {name.decode()}")
        return [value.decode("latin-1") for key, value in self.scope["headers"] if key == name]

    def _pairs(self) -> list[tuple[str, str]]:
        """Returns the parameters of the query, in its order."""
        if self._query is None:
            try:
                self._query = fields(self.raw_query, max_fields=_MAX_QUERY_FIELDS) if self.raw_query else []
            except ValueError as error:
                raise InvalidRequest(f"The query cannot be read: {error}.") from None
        return self._query

    def query_value(self, name: str) -> str | None:
        """Returns the first query parameter of that name."""
        if name not in self.declared.query:
            raise Undeclared(f"the query parameter {name}")
        if self.raw_query:
            for key, value in self._pairs():
                if key == name:
                    return value
        return None

    def query_values(self, name: str) -> list[str]:
        """Returns all values of a query parameter that may occur several times."""
        if name not in self.declared.query:
            raise Undeclared(f"the query parameter {name}")
        return [value for key, value in self._pairs() if key == name]

    @property
    def repeats_a_parameter(self) -> bool:
        """True if a parameter of the query, declared or not, occurs more than once."""
        pairs = self._pairs()
        return len(dict(pairs)) != len(pairs)

    async def read(self, body: Body[T], **options: Any) -> T:
        """Returns the body as its route describes it. Raises like `body`, or `InvalidRequest`."""
        return await self.parse(await self.body(), body, **options)

    async def parse(self, raw: bytes, body: Body[T], **options: Any) -> T:
        """Returns the body that has these bytes, for a handler that needs them too."""
        self.require_body(body)
        assert body.parse is not None
        return await parsed(partial(body.parse, **options) if options else body.parse, raw)

    def require_body(self, body: AnyBody) -> None:
        """Raises `Undeclared` unless this is the body of the route."""
        if body is not self.declared.body:
            raise Undeclared(f"this body: {body}")

    async def body(self) -> bytes:
        """Returns the whole body. Raises `TooLarge` if it exceeds the route's limit, `Unauthorized` if the credential
        was revoked.

        For a large body, raises `RateLimited` or `Unavailable` if there is no room; `body_is_read` frees its room.
        """
        if self.declared.body is None:
            raise Undeclared("a body")
        limit = self.declared.body.limit_bytes
        declared = self.header(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        data, more = _piece(await self.receive())
        if more:
            data = await self._rest(data, declared, limit)
        elif len(data) > limit:
            raise _too_large(limit)
        await self._check_credential()
        if may_have_nul(data) and isinstance(self.declared.body, Body) and not self.declared.body.repaired:
            await parsed(refuse_nul, data)
        return data

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yields the body as it arrives. It may be of any size: the handler keeps none of it and has limits of its own.

        Raises `Unauthorized` at the end if the credential was revoked meanwhile.
        """
        body = self.declared.body
        if not isinstance(body, Body) or not (body.or_bytes or body.type is RawBytes):
            raise Undeclared("a body of bytes")
        more = True
        while more:
            piece, more = _piece(await self.receive())
            yield piece
        await self._check_credential()

    async def _check_credential(self) -> None:
        """The credential again: a body may take a while to arrive."""
        credentials, principal = self.credentials, self.principal
        if credentials is not None and principal is not None and not credentials.remembers(principal):
            await credentials.require_valid(principal)

    async def _rest(self, data: bytes, declared: str | None, limit: int) -> bytes:
        """Reads the rest of the body, whose first piece is `data`, and returns all of it."""
        pieces, more = [data], True
        size, room = len(data), LARGE_BYTES
        while more:
            if size > room and self.bodies is not None:
                expected = int(declared) if declared is not None and declared.isdigit() else min(4 * size, limit)
                added = await self.unless_gone(self.bodies.hold(self.about.workspace, expected - room))
                self.rooms = (*self.rooms, added)
                room = expected
            piece, more = _piece(await self.receive())
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            pieces.append(piece)
        return b"".join(pieces)

    def body_is_read(self) -> None:
        """Frees the room of the body. Called by the app when the handler is done, if not before."""
        rooms, self.rooms = self.rooms, ()
        for room in rooms:
            room.free()

    def release_input(self) -> None:
        """Releases what only the handler needed, as a response may take hours."""
        self.scope["headers"].clear()
        self._first.clear()
        self._query = None
        self.params = {}

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the value of `work`, which is cancelled if the client goes away.

        Raises `ConnectionResetError` in that case.
        """
        disconnect: Disconnect | None = self.scope.get(DISCONNECT)
        if disconnect is None:
            return await work
        task = asyncio.ensure_future(work)
        disconnect.then(task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            mine = asyncio.current_task()
            if mine is not None and mine.cancelling():
                raise
            raise ConnectionResetError from None

    @contextmanager
    def may_end_waits(self) -> Generator[None]:
        """Inside, a long wait ends with `ConnectionResetError` if the client goes away; everything else is finished."""
        token = current_caller.set(self.scope.get(DISCONNECT))
        try:
            yield
        finally:
            current_caller.reset(token)

    async def disconnected(self) -> None:
        """Waits until the client has gone."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


class Response(Struct, eq=False):
    """A complete response: JSON unless the headers say otherwise."""

    body: bytes
    status: int = 200
    headers: Headers = ()
    code: str = ""
    """The error code of a refusal, for the log."""


async def send_response(request: Request, answer: Response) -> None:
    headers = [
        (b"content-length", b"%d" % len(answer.body)),
        (b"x-request-id", request.about.id.encode()),
        NO_SNIFFING,
        *answer.headers,
    ]
    if answer.body and b"content-type" not in map(_name, answer.headers):
        headers.append(_JSON)
    await request.send({"type": "http.response.start", "status": answer.status, "headers": headers})
    body = b"" if request.method == "HEAD" else answer.body
    if len(body) <= PIECE_BYTES:
        await request.send({"type": "http.response.body", "body": body})
        return
    # `send` waits while the client does not keep up, so that the whole body is not copied again.
    for at in range(0, len(body), PIECE_BYTES):
        last = at + PIECE_BYTES >= len(body)
        await request.send({"type": "http.response.body", "body": body[at : at + PIECE_BYTES], "more_body": not last})
        await asyncio.sleep(0)  # yield to others, even if the client reads everything at once


def _piece(message: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Returns a piece of a body, and whether there is more."""
    if message["type"] == "http.disconnect":
        raise ConnectionResetError
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit} bytes.", limit_bytes=limit)


async def idempotency(request: Request, route: str, body: bytes) -> IdempotencyKey | None:
    """Returns the idempotency key; None for a request without an `Idempotency-Key`."""
    key = idempotency_key(request)
    if key is None:
        return None
    hashing = partial(blake2b, body, digest_size=16)
    return IdempotencyKey(route, key, (await off_loop(hashing, size=len(body))).digest())


def idempotency_key(request: Request) -> str | None:
    key = request.header(b"idempotency-key")
    if key is not None and (len(key) > IDEMPOTENCY_KEY_CHARS or not _KEY.match(key)):
        raise InvalidRequest(f"Idempotency-Key: must have 1 to {IDEMPOTENCY_KEY_CHARS} printable characters.")
    return key
