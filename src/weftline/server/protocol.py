"""Uvicorn's HTTP protocol with one write per turn of the loop.

An answer's head and body, and all frames that a stream gets at once, are separate writes to uvicorn and would each be
a system call. Here they are put together and written when the turn of the loop is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from weftline.server.http import ON_GONE


class _Corked:
    """A transport whose writes wait for the end of this turn of the loop."""

    __slots__ = ("_loop", "_pending", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pending: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, []
            if self._transport.is_closing():
                return  # the client has gone in this turn of the loop
            self._transport.write(pending[0] if len(pending) == 1 else b"".join(pending))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class CorkedHttpProtocol(HttpToolsProtocol):
    """`scope["weftline.on_gone"]` is a list of callbacks for when the client goes away before its answer has ended.

    ASGI's own way is a task that waits on `receive`, one for each stream that is open.
    """

    _on_gone: list[Callable[[], None]]

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._on_gone = []
        self.scope[ON_GONE] = self._on_gone  # pyright: ignore[reportGeneralTypeIssues]  # beyond the ASGI keys

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for call in getattr(self, "_on_gone", ()):
            call()

    def connection_made(self, transport: asyncio.Transport) -> None:
        corked: Any = _Corked(transport, self.loop)
        super().connection_made(corked)
