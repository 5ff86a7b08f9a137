"""The floor of fan-out: the same frames written straight to every connection, at the same pace.

    python -m bench.broadcast FILE PACE_MS

FILE holds the frames of one run. A GET attaches and gets the first frame; a POST starts the rest.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import cast

import uvloop

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
_LAST = b"0\r\n\r\n"


class Broadcast:
    def __init__(self, frames: list[bytes], *, pace_s: float) -> None:
        self.first, *self._rest = [b"%x\r\n%s\r\n" % (len(frame), frame) for frame in frames]
        self._pace_s = pace_s
        self.readers: list[asyncio.WriteTransport] = []

    def tick(self, position: int = 0) -> None:
        over = position == len(self._rest)
        data = _LAST if over else self._rest[position]
        for reader in self.readers:
            reader.write(data)
        if over:
            self.readers = []
        else:
            asyncio.get_running_loop().call_later(self._pace_s, self.tick, position + 1)


class _Reader(asyncio.Protocol):
    def __init__(self, broadcast: Broadcast) -> None:
        self._broadcast = broadcast
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if data.startswith(b"GET"):
            self._transport.write(_HEAD + self._broadcast.first)
            self._broadcast.readers.append(self._transport)
        elif data.startswith(b"POST"):
            self._transport.write(_OK)
            self._broadcast.tick()


async def serve(frames: list[bytes], *, pace_s: float) -> None:
    broadcast = Broadcast(frames, pace_s=pace_s)
    server = await asyncio.get_running_loop().create_server(lambda: _Reader(broadcast), "127.0.0.1", 0, backlog=2048)
    print(f"ready {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    stream = Path(sys.argv[1]).read_bytes()
    uvloop.run(serve([frame + b"\n\n" for frame in stream.split(b"\n\n") if frame], pace_s=float(sys.argv[2]) / 1000))
