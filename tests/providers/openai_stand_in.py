"""A loopback server that stands in for a model API, and short ways to ask a provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from loopback import listening
from weftline.messages import Message, Text, User
from weftline.providers.assemble import Assembler, collect
from weftline.providers.base import Chunk, ModelRequest, Provider, ToolSpec
from weftline.testing.recordings import Exchange, RecordedTransport, replay

SSE = "text/event-stream"
JSON = "application/json"


def events(*data: object) -> bytes:
    """A stream of these JSON documents; bytes are taken as they are."""
    return b"".join(b"data: " + (one if isinstance(one, bytes) else msgspec.json.encode(one)) + b"\n\n" for one in data)


def answering(body: bytes, *, status: int = 200, kind: str = SSE, broken: bool = False) -> RecordedTransport:
    return RecordedTransport(replay((status, kind, body)), broken=broken)


def spec(name: str = "look", parameters: str = '{"type":"object","properties":{}}', description: str = "") -> ToolSpec:
    return ToolSpec(name, description, msgspec.Raw(parameters.encode()))


def ask(*messages: Message, model: str = "gpt-4o", **settings: Any) -> ModelRequest:
    return ModelRequest(model, list(messages) or [User((Text("hi"),))], **settings)


async def answer(provider: Provider, request: ModelRequest | None = None) -> Assembler:
    return await collect(provider, request or ask())


async def chunks_of(provider: Provider, request: ModelRequest | None = None) -> list[Chunk]:
    return [chunk async for chunks in provider.stream(request or ask()) for chunk in chunks]


async def sent_by(build: Callable[[RecordedTransport], Provider], answer: bytes, request: ModelRequest) -> Any:
    """The body that the provider sends for `request`, decoded."""
    transport = answering(answer)
    await collect(build(transport), request)
    return msgspec.json.decode(transport.sent[0].body)


class StandIn:
    """Answers the exchanges in order; with none left it takes the request and stays silent."""

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        self.url = ""
        self.bodies: list[bytes] = []
        self.peers: set[object] = set()
        """The connections that requests came over."""
        self.reached = asyncio.Event()
        self.let_go = asyncio.Event()
        self._left = list(exchanges)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.peers.add(request.transport and request.transport.get_extra_info("peername"))
        if not self._left:
            self.reached.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.let_go.set()
        next_one = self._left.pop(0)
        kept = ("content-type", "retry-after")
        headers = {name: value for name, value in next_one.headers.items() if name in kept}
        return web.Response(status=next_one.status, headers=headers, body=next_one.body)


@asynccontextmanager
async def serving(*exchanges: Exchange) -> AsyncGenerator[StandIn]:
    stand_in = StandIn(exchanges)
    app = web.Application()
    app.router.add_post("/{path:.*}", stand_in.handle)
    async with listening(app, handler_cancellation=True) as url:
        stand_in.url = f"{url}/v1"
        yield stand_in
