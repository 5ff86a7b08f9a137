"""Outgoing HTTP: the one small seam between a model family and the network.

A family posts a body and reads the answer, whole or piece by piece; it never sees the HTTP library. Failures of the
connection come out as `ProviderError`, so that a family only has to look at the status and the bytes.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from ipaddress import ip_address
from types import SimpleNamespace
from typing import TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from weftline.providers.base import ProviderError

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import ResolveResult

AddressCheck: TypeAlias = Callable[[str, str], None]
"""Takes a host and an address of it; raises `OSError` when that is not to be connected to."""


class NativeRequest(Struct, frozen=True):
    """A model call as the API gets it, made safe to show: keys are redacted and binary content is left out."""

    url: str
    headers_redacted: dict[str, str]
    body: bytes


class Response(Protocol):
    """An answer whose head has arrived. The body can be read once, by `read` or by `chunks`."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Looked up without regard to case."""
        ...

    async def read(self) -> bytes:
        """The whole body."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body in pieces, each being what the socket had when it was asked."""
        ...


class Transport(Protocol):
    """Carries requests to model APIs. One instance serves every call of one event loop."""

    def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> AbstractAsyncContextManager[Response]:
        """Sends one request. `timeout_s` bounds the whole call, the reading of the body included.

        Leaving the context before the body was read to its end closes the connection.
        Raises `ProviderError`: `server` when the connection fails or breaks, `timeout` when the time is up.
        """
        ...

    async def aclose(self) -> None: ...


class AiohttpTransport:
    """The transport over aiohttp, which is imported at first use. Redirects are not followed and cookies not kept.

    A request on a kept-alive connection that the server had already closed is sent once more, on condition that not a
    byte of an answer had arrived; any other failure is the caller's to retry. `trust_env` takes proxies (and .netrc)
    from the environment. `check` judges each address before it is connected to.
    """

    def __init__(self, *, trust_env: bool = False, check: AddressCheck | None = None) -> None:
        self._trust_env = trust_env
        self._check = check
        self._session: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def preload(self) -> None:
        """Imports the HTTP library in a thread, so that the first call does not stall the event loop."""
        if "aiohttp" not in sys.modules:
            await asyncio.to_thread(_import_aiohttp)

    @asynccontextmanager
    async def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> AsyncGenerator[Response]:
        session = self._session or await self._open()
        if self._check is not None:
            _check_literal(url, self._check)
        response = await _send(session, url, headers=headers, body=body, timeout_s=timeout_s)
        try:
            yield _AiohttpResponse(response, url)
        finally:
            # Without effect on the connection when the body was read to its end: it is back in the pool by then.
            response.close()

    @asynccontextmanager
    async def get(self, url: str, *, headers: Mapping[str, str], timeout_s: float) -> AsyncGenerator[Response]:
        """Reads an address, such as a list of models."""
        import aiohttp

        session = self._session or await self._open()
        if self._check is not None:
            _check_literal(url, self._check)
        limit = aiohttp.ClientTimeout(total=timeout_s)
        try:
            response = await session.get(
                url, headers=headers, allow_redirects=False, timeout=limit, trace_request_ctx=_Attempt()
            )
        except Exception as error:
            raise _translated(error, url, begun=False) from None
        try:
            yield _AiohttpResponse(response, url)
        finally:
            response.close()

    async def aclose(self) -> None:
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _open(self) -> aiohttp.ClientSession:
        await self.preload()
        async with self._opening:
            if self._closed:
                raise ProviderError("server", "The transport is closed.", retryable=False)
            if self._session is None:
                self._session = _new_session(self._trust_env, self._check)
            return self._session


class _AiohttpResponse:
    def __init__(self, response: aiohttp.ClientResponse, url: str) -> None:
        self._response = response
        self._url = url
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def read(self) -> bytes:
        try:
            return await self._response.read()
        except Exception as error:
            raise _translated(error, self._url, begun=True) from None

    def chunks(self) -> AsyncIterator[bytes]:
        return _Pieces(self._response, self._url)


