"""Our HTTP/1.1 against uvicorn's httptools protocol with limits on top: CPU, memory, and hostile clients.

    .venv/bin/python -m bench.http_protocols

Each serves the same small ASGI application in a process of its own. See docs/decisions/0011-http-of-our-own.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from weftline.server.connections import ConnectionLimits, Connections
from weftline.server.protocol import HttpProtocol

NAMES = ("ours", "uvicorn")
REQUESTS, EVENTS, STREAMS, ROUNDS = 5_000, 20_000, 1_000, 3
HEAD_S = 1.0
MAX_HEAD_BYTES = 64 * 1024
EVENT = b'id: 12\nevent: assistant_delta\ndata: {"seq":12,"type":"assistant_delta","text":"Hello there"}\n\n'
OK = b'{"status":"ok","items":[]}'


async def app(scope: Any, receive: Any, send: Any) -> None:
    path = scope["path"]
    if path == "/stats":
        body = json.dumps({"cpu_s": time.process_time(), "bytes": _resident()}).encode()
        await _answer(send, 200, body)
    elif path == "/early":
        await _answer(send, 413, OK)
    elif path.startswith(("/events", "/open")):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for number in range(EVENTS if path == "/events" else 1):
            await send({"type": "http.response.body", "body": EVENT, "more_body": True})
            if number % 4 == 3:  # four events a flush
                await asyncio.sleep(0)
        if path == "/open":
            await receive()
            await receive()
        await send({"type": "http.response.body", "body": b""})
    elif path == "/large":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1024):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    else:
        await _answer(send, 200, OK)


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _answer(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Limited(HttpToolsProtocol):
    """uvicorn's protocol with the limits that can be put on top: time and bytes for a head, and a slow reader."""

    _timer: asyncio.TimerHandle | None = None
    _head = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def _wait(self) -> None:
        self._head = 0
        self._timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            self._head += len(data)
            if self._head > MAX_HEAD_BYTES:
                self.transport.abort()
                return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self._timer is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)


