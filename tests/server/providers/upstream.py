"""A loopback server that stands in for the model APIs: answers what it was told, keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

from aiohttp import web

from loopback import listening

SSE = "text/event-stream"
JSON = "application/json"


class Reply(NamedTuple):
    """One answer. `then` is what happens after `body`: the end, a broken connection, or silence."""

    body: bytes
    status: int = 200
    kind: str = SSE
    headers: Mapping[str, str] = {}
    then: Literal["end", "cut", "silence"] = "end"
    pieces: int = 1
    """In how many pieces the body is sent, each after the other has left."""


class Asked(NamedTuple):
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    raw: bytes
    at: float
    """The loop's time."""
    query: Mapping[str, str] = {}

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Upstream:
    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.silent = asyncio.Event()
        """An answer has come to its silence."""
        self.all_let_go = asyncio.Event()
        """No silent answer is open any more."""
        self.let_go = asyncio.Event()
        """The server has closed the connection of a silent answer."""
        self._replies: list[Reply] = []
        self._silences = 0

    def answers(self, *replies: Reply | bytes) -> None:
        self._replies += [reply if isinstance(reply, Reply) else Reply(reply) for reply in replies]

    @property
    def spent(self) -> bool:
        return not self._replies

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.asked.append(
            Asked(request.path, dict(request.headers), raw, asyncio.get_running_loop().time(), dict(request.query))
        )
        if not self._replies:
            return web.json_response(
                {"error": {"type": "invalid_request_error", "message": "no answer left"}}, status=400
            )
        reply = self._replies.pop(0)
        response = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.kind, **reply.headers})
        await response.prepare(request)
        size = max(1, -(-len(reply.body) // reply.pieces))
        for start in range(0, len(reply.body), size):
            await response.write(reply.body[start : start + size])
            await asyncio.sleep(0)
        if reply.then == "cut":
            assert request.transport is not None
            request.transport.abort()
        elif reply.then == "silence":
            self.silent.set()
            self.all_let_go.clear()
            self._silences += 1
            try:
                await asyncio.Event().wait()
            finally:
                self._silences -= 1
                self.let_go.set()
                if not self._silences:
                    self.all_let_go.set()
        return response


@asynccontextmanager
async def serving() -> AsyncGenerator[Upstream]:
    upstream = Upstream()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{path:.*}", upstream.handle)
    async with listening(app, handler_cancellation=True, shutdown_timeout=1.0) as upstream.url:
        yield upstream
