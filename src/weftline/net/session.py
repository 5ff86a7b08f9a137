"""The only module that uses aiohttp. Importing it takes a while, so `client.py` does that late.

What measurably matters (docs/decisions/0003-direct-transport.md): one session, no environment look-up per request, no
traces, no aiohttp timer per request, and bodies in the pieces that the socket delivered.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import nullcontext
from contextvars import ContextVar
from functools import lru_cache, partial
from http import HTTPStatus
from io import BytesIO
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import aiohttp
from aiohttp import ClientPayloadError
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from weftline._version import __version__
from weftline.net.address import Address, InvalidAddress, parse
from weftline.net.egress import AddressCheck, EgressRefused, allowed
from weftline.net.errors import RequestFailed
from weftline.net.response import HttpResponse, failure
from weftline.work.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp.abc import ResolveResult
    from aiohttp.connector import Connection
    from aiohttp.http import RawResponseMessage
    from aiohttp.streams import StreamReader
    from aiohttp.tracing import Trace

    from weftline.net.errors import TimeLimits
    from weftline.net.proxies import Proxies


MAX_INTERIM = 16
"""How many interim responses (1xx) may precede the real one."""
MAX_FRAMING_BYTES = 1024 * 1024
"""How much framing a chunked body may have, unless its content is as large. Chunks of one byte take five."""
_PIECE = 8 * 1024
"""How much of the received data is parsed at once until the head is complete."""


class BoundedHandler(ResponseHandler):
    """A connection that fails if a server keeps sending interim responses (1xx), or a body that is mostly framing.

    aiohttp reads any number of both, and parses everything in the socket at once: ten thousand interim responses, or
    forty thousand chunks.
    """

    _interim = 0
    _answered = False
    _given_up = False
    _received = 0

    def set_response_params(self, **params: Any) -> None:
        self._interim = 0
        self._received = 0
        self._answered = False
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        while len(data) > _PIECE and not self._answered and not self._given_up:
            super().data_received(data[:_PIECE])
            data = data[_PIECE:]
        if not self._given_up:
            super().data_received(data)
        if self._answered and not self._given_up and self._received > MAX_FRAMING_BYTES:
            self._check_framing()

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        if not self._given_up and _is_interim(data[0].code):
            self._interim += 1
            if self._interim > MAX_INTERIM:
                self._give_up(f"more than {MAX_INTERIM} interim answers")
        else:
            self._answered = True
        if not self._given_up:
            super().feed_data(data, size)

    def _check_framing(self) -> None:
        payload = self._payload
        if payload is not None and self._received > MAX_FRAMING_BYTES + 2 * payload.total_raw_bytes:
            payload.set_exception(ClientPayloadError("the body is mostly framing"))
            self._give_up("the body is mostly framing")

    def _give_up(self, why: str) -> None:
        self._given_up = True
        if self.transport is not None:
            self.transport.close()
        self.set_exception(HttpProcessingError(message=why))


def _is_interim(status: int) -> bool:
    return HTTPStatus.CONTINUE <= status < HTTPStatus.OK and status != HTTPStatus.SWITCHING_PROTOCOLS


USER_AGENT = f"weftline/{__version__}"
_ENCODINGS = "gzip, deflate"
"""Only what aiohttp decompresses with a limit; others would be offered as soon as their package is installed."""
_KEEP_ALIVE_S = 30.0
_MAX_BYTES_AT_ONCE = 1024 * 1024
"""From this size on, aiohttp warns about plain bytes, which it writes at once; a file is written in pieces."""

_reused: ContextVar[bool] = ContextVar("_reused", default=False)
"""Whether the current request uses a connection that has carried another."""
_seen: WeakSet[ResponseHandler] = WeakSet()
"""The connections that have carried a request."""


class HttpSession:
    """An aiohttp session: no cookies, no redirects, certificates checked. Belongs to one event loop."""

    def __init__(
        self,
        *,
        check: AddressCheck | None,
        proxies: Proxies,
        tls: ssl.SSLContext | None,
        max_body_bytes: int | None,
    ) -> None:
        self._check = check
        self._proxies = proxies
        self._proxy_hosts = proxies.hosts
        self._max_body_bytes = max_body_bytes
        self._timeouts: dict[float | None, aiohttp.ClientTimeout] = {}
        self._deadlines = Deadlines()
        resolver = None if check is None else _CheckedResolver(check, trusted=self._proxy_hosts)
        self._session = aiohttp.ClientSession(
            connector=_Connector(
                limit=0,
                keepalive_timeout=_KEEP_ALIVE_S,
                ttl_dns_cache=30,
                resolver=resolver,
                ssl=True if tls is None else tls,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": _ENCODINGS},
            trust_env=False,
        )

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        limits: TimeLimits,
        resend: bool,
    ) -> HttpResponse:
        """Sends a request and waits for the head of its response. Raises `RequestFailed`.

        With `resend`, a request of any method is sent again if it hit a kept-alive connection that the server had
        closed, provided that not a single byte of a response had arrived. Otherwise only idempotent ones are.
        """
        started = asyncio.get_running_loop().time()
        host = "the server"
        try:
            address, dialled = _target(url)
            host = address.host
            if address.basic is not None and not any(name.lower() == "authorization" for name in headers):
                headers = {**headers, "Authorization": address.basic}
            head_s = limits.head_s
            with nullcontext() if head_s is None else self._deadlines.after(head_s):
                proxy = await self._route(address) if self._proxies or self._check is not None else None
                response = await self._exchange(method, dialled, headers, body, limits, proxy, resend)
        except InvalidAddress as error:
            raise RequestFailed("invalid", str(error), sent=False) from None
        except Exception as error:
            raise failure(error, host=host, begun=False, limits=limits) from None
        return HttpResponse(
            response, url=url, host=host, limits=limits, started=started, max_bytes=self._max_body_bytes
        )

    async def aclose(self) -> None:
        await self._session.close()

    async def _exchange(
        self,
        method: str,
        address: URL,
        headers: Mapping[str, str],
        body: bytes | None,
        limits: TimeLimits,
        proxy: str | None,
        resend: bool,
    ) -> aiohttp.ClientResponse:
        timeout = self._timeouts.get(limits.connect_s) or self._timeout(limits.connect_s)
        while True:
            _reused.set(False)
            try:
                return await self._session.request(
                    method,
                    address,
                    data=body if body is None or len(body) < _MAX_BYTES_AT_ONCE else BytesIO(body),
                    headers=headers,
                    allow_redirects=False,
                    timeout=timeout,
                    proxy=proxy,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if not (resend and _reused.get() and _is_unanswered(error)):
                    raise
                resend = False

    async def _route(self, address: Address) -> str | None:
        """Returns the proxy to use, if any. Raises `EgressRefused` for an address that must not be connected to.

        For a direct connection, the resolver checks the host once its addresses are known.
        """
        host = address.host
        proxy = self._proxies.find(address.scheme, host, address.port) if self._proxies else None
        if self._check is None:
            return proxy
        if address.ip is not None:
            # The resolver is only called for names.
            self._check(host, host)
        elif proxy is not None or host in self._proxy_hosts:
            await self._judge(host, self._check)
        return proxy

    async def _judge(self, host: str, check: AddressCheck) -> None:
        """Checks a host that a proxy will resolve again. Every address must be allowed, since the proxy chooses."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError:
            # A host that cannot be resolved is treated as the worst case; one that is allowed by name passes anyway.
            try:
                check(host, "169.254.169.254")
            except EgressRefused:
                raise EgressRefused(
                    f"{host} cannot be resolved here, so this server cannot tell whether it may connect to it."
                ) from None
            return
        for address in {str(info[4][0]) for info in found}:
            check(host, address)

    def _timeout(self, connect_s: float | None) -> aiohttp.ClientTimeout:
        made = aiohttp.ClientTimeout(
            connect=connect_s,
            sock_connect=connect_s,
            # Otherwise it would be rounded up to a whole second.
            ceil_threshold=float("inf"),
        )
        self._timeouts[connect_s] = made
        return made