async def serve(name: str) -> None:
    loop, state = asyncio.get_running_loop(), ServerState()
    limits = ConnectionLimits(head_timeout_s=HEAD_S, max_connections_per_address=0, stall_timeout_s=5.0)
    connections = Connections(limits)
    config = uvicorn.Config(app, http="httptools", log_level="error", access_log=False, timeout_keep_alive=120)
    config.load()

    def ours() -> asyncio.Protocol:
        connections.enter("")
        return HttpProtocol(app, state, connections)

    def theirs() -> asyncio.Protocol:
        return Limited(config, state, {})

    server = await loop.create_server(ours if name == "ours" else theirs, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    while True:
        # As uvicorn does it, whose protocol reads the date from its server.
        state.default_headers = [(b"date", b"Thu, 01 Jan 2026 00:00:00 GMT"), (b"server", b"x")]
        await asyncio.sleep(1)


class Subject:
    def __init__(self, name: str) -> None:
        program = [sys.executable, "-m", "bench.http_protocols", name]
        self._process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)

    async def stats(self) -> dict[str, float]:
        return json.loads(await self.get("/stats"))

    async def get(self, path: str) -> bytes:
        reader, writer = await self.connect()
        writer.write(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
        data = await reader.read()
        while more := await reader.read():
            data += more
        writer.close()
        return data.partition(b"\r\n\r\n")[2]


async def cpu(subject: Subject) -> tuple[float, float]:
    """Microseconds of the server per request (keep-alive) and per event."""
    before = (await subject.stats())["cpu_s"]

    async def ask() -> None:
        reader, writer = await subject.connect()
        for _ in range(REQUESTS // 8):
            writer.write(b"GET /ok HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer abc\r\nAccept: */*\r\n\r\n")
            await reader.readuntil(OK)
        writer.close()

    await asyncio.gather(*(ask() for _ in range(8)))
    between = (await subject.stats())["cpu_s"]
    await subject.get("/events")
    after = (await subject.stats())["cpu_s"]
    return (between - before) / REQUESTS * 1e6, (after - between) / EVENTS * 1e6


async def memory(subject: Subject) -> float:
    """Bytes of the server per open stream."""
    before = (await subject.stats())["bytes"]
    streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    for _ in range(STREAMS):
        reader, writer = await subject.connect()
        writer.write(b"GET /open HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n")
        await reader.readuntil(EVENT[-20:])
        streams.append((reader, writer))
    held = (await subject.stats())["bytes"] - before
    for _, writer in streams:
        writer.close()
    return held / STREAMS


async def attacks(subject: Subject) -> dict[str, str]:
    """What becomes of clients that send nothing, too much, or do not read."""
    found: dict[str, str] = {}
    found["idle stranger"] = await _fate(subject, b"")
    found["slow head"] = await _fate(subject, b"GET / HTTP/1.1\r\nX-A: ", drip=b"a")
    found["head of 1 MB"] = await _fate(subject, b"GET / HTTP/1.1\r\nX-A: " + b"a" * (1 << 20))
    found["15,000 headers"] = await _fate(subject, b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 15_000 + b"\r\n")
    found["1,000 pipelined"] = await _fate(subject, b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
    found["slow body"] = await _fate(
        subject, b"POST /ok2 HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n", drip=b"a"
    )
    early = b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 8388608\r\n\r\n" + b"a" * (8 << 20)
    found["early answer"] = await _fate(subject, early)
    found["slow reader"] = await _slow_reader(subject)
    return found


async def _fate(subject: Subject, data: bytes, *, drip: bytes = b"") -> str:
    began = time.monotonic()
    reader, writer = await subject.connect()
    got = bytearray()

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        while drip:
            await asyncio.sleep(0.2)
            writer.write(drip)
            await writer.drain()

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(8):
            while more := await reader.read(65536):
                got += more
        how = "closed"
    except TimeoutError:
        how = "still open"
    except OSError:
        how = "reset"
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    writer.transport.abort()
    answers = got.count(b"HTTP/1.1 ")
    status = bytes(got[9:12]).decode() if got else "no answer"
    many = f" ×{answers}" if answers > 1 else ""
    return f"{status}{many}, {how} after {time.monotonic() - began:.0f} s"


async def _slow_reader(subject: Subject) -> str:
    before = (await subject.stats())["bytes"]
    with socket.create_connection(("127.0.0.1", subject.port)) as one:
        one.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(8)
        held = (await subject.stats())["bytes"] - before
        one.settimeout(5)
        size = 0
        try:
            while more := await asyncio.to_thread(one.recv, 1 << 20):
                size += len(more)
        except OSError:
            pass
    return f"{max(0, held) / 1e6:.1f} MB held; {'ended' if size < 60_000_000 else 'never ended'} after 8 s"


async def measure() -> None:
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
    held: dict[str, float] = {}
    fates: dict[str, dict[str, str]] = {}
    for number in range(ROUNDS):
        for name in NAMES:
            subject = Subject(name)
            try:
                await cpu(subject)  # to warm up
                rows[name].append(await cpu(subject))
                if number == 0:
                    held[name] = await memory(subject)
            finally:
                subject.stop()
    for name in NAMES:
        subject = Subject(name)
        try:
            fates[name] = await attacks(subject)
        finally:
            subject.stop()
    for name in NAMES:
        request, event = (min(values) for values in zip(*rows[name], strict=True))
        print(f"{name:8} {request:6.1f} µs/request {event:6.2f} µs/event {held[name] / 1000:6.1f} kB/open stream")
    for attack in fates["ours"]:
        print(f"{attack:16} ours: {fates['ours'][attack]:40} uvicorn: {fates['uvicorn'][attack]}")


if __name__ == "__main__":
    uvloop_run = __import__("uvloop").run
    uvloop_run(serve(sys.argv[1]) if len(sys.argv) > 1 else measure())
