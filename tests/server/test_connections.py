"""What a stranger can hold: connections, heads, bodies that never end, answers that are never read, descriptors."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import Generator
from contextlib import suppress
from typing import NamedTuple

import aiohttp
import pytest

from weftline.server.connections import ConnectionLimits, Connections, network_of
from weftline.testing import ServerProcess

from .conftest import new_key
from .kit import TIMEOUT_S, Api, logged
from .scripts import SCRIPTS

STRICT = """
[server]
max_head_bytes = 4096
head_timeout_s = 0.3
body_timeout_s = 0.3
keep_alive_s = 0.3
stall_timeout_s = 0.3
cors_origins = ["https://app.example"]
"""
HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


class Got(NamedTuple):
    """All that came on a connection until the server closed it."""

    status: int
    head: str
    body: bytes

    @property
    def code(self) -> str:
        return json.loads(self.body)["code"]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("strict"), scripts=SCRIPTS, config=STRICT) as running:
        yield running


async def connect(server: ServerProcess) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def exchange(server: ServerProcess, data: bytes, *, more: bytes = b"") -> Got:
    """Sends `data`, then `more` again and again until the server does not take it, and reads to the end."""
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await connect(server)
        try:
            reading = asyncio.create_task(received(reader))
            writer.write(data)
            with suppress(ConnectionError):
                while more and not reading.done():
                    writer.write(more)
                    await writer.drain()
                    await asyncio.sleep(0)
            return await reading
        finally:
            writer.close()


async def received(reader: asyncio.StreamReader) -> Got:
    data = b""
    with suppress(ConnectionError):
        while piece := await reader.read(65536):
            data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    return Got(int(head[9:12]) if head else 0, head.decode().lower(), body)


async def healthy(server: ServerProcess) -> None:
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/healthz") as reply:
        assert reply.status == 200


@pytest.mark.parametrize(
    ("data", "more"),
    [
        (HEAD, b"X-Filler: " + b"x" * 500 + b"\r\n"),
        (HEAD + b"X-Endless: ", b"x" * 1000),
        (b"GET /", b"a" * 1000),
        (HEAD + b"X-Filler: " + b"x" * 200_000 + b"\r\n\r\n", b""),
        (b"", b"\r\n" * 500),
    ],
    ids=["many headers", "one endless header", "an endless path", "all at once", "line breaks"],
)
async def test_head_over_its_limit_is_refused_before_it_is_whole(
    strict: ServerProcess, data: bytes, more: bytes
) -> None:
    got = await exchange(strict, data, more=more)
    assert got.status == 431 and got.code == "head_too_large" and "connection: close" in got.head
    await healthy(strict)


async def test_a_head_of_the_largest_size_is_taken(strict: ServerProcess) -> None:
    filler = 4096 - len(HEAD) - len("X-Filler: \r\n\r\n") - 16
    head = HEAD + b"Connection: close\r\nX-Filler: " + b"x" * (filler - 32) + b"\r\n\r\n"
    assert (await exchange(strict, head)).status == 200


async def test_a_large_body_does_not_count_as_a_head(strict: ServerProcess) -> None:
    key = await asyncio.to_thread(new_key, strict)
    body = json.dumps({"modelId": "scripted:hello", "prompt": "x" * 100_000}).encode()
    for pieces in (1, 10):
        head = (
            f"POST /api/v1/workspaces/acme/agent-runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Authorization: Bearer {key}\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        size = len(body) // pieces + 1
        chunks = [body[at : at + size] for at in range(0, len(body), size)]
        sent = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
        assert (await exchange(strict, head.encode() + sent)).status == 202


@pytest.mark.parametrize("data", [HEAD, b"G", b"GET / HTTP/1.1\r\n"])
async def test_a_head_that_is_not_finished_in_time_is_refused(strict: ServerProcess, data: bytes) -> None:
    got = await exchange(strict, data)
    assert got.status == 408 and got.code == "request_timeout"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 408),
        (b"X-Filler: " + b"x" * 200_000 + b"\r\n\r\n", 431),
        (b"Content-Length: 100\r\n\r\n{", 408),
        (b"Bad\x00Header: x\r\n\r\n", 400),
    ],
)
async def test_page_can_read_why_it_was_refused_early(strict: ServerProcess, data: bytes, status: int) -> None:
    head = b"POST /api/v1/workspaces/acme/agent-runs HTTP/1.1\r\nHost: x\r\nOrigin: %b\r\nAccept: */*\r\n"
    if b"Length" in data:
        data = b"Authorization: Bearer %b\r\n" % (await asyncio.to_thread(new_key, strict)).encode() + data
    got = await exchange(strict, head % b"https://app.example" + data)
    assert got.status == status and "access-control-allow-origin: https://app.example\r\n" in f"{got.head}\r\n"
    assert "vary: origin" in got.head and json.loads(got.body)["code"]
    got = await exchange(strict, head % b"https://other.example" + data)
    assert got.status == status and "access-control" not in got.head


@pytest.mark.parametrize("data", [b"", b"\r\n", b"\r\n\r\n"])
async def test_a_connection_without_a_request_is_closed(strict: ServerProcess, data: bytes) -> None:
    assert (await exchange(strict, data)).status == 0


async def test_used_connection_is_closed_when_idle_or_sending_line_breaks(
    strict: ServerProcess,
) -> None:
    for rest in (b"", b"\r\n"):
        got = await exchange(strict, HEAD + b"\r\n" + rest)
        assert got.status == 200 and "connection: close" not in got.head


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 100\r\n\r\n{",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: ",
    ],
)
async def test_a_body_that_is_not_finished_in_time_is_refused(strict: ServerProcess, body: bytes) -> None:
    key = await asyncio.to_thread(new_key, strict)
    head = f"POST /api/v1/workspaces/acme/agent-runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    got = await exchange(strict, head.encode() + body)
    assert got.status == 408 and got.code == "request_timeout"
    assert not [line for line in strict.log if "Traceback" in line]


@pytest.mark.parametrize(
    ("data", "more"),
    [(b"0\r\nX-Trailer: ", b"x" * 1000), (b"0\r\n", b"X-Trailer: x\r\n" * 100), (b"1;", b"extension=1;" * 100)],
    ids=["one endless trailer", "many trailers", "an endless extension"],
)
async def test_framing_around_a_chunked_body_is_bounded(strict: ServerProcess, data: bytes, more: bytes) -> None:
    key = await asyncio.to_thread(new_key, strict)
    head = (
        "POST /api/v1/workspaces/acme/agent-runs HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {key}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    got = await exchange(strict, head.encode() + data, more=more)
    assert got.status in (400, 431)


async def test_requests_behind_a_stream_are_answered_when_it_ends(
    strict: ServerProcess,
) -> None:
    key = await asyncio.to_thread(new_key, strict)
    async with aiohttp.ClientSession() as http, asyncio.timeout(TIMEOUT_S):
        api = Api(http, strict.url, "acme", key)
        run = await api.start("stuck")
        reader, writer = await connect(strict)
        writer.write(f"GET {api.base}/agent-runs/{run}/stream HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n\r\n".encode())
        writer.write((HEAD + b"\r\n") * 100)
        assert b" 200 " in await reader.readline()
        assert (await api.post(f"agent-runs/{run}/cancel", {})).status == 200
        data = await reader.read()  # to the end: it is idle after the last
        writer.close()
    stream, _, rest = data.partition(b"\r\n0\r\n\r\n")
    assert b'"cancelled"' in stream and rest.count(b"HTTP/1.1 200 OK\r\n") == 100


async def ask_on(writer: asyncio.StreamWriter, request: bytes) -> None:
    """One request after the other, until the server has had enough of answers that nobody reads."""
    while True:
        writer.write(request * 4)
        await writer.drain()


async def test_a_client_that_takes_nothing_of_its_answer_is_cut(strict: ServerProcess) -> None:
    key = await asyncio.to_thread(new_key, strict)
    async with aiohttp.ClientSession() as http, asyncio.timeout(TIMEOUT_S):
        run = await Api(http, strict.url, "acme", key).start("hello")
        head = f"GET /api/v1/workspaces/acme/agent-runs/{run} HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n\r\n"
        _, writer = await connect(strict)
        assert isinstance(writer.transport, asyncio.Transport)
        writer.transport.pause_reading()
        with pytest.raises(ConnectionError):
            await ask_on(writer, head.encode())
        writer.close()
    await healthy(strict)


async def test_connections_are_limited_by_address_and_in_all(tmp_path_factory: pytest.TempPathFactory) -> None:
    for setting, status in (("max_connections_per_address", 429), ("max_connections", 503)):
        folder = tmp_path_factory.mktemp("few")
        with ServerProcess(folder, config=f"[server]\n{setting} = 5\n") as server:
            held = [await connect(server) for _ in range(5)]
            for reader, writer in held:  # all of them were taken
                writer.write(HEAD + b"\r\n")
                await reader.readuntil(b"}")
            got = await exchange(server, HEAD + b"\r\n")
            assert got.status in (status, 0) and "connection: close" in got.head
            for _, writer in held:
                writer.close()
                await writer.wait_closed()
            async with asyncio.timeout(TIMEOUT_S):
                while (await exchange(server, HEAD + b"Connection: close\r\n\r\n")).status != 200:
                    pass


async def test_a_server_without_descriptors_says_so_once_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with ServerProcess(tmp_path_factory.mktemp("files"), scripts=SCRIPTS) as server:
        key = await asyncio.to_thread(new_key, server)
        await healthy(server)
        used = len(os.listdir(f"/proc/{server.pid}/fd"))
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + 3, hard))
        held = [await connect(server) for _ in range(60)]
        # The one behind those that are accepted waits until something is free.
        waiting = asyncio.create_task(exchange(server, HEAD + b"Connection: close\r\n\r\n"))
        await asyncio.sleep(0)
        for _, writer in held:
            writer.close()
        assert (await waiting).status == 200
        async with aiohttp.ClientSession() as http:
            api = Api(http, server.url, "acme", key)
            assert (await api.play("hello"))[-1].type == "result"
        assert len(await logged(server, "no new connections")) == 1
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
        await healthy(server)


def test_some_descriptors_are_kept_for_other_things_than_connections() -> None:
    limits = ConnectionLimits(max_connections=1000)
    assert Connections(limits, max_files=400).maximum == 300
    assert Connections(limits, max_files=1_000_000).maximum == 1000


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("somewhere", "somewhere"),
    ],
)
def test_one_address_is_one_customer(host: str, network: str) -> None:
    assert network_of(host) == network
