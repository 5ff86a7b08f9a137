"""Clients that are gone when their answer is about to be written."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvloop
from uvicorn.server import ServerState

from weftline.server.connections import ConnectionLimits, Connections
from weftline.server.http import Receive, Scope, Send
from weftline.server.protocol import HttpProtocol


def test_answer_to_client_that_has_just_gone_is_dropped_quietly() -> None:
    """In uvloop, whose transports raise when they are written to after their end."""
    mishaps: list[dict[str, Any]] = []

    async def answer_and_lose() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: mishaps.append(context))

        async def app(scope: Scope, receive: Receive, send: Send) -> None: ...

        ours, theirs = socket.socketpair()
        with theirs:
            protocol = HttpProtocol(app, ServerState(), Connections(ConnectionLimits()))
            transport, _ = await loop.create_connection(lambda: protocol, sock=ours)
            corked = protocol.transport
            transport.abort()
            for _ in range(10):  # in the loop's own time: the transport's end, then what is told of it, then the write
                await asyncio.sleep(0)
                corked.write(b"too late")
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(answer_and_lose())
    assert mishaps == []
