"""Outgoing HTTP of tools: one client per egress policy, over aiohttp, which is imported at first use."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from weftline.net.egress import Egress, EgressRefused

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import ResolveResult

CONNECT_S = 10.0
_REDIRECTS = (301, 302, 303, 307, 308)


class DialFailed(Exception):
    """No answer came, or it broke off. `sent` is False when the request surely did not reach anybody."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.message = message
        self.sent = sent


class TooMuch(Exception):
    """The body of an answer is over the limit."""


class Reply:
    """An answer whose head has arrived; its body can be read once."""

    def __init__(self, response: aiohttp.ClientResponse, url: str) -> None:
        self._response = response
        self.url = url
        self.status = response.status
        self.reason = response.reason or ""
        self.headers: Mapping[str, str] = response.headers

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str | None:
        return self._response.charset

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            try:
                piece = await self._response.content.readany()
            except Exception as error:
                raise _failed(error, self.url, sent=True) from None
            if not piece:
                return
            yield piece

    async def read(self, *, limit: int) -> bytes:
        """The whole body; raises `TooMuch` as soon as it is over `limit` bytes."""
        body, whole = await self.read_up_to(limit)
        if not whole:
            raise TooMuch
        return body

    async def read_up_to(self, limit: int) -> tuple[bytes, bool]:
        """The body, or its first `limit` bytes; and whether that is all of it."""
        pieces: list[bytes] = []
        size = 0
        async for piece in self.chunks():
            size += len(piece)
            if size > limit:
                pieces.append(piece[: len(piece) - (size - limit)])
                return b"".join(pieces), False
            pieces.append(piece)
        return b"".join(pieces), True


class Dialer:
    """Carries requests to where `egress` allows. Keeps no cookies and asks no proxy. Belongs to one event loop."""

    def __init__(self, egress: Egress) -> None:
        self.egress = egress
        self._session: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_s: float | None,
        redirects: int = 0,
    ) -> AsyncGenerator[Reply]:
        """Sends one request and follows up to `redirects` redirects, each under the same policy.

        Headers go along only as long as the origin stays the same. `timeout_s` bounds each request, its body included;
        None is for streams that never end. Raises `DialFailed`.
        """
        response, url = await self._follow(method, url, dict(headers or {}), body, timeout_s, redirects)
        try:
            yield Reply(response, url)
        finally:
            # Without effect on the connection when the body was read to its end: it is back in the pool by then.
            response.close()

    async def aclose(self) -> None:
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _follow(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes | None,
        timeout_s: float | None,
        redirects: int,
    ) -> tuple[aiohttp.ClientResponse, str]:
        while True:
            response = await self._send(method, url, headers, body, timeout_s)
            location = response.headers.get("location")
            if redirects <= 0 or response.status not in _REDIRECTS or not location:
                return response, url
            redirects -= 1
            response.release()
            target = urljoin(url, location)
            if _origin(target) != _origin(url):
                headers = {}
            if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                method, body = "GET", None
            url = target

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float | None
    ) -> aiohttp.ClientResponse:
        session = self._session or await self._open()
        import aiohttp
        from yarl import URL

        try:
            # What is encoded already goes out as it is; anything else is encoded, line breaks and blanks above all.
            address = URL(url, encoded=url.isascii() and url.isprintable() and " " not in url)
            host = address.host
            if address.scheme not in ("http", "https") or not host:
                raise DialFailed("Only http and https addresses can be reached.", sent=False)
            self._check_literal(host)
            return await session.request(
                method,
                address,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S),
            )
        except Exception as error:
            raise _failed(error, url, sent=False) from None

    def _check_literal(self, host: str) -> None:
        # The HTTP library asks its resolver about names only.
        try:
            ip_address(host.partition("%")[0])
        except ValueError:
            return
        self.egress.check(host, host)

    async def _open(self) -> aiohttp.ClientSession:
        await asyncio.to_thread(_import_aiohttp)
        async with self._opening:
            if self._closed:
                raise DialFailed("The server is stopping.", sent=False)
            if self._session is None:
                self._session = _new_session(self.egress)
            return self._session


def _import_aiohttp() -> None:
    import aiohttp  # noqa: F401  # pyright: ignore[reportUnusedImport]  imported for its effect on sys.modules


def _new_session(egress: Egress) -> aiohttp.ClientSession:
    import aiohttp

    class Checked(aiohttp.ThreadedResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            found = await super().resolve(host, port, family)
            allowed = set(egress.allowed(host, (one["host"] for one in found)))
            return [one for one in found if one["host"] in allowed]

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=256, limit_per_host=64, ttl_dns_cache=30, resolver=Checked()),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        port = None
    return parts.scheme, parts.hostname, port


def _failed(error: Exception, url: str, *, sent: bool) -> DialFailed:
    """The error as a model may read it: with the host, without path, query, headers or body."""
    import aiohttp

    host = _host(url)
    match error:
        case DialFailed():
            return error
        case EgressRefused():
            return DialFailed(str(error), sent=False)
        case aiohttp.ClientConnectorCertificateError():
            return DialFailed(f"The certificate of {host} is not trusted.", sent=False)
        case aiohttp.ClientConnectorError():
            if isinstance(error.os_error, EgressRefused):
                return DialFailed(str(error.os_error), sent=False)
            return DialFailed(f"Could not connect to {host}.", sent=False)
        case aiohttp.ConnectionTimeoutError():
            return DialFailed(f"{host} took too long to accept the connection.", sent=False)
        case TimeoutError():
            return DialFailed(f"{host} did not answer in time.", sent=True)
        case aiohttp.InvalidURL() | ValueError():
            return DialFailed("The address is not a valid URL.", sent=False)
        case aiohttp.ClientError() | OSError():
            when = "in the middle of the answer" if sent else "before an answer came"
            return DialFailed(f"The connection to {host} broke {when}.", sent=True)
        case _:
            return DialFailed(f"The request to {host} failed: {type(error).__name__}.", sent=True)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "the server"
    except ValueError:
        return "the server"
