"""Real MCP servers, each in a process of its own, forked from this one so that only this one pays for the imports.

Reads orders from standard input: `start PORT` answers with port and process id, `stop PID` kills that process.

A server refuses requests without the header `x-team: red`; its `report` tool, and GET /seen, tell what it has seen.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class Answer(BaseModel):
    name: str


server = MCPServer("facts", log_level="CRITICAL")
cancelled: list[str] = []
methods: list[str] = []
running: list[str] = []


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool(name="get-weather", annotations=ToolAnnotations(idempotent_hint=True))
def get_weather(city: str) -> dict[str, str]:
    """The weather."""
    return {"city": city, "sky": "clear"}


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """A picture with a caption."""
    return ["one pixel", Image(data=PIXEL, format="png")]


@server.tool()
def broken() -> str:
    """Always fails."""
    raise ToolError("out of order")


@server.tool()
async def slow() -> str:
    """Takes until it is given up."""
    running.append("slow")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append("slow")
        raise
    return "never"


@server.tool()
async def ask(context: Context) -> str:
    """Asks a person for a name."""
    answer = await context.elicit("What is your name?", Answer)
    return f"the answer was {answer.action}"


@server.tool()
async def count(context: Context) -> str:
    """Counts, and says so."""
    await context.report_progress(1, 3, "one of three")
    return "counted"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def report() -> dict[str, Any]:
    """What the server has seen."""
    return seen()


def seen() -> dict[str, Any]:
    return {"pid": os.getpid(), "running": running, "cancelled": cancelled, "methods": sorted(set(methods))}


def guarded(app: App) -> App:
    async def call(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            if scope["path"] == "/seen":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": json.dumps(seen()).encode()})
                return
            if dict(scope["headers"]).get(b"x-team") != b"red":
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b"who are you?"})
                return
            methods.append(scope["method"])
        await app(scope, receive, send)

    return call


def serve(sock: socket.socket) -> None:
    app = guarded(server.streamable_http_app(streamable_http_path="/mcp"))
    uvicorn.Server(uvicorn.Config(app, log_level="critical", ws="none")).run(sockets=[sock])


def start(port: int) -> str:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()
    child = os.fork()
    if child == 0:
        serve(sock)
        os._exit(0)
    port = sock.getsockname()[1]
    sock.close()
    return f"{port} {child}"


def stop(child: int) -> str:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "stopped"


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        order, number = line.split()
        print(start(int(number)) if order == "start" else stop(int(number)), flush=True)


if __name__ == "__main__":
    main()
