"""Outgoing HTTP for model families: posts a body and reads the response, whole or in pieces."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from weftline.net.client import HttpClient
from weftline.net.egress import AddressCheck
from weftline.net.errors import TimeLimits
from weftline.net.proxies import Proxies

if TYPE_CHECKING:
    from weftline.net.response import HttpResponse

MAX_BODY_BYTES = 64 * 1024 * 1024
"""The largest response of a model, decompressed. It has to fit images, which are base64 in JSON."""


class Response(Protocol):
    """A response whose head has arrived. The body can be read once, with `read` or `chunks`."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Case-insensitive."""
        ...

    async def read(self) -> bytes:
        """Returns the whole body."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Returns the body in pieces, each what the socket had at the time."""
        ...


class Transport(Protocol):
    """Sends requests to model APIs, on the event loop of the caller.

    Leaving the context before the body was read to its end closes the connection. Connection failures, before or during
    the response, are raised as `RequestFailed`; an HTTP error is a response like any other.
    """

    def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes, limits: TimeLimits
    ) -> AbstractAsyncContextManager[Response]: ...

    def get(
        self, url: str, *, headers: Mapping[str, str], limits: TimeLimits
    ) -> AbstractAsyncContextManager[Response]: ...

    async def aclose(self) -> None: ...


class AiohttpTransport:
    """The transport over aiohttp, which is imported at first use or by `preload`. See `HttpClient`.

    A request on a kept-alive connection that the server had already closed is sent again, provided that not a single
    byte of a response had arrived; the caller retries any other failure.
    """

    def __init__(
        self,
        *,
        check: AddressCheck | None = None,
        proxies: Proxies | None = None,
        tls: ssl.SSLContext | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._client = HttpClient(check=check, proxies=proxies, tls=tls, max_body_bytes=max_body_bytes)

    async def preload(self) -> None:
        """Imports the HTTP library in a thread, so that the first call does not block the event loop."""
        await self._client.preload()

    def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes, limits: TimeLimits
    ) -> AbstractAsyncContextManager[Response]:
        return _Call(self._client, "POST", url, headers, body, limits)

    def get(self, url: str, *, headers: Mapping[str, str], limits: TimeLimits) -> AbstractAsyncContextManager[Response]:
        return _Call(self._client, "GET", url, headers, None, limits)

    async def aclose(self) -> None:
        await self._client.aclose()


class _Call:
    """A class rather than a generator, for speed: every model call goes through here."""

    __slots__ = ("_body", "_client", "_headers", "_limits", "_method", "_response", "_url")

    def __init__(
        self,
        client: HttpClient,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        limits: TimeLimits,
    ) -> None:
        self._client = client
        self._method = method
        self._url = url
        self._headers = headers
        self._body = body
        self._limits = limits
        self._response: HttpResponse | None = None

    async def __aenter__(self) -> Response:
        self._response = await self._client.send(
            self._method, self._url, headers=self._headers, body=self._body, limits=self._limits, resend=True
        )
        return self._response

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._response is not None:
            self._response.close()
