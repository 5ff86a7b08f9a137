from __future__ import annotations

import asyncio
import gzip
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import pytest

from weftline.providers.base import ErrorClass, ProviderError
from weftline.providers.direct import DirectTransport, default_transport
from weftline.providers.http_errors import classify
from weftline.providers.transport import AiohttpTransport

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Served: yes\r\n\r\nhello"
WAIT_S = 120.0


@asynccontextmanager
async def serving(serve: Serve) -> AsyncGenerator[str]:
    """A loopback server that speaks raw HTTP, so that each test decides on every byte and every close."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/messages?key=sk-secret"
    finally:
        server.close()


Http: TypeAlias = AiohttpTransport | DirectTransport


class Kind:
    """The transport that the present test is about; every test here holds for both."""

    chosen: type[Http] = AiohttpTransport


@pytest.fixture(autouse=True, params=[AiohttpTransport, DirectTransport])
def kind(request: pytest.FixtureRequest) -> None:
    Kind.chosen = request.param


@asynccontextmanager
async def transport() -> AsyncGenerator[Http]:
    opened = Kind.chosen()
    try:
        yield opened
    finally:
        await opened.aclose()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return head + await reader.readexactly(length)


async def read_in_pieces(http: Http, url: str) -> list[bytes]:
    async with http.post(url, headers={}, body=b"{}", timeout_s=WAIT_S) as response:
        return [piece async for piece in response.chunks()]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_a_request_reaches_the_server_as_it_was_given() -> None:
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await read_request(reader))
        writer.write(HELLO)
        await writer.drain()

    async with (
        serving(serve) as url,
        transport() as http,
        http.post(url, headers={"x-api-key": "k"}, body=b'{"a":1}', timeout_s=WAIT_S) as response,
    ):
        assert response.status == 200
        assert response.headers.get("x-SERVED") == "yes"
        assert await response.read() == b"hello"
    assert got[0].startswith(b"POST /v1/messages?key=sk-secret HTTP/1.1\r\n")
    assert b"x-api-key: k\r\n" in got[0]
    assert got[0].endswith(b'\r\n\r\n{"a":1}')


@pytest.mark.requirement("provider.stream.incremental")
async def test_pieces_are_passed_on_as_they_arrive() -> None:
    seen = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(b"one"))
        await writer.drain()
        await seen.wait()
        writer.write(chunk(b"two") + b"0\r\n\r\n")
        await writer.drain()

    got: list[bytes] = []
    async with (
        serving(serve) as url,
        transport() as http,
        http.post(url, headers={}, body=b"{}", timeout_s=WAIT_S) as response,
    ):
        async for piece in response.chunks():
            got.append(piece)
            seen.set()
    assert got == [b"one", b"two"]


@pytest.mark.requirement("provider.stream.abort")
@pytest.mark.parametrize("answer", [b"", HEAD + chunk(b"one")], ids=["before the first byte", "in the middle"])
async def test_an_abort_closes_the_upstream_connection(answer: bytes) -> None:
    begun, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await writer.drain()
        begun.set()
        assert await reader.read() == b""
        closed.set()

    async with serving(serve) as url, transport() as http:
        task = asyncio.create_task(read_in_pieces(http, url))
        await asyncio.wait_for(begun.wait(), WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(closed.wait(), WAIT_S)


async def test_leaving_an_answer_unread_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(b"one"))
        await writer.drain()
        assert await reader.read() == b""
        closed.set()

    async with serving(serve) as url, transport() as http:
        async with http.post(url, headers={}, body=b"{}", timeout_s=WAIT_S) as response:
            assert await anext(response.chunks()) == b"one"
        await asyncio.wait_for(closed.wait(), WAIT_S)


@pytest.mark.requirement("provider.error.classes")
async def test_a_refused_connection_is_a_retryable_server_error_without_the_key() -> None:
    async with serving(lambda _reader, _writer: asyncio.sleep(0)) as url:
        pass
    async with transport() as http:
        with pytest.raises(ProviderError) as raised:
            async with http.post(url, headers={"x-api-key": "sk-header"}, body=b"{}", timeout_s=WAIT_S):
                pass
    assert (raised.value.cls, raised.value.retryable) == ("server", True)
    assert "sk-" not in f"{raised.value} {raised.value!r}"


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize("answer", [b"", HEAD + chunk(b"one")], ids=["before the first byte", "in the middle"])
async def test_no_answer_in_time_is_a_timeout(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await writer.drain()
        await reader.read()

    async with serving(serve) as url, transport() as http:
        with pytest.raises(ProviderError) as raised:
            async with http.post(url, headers={}, body=b"{}", timeout_s=0.05) as response:
                await response.read()
    assert (raised.value.cls, raised.value.retryable) == ("timeout", True)


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", HEAD + chunk(b"one")], ids=["at once", "head", "body"])
async def test_a_connection_that_breaks_is_a_server_error_and_not_tried_again(answer: bytes) -> None:
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1
        writer.write(answer)
        await writer.drain()

    async with serving(serve) as url, transport() as http:
        with pytest.raises(ProviderError) as raised:
            await read_in_pieces(http, url)
    assert raised.value.cls == "server"
    assert requests == 1


async def test_a_connection_is_used_again_once_its_answer_was_read() -> None:
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        while True:
            await read_request(reader)
            connections[-1] += 1
            writer.write(HELLO)
            await writer.drain()

    async with serving(serve) as url, transport() as http:
        for _ in range(3):
            async with http.post(url, headers={}, body=b"{}", timeout_s=WAIT_S) as response:
                assert await response.read() == b"hello"
    assert connections == [3]


async def test_a_kept_connection_that_had_gone_stale_is_replaced_without_the_caller_noticing() -> None:
    per_connection: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        per_connection.append(0)
        mine = len(per_connection) - 1
        while True:
            await read_request(reader)
            per_connection[mine] += 1
            if mine == 0 and per_connection[mine] == 2:
                return
            writer.write(HELLO)
            await writer.drain()

    async with serving(serve) as url, transport() as http:
        for _ in range(2):
            async with http.post(url, headers={}, body=b"{}", timeout_s=WAIT_S) as response:
                assert await response.read() == b"hello"
    assert per_connection == [2, 1]


async def test_a_stale_connection_is_replaced_once_and_not_when_an_answer_had_begun() -> None:
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        while True:
            await read_request(reader)
            requests += 1
            writer.write(HELLO if requests == 1 else b"HTTP/1.1 200 OK\r\nX-Be")
            await writer.drain()
            if requests > 1:
                return

    async with serving(serve) as url, transport() as http:
        async with http.post(url, headers={}, body=b"{}", timeout_s=WAIT_S) as response:
            await response.read()
        with pytest.raises(ProviderError) as raised:
            async with http.post(url, headers={}, body=b"{}", timeout_s=WAIT_S):
                pass
    assert raised.value.cls == "server"
    assert requests == 2


async def test_a_redirect_is_not_followed() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with (
        serving(serve) as url,
        transport() as http,
        http.post(url, headers={}, body=b"{}", timeout_s=WAIT_S) as response,
    ):
        assert response.status == 307


async def test_a_closed_transport_refuses_and_cannot_be_retried() -> None:
    http = Kind.chosen()
    await http.aclose()
    with pytest.raises(ProviderError) as raised:
        async with http.post("http://127.0.0.1:1/", headers={}, body=b"", timeout_s=WAIT_S):
            pass
    assert not raised.value.retryable


def test_making_a_transport_does_not_load_the_http_library() -> None:
    code = "import sys, weftline.providers.transport as t; t.AiohttpTransport(); print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize(
    ("status", "body", "cls"),
    [
        (429, b'{"error":{"type":"rate_limit_error","message":"slow"}}', "rate_limit"),
        (529, b'{"error":{"type":"overloaded_error","message":"Overloaded"}}', "overloaded"),
        (503, b"<html>no</html>", "overloaded"),
        (500, b'{"error":{"message":"The engine is currently overloaded"}}', "overloaded"),
        (500, b"", "server"),
        (502, b"<html>bad gateway</html>", "server"),
        (400, b'{"error":{"message":"prompt is too long: 210000 tokens > 200000 maximum"}}', "context_window"),
        (400, b'{"error":{"code":"context_length_exceeded","message":"no"}}', "context_window"),
        (400, b'{"error":{"message":"The input token count (9) exceeds the maximum"}}', "context_window"),
        (413, b'{"error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}', "context_window"),
        (400, b'{"error":{"message":"max_tokens: must be positive"}}', "invalid_request"),
        (404, b'{"error":{"type":"not_found_error","message":"model: x"}}', "invalid_request"),
        (401, b'{"error":"bad key"}', "auth"),
        (403, b"[]", "auth"),
        (418, b"teapot", "unknown"),
        (307, b"", "unknown"),
        (None, b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "overloaded"),
        (None, b'{"type":"error","error":{"type":"api_error","message":"Internal server error"}}', "server"),
        (None, b'{"error":{"code":429,"message":"later"}}', "rate_limit"),
        (None, b'{"error":{"code":502,"message":"upstream"}}', "server"),
        (None, b'{"error":{"type":"novel_error","message":"?"}}', "unknown"),
    ],
)
def test_an_error_answer_has_one_class(status: int | None, body: bytes, cls: ErrorClass) -> None:
    error = classify(status, body, {})
    assert error.cls == cls
    assert error.retryable == (cls in {"rate_limit", "overloaded", "server", "timeout"})
    assert error.message


@pytest.mark.requirement("provider.error.classes", "provider.request.key_secrecy")
def test_the_providers_own_words_are_kept_but_for_the_key() -> None:
    body = b'{"error":{"type":"authentication_error","message":"invalid x-api-key: sk-ant-1"}}'
    error = classify(401, body, {}, secrets=["sk-ant-1"])
    assert (error.status, error.code) == (401, "authentication_error")
    assert error.message == "invalid x-api-key: [redacted]"


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"Retry-After": "7"}, b"", 7.0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, b"", 1.5),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT", "Date": "Fri, 31 Dec 1999 23:59:29 GMT"}, b"", 30.0),
        ({"retry-after": "-3"}, b"", 0.0),
        ({"retry-after": "soon"}, b"", None),
        ({}, b'{"error":{"details":[{"retryDelay":"17.5s"}]}}', 17.5),
        ({}, b"", None),
    ],
)
def test_the_time_to_wait_is_read_from_where_the_api_puts_it(
    headers: dict[str, str], body: bytes, seconds: float | None
) -> None:
    assert classify(429, body, headers).retry_after_s == seconds


def test_a_family_may_decide_on_the_class_first() -> None:
    body = b'{"error":{"code":"tool_use_failed","message":"no"}}'
    assert (
        classify(400, body, {}, hook=lambda detail: "server" if detail.code == "tool_use_failed" else None).cls
        == "server"
    )
    assert classify(400, body, {}, hook=lambda _: None).cls == "invalid_request"


async def answered(answer: bytes, *, close: bool = False) -> bytes:
    """What a direct transport reads of an answer that a server sends in one write."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await writer.drain()
        if close:
            writer.close()

    async with (
        serving(serve) as url,
        transport() as http,
        http.post(url, headers={}, body=b"{}", timeout_s=WAIT_S) as response,
    ):
        assert response.status == 200
        return await response.read()


async def test_an_answer_may_be_compressed_preceded_by_a_notice_or_ended_by_the_connection() -> None:
    packed = gzip.compress(b"hello" * 1000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    assert await answered(head + packed) == b"hello" * 1000
    assert await answered(b"HTTP/1.1 100 Continue\r\n\r\n" + HELLO) == b"hello"
    assert await answered(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello", close=True) == b"hello"


async def test_what_is_not_http_is_a_server_error() -> None:
    with pytest.raises(ProviderError) as failure:
        await answered(b"SSH-2.0-OpenSSH_9.6\r\n", close=True)
    assert failure.value.cls == "server"


async def test_a_header_with_a_line_break_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ProviderError) as failure:
        async with DirectTransport().post("http://127.0.0.1:1/", headers={"a": "b\r\nc: d"}, body=b"", timeout_s=1):
            pytest.fail("it was sent")
    assert failure.value.cls == "invalid_request"


def test_the_environment_decides_on_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(default_transport(), DirectTransport)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:3128")
    assert isinstance(default_transport(), AiohttpTransport)
