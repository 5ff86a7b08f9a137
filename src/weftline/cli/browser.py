"""Lets a person sign in with a browser, on this machine or elsewhere."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType
from typing import Self

import click

_DONE = b"Logged in. You can close this page and go back to the terminal.\n"
_WAIT_S = 600.0
_MAX_HEAD_BYTES = 16 * 1024


class Loopback:
    """Receives the redirect on a port of this machine."""

    def __init__(self, port: int) -> None:
        self._wanted_port = port
        self._server: asyncio.Server | None = None
        self._came_back: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._visited, "127.0.0.1", self._wanted_port, limit=_MAX_HEAD_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._came_back.cancel()

    @property
    def redirect_uri(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/callback"

    async def ask(self, url: str) -> None:
        if self._came_back.done():  # the server wants to know more
            self._came_back = asyncio.get_running_loop().create_future()
        click.echo(f"Open this address in a browser on this machine:\n{url}", err=True)

    async def answer(self) -> str:
        async with asyncio.timeout(_WAIT_S):
            return await self._came_back

    async def _visited(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            is_ours = method == "GET" and target.partition("?")[0] == "/callback"
            status, body = (b"200 OK", _DONE) if is_ours else (b"404 Not Found", b"There is nothing here.\n")
            writer.write(
                b"HTTP/1.1 %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
                % (status, len(body), body)
            )
            await writer.drain()
            if is_ours and not self._came_back.done():
                self._came_back.set_result(f"http://127.0.0.1{target}")
        except (ValueError, OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a scanner, or a browser that has closed its page
        finally:
            writer.close()


class PastedRedirect:
    """Asks the person to paste the address that the browser was redirected to but cannot open."""

    def __init__(self, port: int) -> None:
        self.redirect_uri = f"http://127.0.0.1:{port or 8765}/callback"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def ask(self, url: str) -> None:
        click.echo(f"Open this address in a browser:\n{url}\n", err=True)
        click.echo("Then paste the address of the page that it ends on, even if that page cannot be shown:", err=True)

    async def answer(self) -> str:
        return (await asyncio.to_thread(sys.stdin.readline)).strip()
