"""The floor of the HTTP rows: the same bytes as the real server's, from a bare ASGI app that does no work.

    python -m bench.canned FOLDER [PACE_MS]

FOLDER holds `created` (the answer to a POST) and `stream` (the events of one run). With PACE_MS each event is sent by
itself, and the deltas that far apart.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, TypeAlias

import uvicorn
import uvloop

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_DELTA = b"event: assistant_delta\n"
_OK = b'{"ok":true}'


class Canned:
    def __init__(self, created: bytes, stream: bytes, *, pace_s: float) -> None:
        self._created = created
        self._stream = stream
        self._events = [event + b"\n\n" for event in stream.split(b"\n\n") if event]
        self._pace_s = pace_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await receive()
            answers_call = scope["path"].endswith("/tool-results")
            status, body = (200, _OK) if answers_call else (202, self._created)
            headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
        if self._pace_s:
            loop = asyncio.get_running_loop()
            due = loop.time()
            for event in self._events:
                if _DELTA in event:
                    await asyncio.sleep(due - loop.time())
                    due += self._pace_s
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            return
        await send({"type": "http.response.body", "body": self._stream, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def serve(folder: Path, *, pace_s: float) -> None:
    app = Canned((folder / "created").read_bytes(), (folder / "stream").read_bytes(), pace_s=pace_s)
    sock = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(
        app,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    print(f"ready {sock.getsockname()[1]}", flush=True)
    await uvicorn.Server(config).serve(sockets=[sock])


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), pace_s=float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.0))
