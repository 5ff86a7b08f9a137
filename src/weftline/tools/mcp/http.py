"""The HTTP side of MCP connections: the official client's requests, sent by our own dialer.

That way one egress policy applies to all tools. A failure below MCP becomes a JSON-RPC error of the one request that it
happened to, with a code of our own, instead of closing a connection that other calls use.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import cast

import httpx2
import msgspec

from weftline import prompts
from weftline.net.address import Origin, origin_of
from weftline.net.dial import Dialer
from weftline.net.errors import BodyTooLarge, RequestFailed
from weftline.net.response import HttpResponse
from weftline.text.characters import storable_json
from weftline.text.json_size import MAX_LONG_NUMBERS, LongNumbers, excess
from weftline.tools.mcp.login import Credential, LoginLost

NOT_SENT = -32901
"""The request did not reach a server."""
BROKEN = -32902
"""The request may have been processed; its response is lost."""
SESSION_LOST = -32903
"""The server does not know our session (any more) and did not process the request."""
REFUSED = -32904
"""The server answered with an HTTP error."""
UNAUTHORIZED = -32905
"""The server requires a login that we do not have."""
UNREADABLE = -32906
"""The server's response is not one that we can read."""

MAX_ANSWER_BYTES = 16 * 1024 * 1024
NOTICE_S = 5.0
_MAX_SEPARATORS = 1_000_000
"""How many commas and brackets a streamed response may have, even inside strings, as parsing takes far more memory."""
_MAX_ERROR_BYTES = 64 * 1024
_MAX_SCOPE_CHARS = 500
_SESSION = "mcp-session-id"
_OURS = frozenset({"host", "content-length", "connection", "accept-encoding", "transfer-encoding"})
_FRAMING = frozenset({"content-length", "content-encoding", "transfer-encoding", "connection"})
_MEANS_SESSION_LOST = ("session", "not initialized")


class DialledTransport(httpx2.AsyncBaseTransport):
    """Adds `headers` to every request to `origin`; those that the protocol itself sets take precedence.

    If the `credential`'s token is refused, it is renewed once and the request sent again: it was not processed.
    `on_login_needed` is called with what a request is answered if the server wants a login, or another one.
    """

    def __init__(
        self,
        dialer: Dialer,
        *,
        origin: Origin,
        headers: Mapping[str, str],
        credential: Credential | None = None,
        on_login_needed: Callable[[int, str], object] = lambda code, message: None,
    ) -> None:
        self._dialer = dialer
        self._origin = origin
        self._headers = dict(headers)
        self._credential = credential
        self._on_login_needed = on_login_needed

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        credential = self._credential
        if credential is None or origin_of(str(request.url)) != self._origin:
            return (await self._send(request))[1]
        try:
            token = await credential.token()
            status, response = await self._send(request, token)
            if status != HTTPStatus.UNAUTHORIZED:
                return response
            await response.aclose()
            return (await self._send(request, await credential.replace_token(token)))[1]
        except LoginLost as error:
            return self._login_needed(request, UNAUTHORIZED, f"{error} {prompts.remote.MCP_LOG_IN}")
        except RequestFailed as error:
            return _error(request, NOT_SENT, error.message)

    async def _send(self, request: httpx2.Request, token: str | None = None) -> tuple[int, httpx2.Response]:
        """Sends a request. Returns the server's status, and the response as the client should see it."""
        protocol = {name: value for name, value in request.headers.items() if name.lower() not in _OURS}
        own = {name: value for name, value in self._headers.items() if name.lower() not in protocol}
        if token is not None:
            own["authorization"] = f"Bearer {token}"
        url = str(request.url)
        if origin_of(url) != self._origin:
            own = {}
        body = await request.aread()
        call = self._dialer.request(
            request.method,
            url,
            headers={**own, **protocol},
            body=body or None,
            timeout_s=None if _may_take_long(request.method, body) else NOTICE_S,
            listens=request.method == "GET",
        )
        try:
            reply = await call.__aenter__()
        except RequestFailed as error:
            if request.method != "POST":
                raise httpx2.ConnectError(error.message, request=request) from None
            return 0, _error(request, NOT_SENT if not error.sent else BROKEN, error.message)
        if reply.status >= 400 and request.method == "POST":
            try:
                body, _ = await reply.read_up_to(_MAX_ERROR_BYTES)
            except RequestFailed:
                body = b""
            finally:
                await call.__aexit__(None, None, None)
            return reply.status, self._refusal(request, reply, body)
        headers = [(name, value) for name, value in reply.headers.items() if name.lower() not in _FRAMING]
        if request.method == "POST" and reply.media_type == "application/json":
            # Read here, because the client takes a failure in the middle of it as the end of the whole connection.
            try:
                answer = await reply.read(limit=MAX_ANSWER_BYTES)
            except BodyTooLarge:
                return 0, _error(request, UNREADABLE, prompts.remote.MCP_TOO_LARGE)
            except RequestFailed as error:
                return 0, _error(request, BROKEN, error.message)
            finally:
                await call.__aexit__(None, None, None)
            if too_much := excess(answer):
                return 0, _error(request, UNREADABLE, prompts.remote.mcp_answer_has(too_much))
            return reply.status, httpx2.Response(
                reply.status, headers=headers, content=storable_json(answer), request=request
            )
        stream = _Body(reply, call, request)
        return reply.status, httpx2.Response(reply.status, headers=headers, stream=stream, request=request)

    def _refusal(self, request: httpx2.Request, reply: HttpResponse, body: bytes) -> httpx2.Response:
        if reply.status == HTTPStatus.UNAUTHORIZED:
            refused = prompts.remote.server_refused(reply.status, HTTPStatus.UNAUTHORIZED.phrase)
            return self._login_needed(request, UNAUTHORIZED, f"{refused} {prompts.remote.MCP_LOG_IN}")
        challenge = reply.headers.get("www-authenticate", "")
        if reply.status == HTTPStatus.FORBIDDEN and _parameter(challenge, "error") == "insufficient_scope":
            refused = prompts.remote.server_refused(reply.status, HTTPStatus.FORBIDDEN.phrase)
            scope = _parameter(challenge, "scope")[:_MAX_SCOPE_CHARS]
            return self._login_needed(request, REFUSED, prompts.remote.mcp_needs_scope(refused, scope))
        return _refusal(request, reply, body)

    def _login_needed(self, request: httpx2.Request, code: int, message: str) -> httpx2.Response:
        self._on_login_needed(code, message)
        return _error(request, code, message)


