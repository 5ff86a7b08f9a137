"""Bodies that are sent slowly or never to their end: how long they are waited for, and how much of them is held."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from uvicorn.server import ServerState

from weftline.errors import RateLimited, Unavailable
from weftline.server.connections import ConnectionLimits, Connections
from weftline.server.declared import Body, Declared
from weftline.server.exchange import Exchange
from weftline.server.http import Receive, Request, Scope, Send
from weftline.server.memory import LARGE_BYTES, LargeBodies
from weftline.server.protocol import HttpProtocol
from weftline.testing import ServerProcess
from weftline.trace_context import RequestInfo

from .conftest import new_key
from .kit import TIMEOUT_S, Api
from .scripts import SCRIPTS

LITTLE_ROOM = """
[server]
max_body_bytes_held = 500_000
max_body_bytes_held_per_workspace = 200_000
"""


def run_of(size: int) -> dict[str, str]:
    """A create with a body of about so many bytes."""
    return {"modelId": "scripted:hello", "prompt": "x" * (size - 100)}


def head_of(api: Api, length: int) -> bytes:
    return (
        f"POST {api.base}/agent-runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


@pytest.fixture(scope="module")
def little_room(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("little_room"), scripts=SCRIPTS, config=LITTLE_ROOM) as running:
        yield running


async def test_body_waits_for_room_without_delaying_other_workspaces(little_room: ServerProcess) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(TIMEOUT_S):
        mine = Api(http, little_room.url, "acme", await asyncio.to_thread(new_key, little_room))
        theirs = Api(http, little_room.url, "beta", await asyncio.to_thread(new_key, little_room, "beta"))
        first = Api(http, little_room.url, "gamma", await asyncio.to_thread(new_key, little_room, "gamma"))
        _, unfinished = await asyncio.open_connection("127.0.0.1", little_room.port)
        unfinished.write(head_of(mine, 190_000) + b" " * 180_000)
        await unfinished.drain()
        waiting = asyncio.create_task(mine.post("agent-runs", run_of(150_000)))
        for api in (first, theirs, first, theirs):
            assert (await api.post("agent-runs", run_of(190_000))).status == 202
        assert (await mine.post("agent-runs", run_of(20_000))).status == 202
        assert not waiting.done()
        unfinished.close()
        assert (await waiting).status == 202
        # All of it was given back.
        for _ in range(3):
            assert (await mine.post("agent-runs", run_of(190_000))).status == 202


ONE_AT_A_TIME = """
[server]
max_body_bytes_held = 26_000_000
max_body_bytes_held_per_workspace = 26_000_000
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux how much memory a process took")
async def test_many_requests_with_files_at_once_take_room_of_few(tmp_path: Path) -> None:
    document = base64.b64encode(b"%PDF-1.7\n" + bytes(9 * 1024 * 1024)).decode()
    attachments = [{"data": document}, {"data": document}]
    body = json.dumps({"modelId": "scripted:hello", "prompt": "see", "attachments": attachments}, indent=1).encode()
    with ServerProcess(tmp_path, scripts=SCRIPTS, config=ONE_AT_A_TIME) as running:
        keys = [(slug, await asyncio.to_thread(new_key, running, slug)) for slug in ("acme", "beta", "gamma")]
        before = peak_bytes(running)
        async with aiohttp.ClientSession() as http:
            callers = [Api(http, running.url, slug, key) for slug, key in keys for _ in range(2)]
            replies = await asyncio.gather(*[api.call("POST", "agent-runs", data=body) for api in callers])
        assert [reply.status for reply in replies] == [202] * 6
        # One of them takes four times its size while it is read; six at once would take 600 MB.
        assert peak_bytes(running) - before < 8 * len(body)


