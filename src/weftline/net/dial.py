"""Outgoing HTTP for tools and webhooks, to untrusted addresses."""

from __future__ import annotations

import asyncio
import copy
import ssl
from collections.abc import AsyncGenerator, Hashable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from msgspec.structs import replace

from weftline.framing import without_framing
from weftline.net.address import InvalidAddress, parse
from weftline.net.client import HttpClient
from weftline.net.egress import Egress, is_loopback
from weftline.net.errors import RequestFailed, TimeLimits
from weftline.net.proxies import Proxies
from weftline.trace_context import call_traceparent
from weftline.work.turns import FairSemaphore

if TYPE_CHECKING:
    from weftline.net.response import HttpResponse


MAX_AT_ONCE = 64
WAIT_S = 20.0
"""How long a request may wait for its turn."""


class Shares:
    """Shares of concurrent requests. Those beyond `max_at_once` wait, the oldest first."""

    def __init__(self, *, max_at_once: int = MAX_AT_ONCE) -> None:
        self._max_at_once = max_at_once
        self._places = FairSemaphore(per_owner=max_at_once)

    @asynccontextmanager
    async def turn(self, owner: Hashable, *, timeout_s: float | None) -> AsyncGenerator[float | None]:
        """Waits for a turn, at most half of `timeout_s`, and yields the time that is left.

        Raises `RequestFailed` if it does not come.
        """
        left_s = timeout_s
        if self._places.is_full(owner):
            left_s = await self._wait(owner, timeout_s)
        else:
            await self._places.acquire(owner)
        try:
            yield left_s
        finally:
            self._places.release(owner)

    async def _wait(self, owner: Hashable, timeout_s: float | None) -> float | None:
        now = asyncio.get_running_loop().time
        began_s = now()
        wait_s = WAIT_S if timeout_s is None else min(WAIT_S, timeout_s / 2)
        try:
            async with asyncio.timeout(wait_s):
                await self._places.acquire(owner)
        except TimeoutError:
            raise RequestFailed(
                "busy",
                f"The request was not sent: it waited {wait_s:g} s for a free connection, and this workspace has"
                f" {self._max_at_once} requests under way.",
                sent=False,
            ) from None
        return None if timeout_s is None else max(timeout_s / 2, timeout_s - (now() - began_s))


_REDIRECTS = (301, 302, 303, 307, 308)


class Dialer:
    """Sends requests to addresses that `egress` allows. Keeps no cookies. Belongs to one event loop; see `HttpClient`.

    A request that may have taken effect is never repeated. Each workspace has a share of the concurrent requests; those
    not sent through `of` count as the server's own.
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
        # Only a caller may name this machine; a foreign page must not redirect us here.
        outside = replace(egress, reach="public") if egress.reach == "loopback" else egress
        self._client, self._outside = (
            HttpClient(check=policy.check, proxies=proxies, tls=tls) for policy in (egress, outside)
        )
        self._shares = Shares()
        self._owner: Hashable = None

    def of(self, workspace: Hashable) -> Dialer:
        """Returns a copy of this dialer for the requests of a workspace."""
        own = copy.copy(self)
        own._owner = workspace
        return own

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
        listens: bool = False,
    ) -> AsyncGenerator[HttpResponse]:
        """Sends one request and follows up to `redirects` redirects, each under the same policy.

        Headers and body are sent only to the original origin: another one gets a bare GET or HEAD, and any other method
        ends there. `timeout_s` limits each request, including its body and the wait for a slot; None is for endless
        streams. A request that only `listens` does not take a slot. Raises `RequestFailed`.
        """
        async with AsyncExitStack() as stack:
            if not listens:
                timeout_s = await stack.enter_async_context(self._shares.turn(self._owner, timeout_s=timeout_s))
            limits = TimeLimits(connect_s=self._connect_s, first_byte_s=None, idle_s=None, total_s=timeout_s)
            sent = with_traceparent(without_framing(headers or {}))
            response = await self._follow(method, url, sent, body, limits, redirects)
            stack.callback(response.close)
            yield response

    async def aclose(self) -> None:
        await self._client.aclose()
        await self._outside.aclose()

    async def _follow(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None, limits: TimeLimits, redirects: int
    ) -> HttpResponse:
        client, first = self._client, True
        while True:
            try:
                response = await client.send(method, url, headers=headers, body=body, limits=limits)
            except RequestFailed as error:
                # A failure while following a redirect does not undo the request that was answered with it.
                error.sent = error.sent or not first
                raise
            first = False
            location = response.headers.get("location")
            if redirects <= 0 or response.status not in _REDIRECTS or not location:
                return response
            redirects -= 1
            response.close()
            try:
                here, there = parse(url), parse(urljoin(url, location))
            except (InvalidAddress, ValueError):
                raise RequestFailed("invalid", "The redirect does not point to a valid address.", sent=True) from None
            if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                method, body = "GET", None
            if there.origin != here.origin:
                if method not in ("GET", "HEAD"):
                    raise RequestFailed(
                        "redirected",
                        f"{here.host} redirects to {there.host}, where this request must not be sent.",
                        sent=True,
                    )
                headers, body = {}, None
                if not is_loopback(here.host):
                    client = self._outside
            url = there.url


def with_traceparent(headers: dict[str, str]) -> dict[str, str]:
    """Returns the headers with the span of the current call, if there is one and they do not set their own."""
    traceparent = call_traceparent.get()
    if traceparent is None or any(name.lower() == "traceparent" for name in headers):
        return headers
    return {**headers, "traceparent": traceparent}
