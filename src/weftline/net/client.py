"""The one client for outgoing HTTP: opened at its first request, closed once."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from weftline.net.egress import AddressCheck
from weftline.net.errors import RequestFailed
from weftline.net.limits import TimeLimits
from weftline.net.proxies import Proxies

if TYPE_CHECKING:
    from weftline.net.response import HttpResponse
    from weftline.net.session import HttpSession


class HttpClient:
    """Sends requests over kept-alive connections. Belongs to one event loop.

    `check` judges each address before it is connected to. `proxies` are those of the environment unless given. `tls`
    says whose certificates to trust, instead of the system's authorities. Bodies over `max_body_bytes` fail.
    """

    def __init__(
        self,
        *,
        check: AddressCheck | None = None,
        proxies: Proxies | None = None,
        tls: ssl.SSLContext | None = None,
        max_body_bytes: int | None = None,
    ) -> None:
        self._check = check
        self._proxies = Proxies.from_environment() if proxies is None else proxies
        self._tls = tls
        self._max_body_bytes = max_body_bytes
        self._session: HttpSession | None = None
        self._closed = False

    async def preload(self) -> None:
        """Imports the HTTP library in a thread, so that the first request does not stall the event loop."""
        if "weftline.net.session" not in sys.modules:
            await asyncio.to_thread(import_module, "weftline.net.session")

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        limits: TimeLimits,
        resend: bool = False,
    ) -> HttpResponse:
        """See `HttpSession.send`. The caller closes the response."""
        session = self._session or await self._open()
        return await session.send(method, url, headers=headers, body=body, limits=limits, resend=resend)

    async def aclose(self) -> None:
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.aclose()

    async def _open(self) -> HttpSession:
        await self.preload()
        if self._closed:
            raise RequestFailed("closed", "The server is stopping.", sent=False)
        if self._session is None:
            from weftline.net.session import HttpSession

            self._session = HttpSession(
                check=self._check,
                proxies=self._proxies,
                tls=self._tls,
                max_body_bytes=self._max_body_bytes,
            )
        return self._session
