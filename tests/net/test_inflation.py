"""Compressed answers: they are inflated as they are read, and only up to a limit."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib

import pytest

from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.net.errors import BodyTooLarge, RequestFailed
from weftline.net.transport import AiohttpTransport

from .kit import HEAD, LIMITS, WAIT_S, answering, chunk, post, read_request, serving, transport

MIB = 1024 * 1024
BOMB = gzip.compress(bytes(100 * MIB), compresslevel=1)


def compressed(body: bytes, encoding: str = "gzip") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"hello" * 1000)),
        ("gzip", gzip.compress(b"hello" * 400) + gzip.compress(b"hello" * 600)),
        ("deflate", zlib.compress(b"hello" * 1000)),
        ("deflate", zlib.compress(b"hello" * 1000, wbits=-15)),
    ],
    ids=["gzip", "two members", "deflate", "raw deflate"],
)
async def test_a_compressed_answer_is_inflated(encoding: str, body: bytes) -> None:
    async with serving(answering(compressed(body, encoding))) as url, transport() as http:
        assert await post(http, url) == b"hello" * 1000


async def test_a_compressed_stream_is_passed_on_as_it_arrives() -> None:
    seen = asyncio.Event()
    pack = zlib.compressobj(wbits=31)

    def packed(data: bytes) -> bytes:
        return chunk(pack.compress(data) + pack.flush(zlib.Z_SYNC_FLUSH))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + packed(b"one"))
        await writer.drain()
        await seen.wait()
        writer.write(packed(b"two") + chunk(pack.flush()) + b"0\r\n\r\n")
        await writer.drain()

    async with (
        serving(serve) as url,
        transport() as http,
        http.post(url, headers={}, body=b"{}", limits=LIMITS) as response,
    ):
        pieces = response.chunks()
        assert await anext(pieces) == b"one"
        seen.set()
        assert b"".join([piece async for piece in pieces]) == b"two"


@pytest.mark.parametrize(
    "answer", [compressed(BOMB), HEAD + chunk(bytes(2 * MIB)) + b"0\r\n\r\n"], ids=["bomb", "plain"]
)
async def test_a_body_over_the_limit_fails_whole_or_in_pieces(answer: bytes) -> None:
    http = AiohttpTransport(max_body_bytes=MIB)
    async with serving(answering(answer)) as url:
        with pytest.raises(BodyTooLarge) as raised:
            await post(http, url)
        assert (raised.value.reason, raised.value.sent) == ("too_large", True)
        async with http.post(url, headers={}, body=b"{}", limits=LIMITS) as response:
            with pytest.raises(BodyTooLarge):
                _ = [piece async for piece in response.chunks()]
    await http.aclose()


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    http = AiohttpTransport(max_body_bytes=5)
    async with serving(answering(compressed(gzip.compress(b"hello")))) as url:
        assert await post(http, url) == b"hello"
    await http.aclose()


async def test_a_bomb_is_not_inflated_ahead_of_its_reader() -> None:
    http = AiohttpTransport(max_body_bytes=200 * MIB)
    await http.preload()
    async with serving(answering(compressed(BOMB))) as url:
        tracemalloc.start()
        try:
            async with http.post(url, headers={}, body=b"{}", limits=LIMITS) as response:
                sizes = [len(piece) async for piece in response.chunks()]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    await http.aclose()
    assert sum(sizes) == 100 * MIB
    assert peak < 16 * MIB


async def test_dialled_answer_is_cut_or_refused_at_readers_own_limit() -> None:
    dialer = Dialer(Egress("private"))
    async with serving(answering(compressed(BOMB))) as url:
        async with dialer.request("GET", url, timeout_s=WAIT_S) as response:
            assert await response.read_up_to(1000) == (bytes(1000), False)
        async with dialer.request("GET", url, timeout_s=WAIT_S) as response:
            with pytest.raises(BodyTooLarge):
                await response.read(limit=MIB)
    async with serving(answering(compressed(gzip.compress(b"hello")))) as url:
        for limit, expected in ((4, (b"hell", False)), (5, (b"hello", True)), (6, (b"hello", True))):
            async with dialer.request("GET", url, timeout_s=WAIT_S) as response:
                assert await response.read_up_to(limit) == expected
        async with dialer.request("GET", url, timeout_s=WAIT_S) as response:
            assert await response.read(limit=5) == b"hello"
    await dialer.aclose()


async def test_uninflatable_body_is_a_broken_answer() -> None:
    async with serving(answering(compressed(b"hello"))) as url, transport() as http:
        with pytest.raises(RequestFailed) as raised:
            await post(http, url)
    assert raised.value.reason == "broken"
