"""Outgoing HTTP of tools and webhooks, to addresses that somebody else has named."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from weftline.net.client import HttpClient
from weftline.net.egress import Egress
from weftline.net.errors import RequestFailed
from weftline.net.limits import TimeLimits
from weftline.net.proxies import Proxies

if TYPE_CHECKING:
    from weftline.net.response import HttpResponse

_REDIRECTS = (301, 302, 303, 307, 308)


class Dialer:
    """Carries requests to where `egress` allows. Keeps no cookies. Belongs to one event loop; see `HttpClient`.

    A request that may have been carried out is never sent again.
    """

    def __init__(
        self,
        egress: Egress,
        *,
        connect_s: float = 5.0,
        proxies: Proxies | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.egress = egress
        self._connect_s = connect_s
        self._client = HttpClient(check=egress.check, proxies=proxies, tls=tls, max_connections=256, max_per_host=64)

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
    ) -> AsyncGenerator[HttpResponse]:
        """Sends one request and follows up to `redirects` redirects, each under the same policy.

        Headers go along only as long as the origin stays the same. `timeout_s` bounds each request, its body included;
        None is for streams that never end. Raises `RequestFailed`.
        """
        limits = TimeLimits(connect_s=self._connect_s, first_byte_s=None, idle_s=None, total_s=timeout_s)
        response = await self._follow(method, url, dict(headers or {}), body, limits, redirects)
        try:
            yield response
        finally:
            response.close()

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _follow(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None, limits: TimeLimits, redirects: int
    ) -> HttpResponse:
        first = True
        while True:
            try:
                response = await self._client.send(method, url, headers=headers, body=body, limits=limits)
            except RequestFailed as error:
                # What happens on the way of a redirect does not undo the request that was answered with it.
                error.sent = error.sent or not first
                raise
            first = False
            location = response.headers.get("location")
            if redirects <= 0 or response.status not in _REDIRECTS or not location:
                return response
            redirects -= 1
            response.close()
            try:
                target = urljoin(url, location)
                same = _origin(target) == _origin(url)
            except ValueError:
                raise RequestFailed("invalid", "The redirect does not lead to a valid address.", sent=True) from None
            if not same:
                headers = {}
            if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                method, body = "GET", None
            url = target


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