class _Envelope(msgspec.Struct):
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_envelope = msgspec.json.Decoder(_Envelope)


def _may_take_long(method: str, body: bytes) -> bool:
    """Returns True if a request may take any time: calls and streams may. Notifications may not, as others wait behind
    them.
    """
    return method == "GET" or (method == "POST" and _envelope.decode(body).id is not msgspec.UNSET)


class _Body(httpx2.AsyncByteStream):
    def __init__(
        self, reply: HttpResponse, call: AbstractAsyncContextManager[HttpResponse], request: httpx2.Request
    ) -> None:
        self._reply = reply
        self._call = call
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_ANSWER_BYTES
        separators = 0
        line: list[bytes] = []
        """The pieces of an incomplete line, as the stream is repaired line by line."""
        numbers = LongNumbers()
        try:
            async for piece in self._reply.chunks():
                left -= len(piece)
                separators += piece.count(b",") + piece.count(b"[") + piece.count(b"{")
                numbers.feed(piece)
                too_large = left < 0 or separators > _MAX_SEPARATORS or numbers.count > MAX_LONG_NUMBERS
                if too_large and self._request.method == "POST":
                    raise httpx2.ReadError("The answer is too large.", request=self._request)
                lines, newline, rest = piece.rpartition(b"\n")
                if newline:
                    yield storable_json(b"".join([*line, lines, newline]))
                    line.clear()
                line.append(rest)
            yield storable_json(b"".join(line))
        except RequestFailed as error:
            raise httpx2.ReadError(error.message, request=self._request) from None

    async def aclose(self) -> None:
        await self._call.__aexit__(None, None, None)


def _refusal(request: httpx2.Request, reply: HttpResponse, body: bytes) -> httpx2.Response:
    """Returns an HTTP error as the JSON-RPC error that it contains or stands for."""
    message = _message(body)
    in_session = _SESSION in request.headers
    lost = message is not None and any(word in message.lower() for word in _MEANS_SESSION_LOST)
    if in_session and (reply.status == 404 or (reply.status == 400 and lost)):
        return _error(request, SESSION_LOST, message or prompts.remote.MCP_SESSION_ENDED)
    if message is not None and reply.media_type == "application/json":
        return httpx2.Response(
            reply.status, headers={"content-type": "application/json"}, content=body, request=request
        )
    try:
        reason = HTTPStatus(reply.status).phrase
    except ValueError:
        reason = reply.reason
    return _error(request, REFUSED, prompts.remote.server_refused(reply.status, reason))


def _parameter(challenge: str, name: str) -> str:
    """Returns a parameter of WWW-Authenticate, with the characters that RFC 6750 allows in scopes; empty if absent."""
    found = re.search(rf'(?:^|[\s,]){name}\s*=\s*(?:"([!#-\[\]-~ ]*)"|([!#-+\--\[\]-~]+))', challenge, re.IGNORECASE)
    return "" if found is None else found[1] or found[2] or ""


def _message(body: bytes) -> str | None:
    """Returns the message of a JSON-RPC error."""
    try:
        answer: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    error = cast("dict[str, object]", answer).get("error") if isinstance(answer, dict) else None
    message = cast("dict[str, object]", error).get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else None


def _error(request: httpx2.Request, code: int, message: str) -> httpx2.Response:
    content = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}})
    return httpx2.Response(502, headers={"content-type": "application/json"}, content=content, request=request)