def peak_bytes(running: ServerProcess) -> int:
    status = Path(f"/proc/{running.pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


async def test_bodies_of_a_stranger_take_no_room(little_room: ServerProcess) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(TIMEOUT_S):
        mine = Api(http, little_room.url, "acme", await asyncio.to_thread(new_key, little_room))
        nobody = Api(http, little_room.url, "acme", "weft_nobody")
        reader, unfinished = await asyncio.open_connection("127.0.0.1", little_room.port)
        unfinished.write(head_of(nobody, 1_000_000) + b" " * 300_000)
        assert b" 401 " in await reader.readline()  # before the rest is there
        assert (await mine.post("agent-runs", run_of(190_000))).status == 202
        unfinished.close()


async def test_who_finds_no_room_is_told_whose_bodies_take_it() -> None:
    bodies = LargeBodies(max_bytes=100, max_bytes_per_workspace=30, wait_s=0)
    first = await bodies.hold("acme", 60)
    with pytest.raises(RateLimited) as own:
        await bodies.hold("acme", 1)
    assert own.value.code == "too_many_large_bodies" and own.value.details["retry_after_s"]
    second = await bodies.hold("beta", 30)
    with pytest.raises(Unavailable) as others:
        await bodies.hold("gamma", 20)
    assert others.value.details["retry_after_s"]
    first.free()
    (await bodies.hold("gamma", 20)).free()
    second.free()
    assert bodies.held == 0


@pytest.mark.parametrize("declared", [True, False])
async def test_body_reserves_its_declared_size_or_grows(declared: bool) -> None:
    bodies = LargeBodies()
    pieces, held = iter(range(100)), list[int]()
    headers = [(b"content-length", b"%d" % (100 * LARGE_BYTES))] if declared else []

    async def receive() -> dict[str, Any]:
        number = next(pieces)
        held.append(bodies.held)
        assert number * LARGE_BYTES <= bodies.held + LARGE_BYTES
        return {"type": "http.request", "body": b"x" * LARGE_BYTES, "more_body": number < 99}

    async def send(message: object) -> None: ...

    request = Request(
        {"method": "POST", "path": "/", "headers": headers}, receive, send, RequestInfo("req_1"), bodies=bodies
    )
    request.declared = Declared(body=Body(None, limit_bytes=100 * LARGE_BYTES))
    assert len(await request.body()) == 100 * LARGE_BYTES
    assert (held[10] == held[50]) is declared
    assert bodies.held == 99 * LARGE_BYTES
    request.body_is_read()
    assert bodies.held == 0


@asynccontextmanager
async def listening(limits: ConnectionLimits, *, reads: asyncio.Event) -> AsyncGenerator[int]:
    """The port of a server that takes bodies, but only once `reads` is set."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reads.wait()
        request = Request(scope, receive, send, RequestInfo("req_1"))
        request.declared = Declared(body=Body(None))
        await request.body()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    state, connections = ServerState(), Connections(limits)

    def protocol() -> HttpProtocol:
        connections.enter("")
        return HttpProtocol(app, state, connections)

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        connections.abort()


async def test_body_that_pauses_too_long_is_refused() -> None:
    reads = asyncio.Event()
    reads.set()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    async with asyncio.timeout(TIMEOUT_S):
        async with listening(ConnectionLimits(body_pause_s=0.01), reads=reads) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + b"x")
            assert b" 408 " in await reader.readline()
            writer.close()
        async with listening(ConnectionLimits(body_pause_s=300, body_timeout_s=0.1), reads=reads) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head)
            answer = asyncio.create_task(reader.readline())
            while not answer.done():
                writer.write(b"x")
                await asyncio.wait([answer], timeout=0.005)
            assert b" 408 " in await answer
            writer.close()


async def test_unread_body_is_not_held_against_its_sender() -> None:
    reads = asyncio.Event()
    async with asyncio.timeout(TIMEOUT_S), listening(ConnectionLimits(body_pause_s=0.01), reads=reads) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n" + b"x" * 8_000_000)
        answer = asyncio.create_task(reader.readline())
        await asyncio.wait([answer], timeout=0.1)
        assert not answer.done()
        reads.set()
        assert b" 200 " in await answer
        writer.close()


async def test_requests_on_a_busy_connection_are_released_singly() -> None:
    reads = asyncio.Event()
    reads.set()
    request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
    async with asyncio.timeout(TIMEOUT_S), listening(ConnectionLimits(), reads=reads) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request * 4)
        for _ in range(200):
            writer.write(request)  # before the response to an earlier one is read
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        assert sum(isinstance(one, Exchange) for one in gc.get_objects()) < 20
        writer.close()