class _Pieces:
    """An iterator and not a generator: one that is given up in the middle leaves nothing to be closed."""

    def __init__(self, response: aiohttp.ClientResponse, url: str) -> None:
        self._content = response.content
        self._url = url

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._content.readany()
        except Exception as error:
            raise _translated(error, self._url, begun=True) from None
        if not piece:
            raise StopAsyncIteration
        return piece


def _import_aiohttp() -> None:
    import aiohttp  # noqa: F401  # pyright: ignore[reportUnusedImport]  imported for its effect on sys.modules


class _Refused(OSError):
    """The address is one that this transport does not connect to."""


def _check_literal(url: str, check: AddressCheck) -> None:
    """The HTTP library asks its resolver about names only."""
    host = urlsplit(url).hostname or ""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return
    try:
        check(host, host)
    except OSError as error:
        raise ProviderError("invalid_request", str(error)) from None


def _checked_resolver(check: AddressCheck) -> aiohttp.ThreadedResolver:
    import aiohttp

    class Checked(aiohttp.ThreadedResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            found = await super().resolve(host, port, family)
            for one in found:
                try:
                    check(host, one["host"])
                except OSError as error:
                    raise _Refused(str(error)) from None
            return found

    return Checked()


def _new_session(trust_env: bool, check: AddressCheck | None) -> aiohttp.ClientSession:
    import aiohttp

    resolver = None if check is None else _checked_resolver(check)
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_mark_reused)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60, resolver=resolver),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=trust_env,
        trace_configs=[trace],
    )


class _Attempt:
    """One sending of a request; whether it went over a connection that had been used before."""

    reused = False


async def _mark_reused(_session: object, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.reused = True


async def _send(
    session: aiohttp.ClientSession, url: str, *, headers: Mapping[str, str], body: bytes, timeout_s: float
) -> aiohttp.ClientResponse:
    import aiohttp

    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    remaining_s = timeout_s
    may_repeat = True
    while True:
        attempt = _Attempt()
        try:
            return await session.post(
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=remaining_s),
                trace_request_ctx=attempt,
            )
        except Exception as error:
            remaining_s = deadline - clock()
            # aiohttp itself repeats only idempotent methods; a POST that met a stale connection comes back to us.
            if not (may_repeat and attempt.reused and _went_unanswered(error) and remaining_s > 0):
                raise _translated(error, url, begun=False) from None
            may_repeat = False


def _went_unanswered(error: Exception) -> bool:
    import aiohttp

    if isinstance(error, aiohttp.ServerDisconnectedError):
        # Bytes of an answer that broke off are handed over as a half-parsed message in place of the text.
        return isinstance(error.message, str)
    return isinstance(error, aiohttp.ClientOSError) and not isinstance(error, aiohttp.ClientConnectorError)


def _translated(error: Exception, url: str, *, begun: bool) -> ProviderError:
    """The error as a caller may see it: with the host, without path, query, headers or body."""
    import aiohttp

    host = urlsplit(url).hostname or "the model API"
    match error:
        case TimeoutError():
            return ProviderError("timeout", f"{host} did not answer in time.")
        case aiohttp.InvalidURL():
            return ProviderError("invalid_request", "The base URL of the provider is not a valid HTTP URL.")
        case aiohttp.ClientConnectorCertificateError():
            return ProviderError("server", f"The certificate of {host} is not trusted.", retryable=False)
        case aiohttp.ClientConnectorError(os_error=_Refused() as refused):
            return ProviderError("invalid_request", str(refused))
        case aiohttp.ClientConnectorError():
            return ProviderError("server", f"Could not connect to {host}.")
        case aiohttp.ClientError() | OSError():
            when = "in the middle of the answer" if begun else "before an answer came"
            return ProviderError("server", f"The connection to {host} broke {when}.")
        case _:
            return ProviderError("unknown", f"The request to {host} failed: {type(error).__name__}.")