class _Connector(aiohttp.TCPConnector):
    """Records whether a request gets a used connection. Traces would show that too, at a cost."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType]
        self._factory = partial(BoundedHandler, loop=self._loop)

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        if protocol is not None:
            _reused.set(protocol in _seen)
            _seen.add(protocol)
        return connection


class _CheckedResolver(aiohttp.ThreadedResolver):
    def __init__(self, check: AddressCheck, *, trusted: frozenset[str]) -> None:
        super().__init__()
        self._check = check
        self._trusted = trusted

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        if host in self._trusted:
            return found
        passed = set(allowed(self._check, host, (one["host"] for one in found)))
        return [one for one in found if one["host"] in passed]


@lru_cache(maxsize=64)
def _target(url: str) -> tuple[Address, URL]:
    """Returns the address of a URL, also for the HTTP library, for which it must be the one that is checked."""
    address = parse(url)
    dialled = URL(address.bare_url, encoded=True)
    if (dialled.scheme, dialled.raw_host, dialled.port) != address.origin:
        raise InvalidAddress("The host of the address is ambiguous.")
    return address, dialled


def _is_unanswered(error: Exception) -> bool:
    if isinstance(error, aiohttp.ServerDisconnectedError):
        # If a response broke off, its bytes are passed as a half-parsed message instead of the text.
        return isinstance(error.message, str)
    return not isinstance(error, aiohttp.ClientConnectorError)
