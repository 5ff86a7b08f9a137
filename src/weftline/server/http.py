"""Requests and answers as this server sees them: a thin layer over ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from operator import itemgetter
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from weftline.api.principal import Principal
from weftline.errors import InvalidRequest, TooLarge
from weftline.log_context import RequestInfo
from weftline.percent import fields
from weftline.server.large_bodies import LARGE_BYTES, LargeBodies
from weftline.server.memory_budget import Reservation
from weftline.wire.limits import MAX_BODY_BYTES

T = TypeVar("T")

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
StreamedResponse: TypeAlias = Callable[[], Awaitable[None]]
"""An answer that goes on for long: sent when the handler and all that it holds are gone."""

_name = itemgetter(0)
_JSON = (b"content-type", b"application/json")
NO_SNIFFING = (b"x-content-type-options", b"nosniff")
"""An answer is what its type says: what somebody else has put into it does not make it a page."""

PIECE_BYTES = 64 * 1024
"""Sent at once. More than this is sent in pieces, each when the client has taken most of those before."""

_MAX_QUERY_FIELDS = 1_000

DEPARTURE = "weftline.departure"
"""In the scope: the `Departure` of the client; see `weftline.server.protocol`."""
FLOW = "weftline.flow"
"""In the scope: the `Flow` of the connection."""


class Flow(Protocol):
    """Whether the client keeps up with what is sent to it."""

    @property
    def write_paused(self) -> bool:
        """Whether much waits to be sent."""
        ...

    async def drain(self) -> None:
        """Returns when little waits to be sent, or when the client is gone."""
        ...


class Credentials(Protocol):
    """Whether a credential that was let in still is."""

    def remembers(self, principal: Principal) -> bool:
        """Whether no credential has changed since this one was looked up."""
        ...

    async def require_valid(self, principal: Principal) -> None:
        """Raises `Unauthorized` if it would no longer be let in."""
        ...


class Departure(Struct, eq=False):
    """Notifies listeners when the client goes away before its response has ended.

    ASGI's own way is a task that waits on `receive`, one for each stream that is open.
    """

    gone: bool = False
    _calls: list[Callable[[], object]] = []

    def then(self, call: Callable[[], object]) -> None:
        """Calls it when the client goes away, at once if it has."""
        if self.gone:
            call()
        else:
            self._calls.append(call)

    def happened(self) -> None:
        self.gone = True
        calls, self._calls = self._calls, []
        for call in calls:
            call()


class Request:
    """One HTTP request. Headers are looked up when they are asked for: most requests need two of them."""

    __slots__ = (
        "_bodies",
        "_credentials",
        "_first",
        "_headers",
        "_principal",
        "_query",
        "_receive",
        "_rooms",
        "about",
        "id",
        "metadata",
        "method",
        "params",
        "path",
        "raw_query",
        "root",
        "scope",
        "send",
    )

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, request_id: str, bodies: LargeBodies | None = None
    ) -> None:
        self.scope = scope
        self.send = send
        self.id = request_id
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.root: str = scope.get("root_path", "")
        """The path that the server is mounted at; `path` is below it."""
        self.raw_query: bytes = scope.get("query_string", b"")
        self.params: Mapping[str, str] = {}
        self.about = RequestInfo(request_id)
        """For the log."""
        self.metadata = ""
        """Where the metadata of the protected resource is (RFC 9728), if it has any."""
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._first: dict[bytes, bytes] | None = None
        self._receive = receive
        self._bodies = bodies
        self._credentials: Credentials | None = None
        self._principal: Principal | None = None
        self._rooms: list[Reservation] | None = None
        self._query: list[tuple[str, str]] | None = None

    def header(self, name: bytes) -> str | None:
        """The first line of that name."""
        if self._first is None:
            self._first = dict(reversed(self._headers))
        value = self._first.get(name)
        return None if value is None else value.decode("latin-1")

    def header_lines(self, name: bytes) -> list[str]:
        """Every line of a header that may be there several times."""
        return [value.decode("latin-1") for key, value in self._headers if key == name]

    @property
    def query(self) -> list[tuple[str, str]]:
        if self._query is None:
            try:
                self._query = fields(self.raw_query, max_fields=_MAX_QUERY_FIELDS) if self.raw_query else []
            except ValueError as error:
                raise InvalidRequest(f"The query cannot be read: {error}.") from None
        return self._query

    def query_value(self, name: str) -> str | None:
        if self.raw_query:
            for key, value in self.query:
                if key == name:
                    return value
        return None

    @property
    def receive(self) -> Receive:
        """The rest of the request, for a handler that speaks ASGI itself."""
        return self._receive

    def let_in(self, principal: Principal, credentials: Credentials) -> None:
        """Its head has been judged. The body may take a while to come, so the credential counts once more then."""
        self._principal, self._credentials = principal, credentials

    async def body(self, *, limit: int = MAX_BODY_BYTES) -> bytes:
        """The whole body; `TooLarge` when it is over `limit` bytes, `Unauthorized` if the credential was revoked.

        Of a large one `RateLimited` or `Unavailable` if there is no room for it; `body_is_read` frees its room.
        """
        declared = self.header(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        data, more = _piece(await self._receive())
        if more:
            data = await self._rest(data, declared, limit)
        elif len(data) > limit:
            raise _too_large(limit)
        credentials, principal = self._credentials, self._principal
        if credentials is not None and principal is not None and not credentials.remembers(principal):
            await credentials.require_valid(principal)
        return data

    async def _rest(self, data: bytes, declared: str | None, limit: int) -> bytes:
        """The whole body of which `data` is the first piece."""
        pieces, more = [data], True
        size, room = len(data), LARGE_BYTES
        while more:
            if size > room and self._bodies is not None:
                expected = int(declared) if declared is not None and declared.isdigit() else min(4 * size, limit)
                added = await self.unless_gone(self._bodies.hold(self.about.workspace, expected - room))
                self._rooms = [*(self._rooms or ()), added]
                room = expected
            piece, more = _piece(await self._receive())
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            pieces.append(piece)
        return b"".join(pieces)

    def body_is_read(self) -> None:
        """The bytes of the body are no longer needed. Called by the app when the handler is done, if not before."""
        rooms, self._rooms = self._rooms, None
        for room in rooms or ():
            room.free()

    def let_go(self) -> None:
        """Frees what only the handler needed: an answer may be open for hours."""
        self._headers.clear()
        self._first = None
        self._query = None
        self.params = {}

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """The value of `work`, which is cancelled if the client goes away.

        Raises `ConnectionResetError` in that case.
        """
        departure: Departure | None = self.scope.get(DEPARTURE)
        if departure is None:
            return await work
        task = asyncio.ensure_future(work)
        departure.then(task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            mine = asyncio.current_task()
            if mine is not None and mine.cancelling():
                raise
            raise ConnectionResetError from None

    async def disconnected(self) -> None:
        """Returns when the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Response(Struct, eq=False):
    """A complete answer: JSON unless the headers say otherwise."""

    body: bytes
    status: int = 200
    headers: Headers = ()
    code: str = ""
    """Of a refusal, for the log."""


async def send_response(request: Request, answer: Response) -> None:
    headers = [
        (b"content-length", b"%d" % len(answer.body)),
        (b"x-request-id", request.id.encode()),
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
    # The connection waits in `send` while the client does not keep up, so that no second copy of it all is made.
    for at in range(0, len(body), PIECE_BYTES):
        last = at + PIECE_BYTES >= len(body)
        await request.send({"type": "http.response.body", "body": body[at : at + PIECE_BYTES], "more_body": not last})
        await asyncio.sleep(0)  # a client that takes it all at once leaves others their turn


def _piece(message: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Some of a body, and whether there is more of it."""
    if message["type"] == "http.disconnect":
        raise ConnectionResetError
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit} bytes.", limit_bytes=limit)
