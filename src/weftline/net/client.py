"""The only client for outgoing HTTP: opened on the first request of each event loop, closed once."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncGenerator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from weftline.net.egress import AddressCheck
from weftline.net.errors import RequestFailed, TimeLimits
from weftline.net.proxies import Proxies

if TYPE_CHECKING:
    from weftline.net.response import HttpResponse
    from weftline.net.session import HttpSession


class HttpClient:
    """Sends requests over kept-alive connections, separately for each event loop.

    The connections of a loop are closed with the client, or with the loop if that ends first, as with `asyncio.run`.
    `check` is called for each address before connecting. `proxies` are the environment's by default. `tls` sets which
    certificates to trust instead of the system's. Larger bodies than `max_body_bytes` fail.
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
        self._sessions: dict[asyncio.AbstractEventLoop, tuple[HttpSession, AsyncGenerator[None]]] = {}
        """By loop, with the generator that closes it."""
        self._closed = False

    async def preload(self) -> None:
        """Imports the HTTP library in a thread, so that the first request does not block the event loop."""
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
        held = self._sessions.get(asyncio.get_running_loop())
        session = await self._open() if held is None else held[0]
        return await session.send(method, url, headers=headers, body=body, limits=limits, resend=resend)

    async def aclose(self) -> None:
        self._closed = True
        here = asyncio.get_running_loop()
        sessions, self._sessions = self._sessions, {}
        for loop, (session, closing) in list(sessions.items()):
            if loop is here:
                await _closed(session, closing)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_close_on, loop, session, closing)

    async def _open(self) -> HttpSession:
        await self.preload()
        if self._closed:
            raise RequestFailed("closed", "The server is stopping.", sent=False)
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            from weftline.net.session import HttpSession

            for gone in [one for one in self._sessions if one.is_closed()]:
                del self._sessions[gone]
            session = HttpSession(
                check=self._check,
                proxies=self._proxies,
                tls=self._tls,
                max_body_bytes=self._max_body_bytes,
            )
            # Loops close their async generators before they end, which is the only notice in time.
            closing = _closing(session, self._sessions, loop)
            self._sessions[loop] = session, closing
            await anext(closing)
        return self._sessions[loop][0]


async def _closing(
    session: HttpSession, sessions: dict[asyncio.AbstractEventLoop, Any], loop: asyncio.AbstractEventLoop
) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        sessions.pop(loop, None)
        await session.aclose()


def _close_on(loop: asyncio.AbstractEventLoop, session: HttpSession, closing: AsyncGenerator[None]) -> None:
    task = loop.create_task(_closed(session, closing))
    _ending.add(task)
    task.add_done_callback(_ending.discard)


async def _closed(session: HttpSession, closing: AsyncGenerator[None]) -> None:
    """Closes the session, and then the generator, which has nothing left to do.

    An ending loop closes the generator too, perhaps at this moment: if it were still waiting for the session, that
    would fail because the generator is already running.
    """
    await session.aclose()
    if not getattr(closing, "ag_running", False):
        await closing.aclose()


_ending: set[asyncio.Task[None]] = set()
"""Keeps references to the tasks, as a loop does not."""
