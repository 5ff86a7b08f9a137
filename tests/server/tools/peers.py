"""Those whom the server dials in these tests: a real MCP server in a process of its own, and small web servers."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from forked import python
from loopback import listening

from ..kit import Json

TEAM = {"X-Team": "red"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class McpFarm:
    """Starts and kills MCP servers; see `mcp_server.py`."""

    def __init__(self) -> None:
        self._process = python(str(Path(__file__).parent / "mcp_server.py"))
        self._complaints = threading.Thread(target=self._process.stderr.read)
        self._complaints.start()
        assert self._answer() == "ready"

    def order(self, text: str) -> str:
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        with self._process:
            self._process.stdin.close()
            self._complaints.join()

    def _answer(self) -> str:
        return self._process.stdout.readline().strip()


class McpProcess:
    """One MCP server; `restart` keeps the port and forgets every session."""

    def __init__(self, farm: McpFarm) -> None:
        self._farm = farm
        self._port, self._pid = 0, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/mcp"

    @property
    def seen_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/seen"

    def start(self) -> Self:
        port, pid = self._farm.order(f"start {self._port}").split()
        self._port, self._pid = int(port), int(pid)
        return self

    def stop(self) -> None:
        if self._pid:
            self._farm.order(f"stop {self._pid}")
            self._pid = 0

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


class Seen:
    """A request as a peer got it."""

    def __init__(self, request: web.Request, body: bytes) -> None:
        self.method = request.method
        self.path = request.raw_path
        self.headers = request.headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Peer:
    """A running web server; `requests` has everything it was asked."""

    def __init__(self, url: str, requests: list[Seen]) -> None:
        self.url = url
        self.requests = requests

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncGenerator[Peer]:
    """A web server on a free port that answers every path with `handler`."""
    requests: list[Seen] = []

    async def noted(request: web.Request) -> web.StreamResponse:
        requests.append(Seen(request, await request.read()))
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", noted)
    async with listening(app, shutdown_timeout=0.1) as url:
        yield Peer(url, requests)


async def missing(request: web.Request) -> web.Response:
    return web.Response(status=404, text="there is nothing here")


def answering(methods: Mapping[str, Callable[[web.Request, Json], Awaitable[Json]]]) -> Handler:
    """The least that an MCP server can be: plain JSON answers, no session."""

    async def answer(request: web.Request) -> web.Response:
        call: Json = await request.json() if request.method == "POST" else {}
        method: str = call.get("method", "")
        if method == "initialize":
            result: Json = {
                "protocolVersion": call["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "small", "version": "1"},
            }
        elif method in methods:
            result = await methods[method](request, call.get("params") or {})
        else:
            return web.Response(status=202 if call else 405)
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": result})

    return answer
