"""Requests as bytes: where one ends and the next begins, and what a head may say."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from urllib.request import urlopen

import pytest

from weftline.testing import ServerProcess

from .kit import TIMEOUT_S

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


async def answers(server: ServerProcess, *segments: bytes) -> bytes:
    """All that the server sends until it closes the connection. Between two segments it has time to read."""
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            for segment in segments:
                writer.write(segment)
                await writer.drain()
                await asyncio.to_thread(_asked, server)
            data = b""
            with suppress(ConnectionError):
                while piece := await reader.read(65536):
                    data += piece
            return data
        finally:
            writer.close()


def _asked(server: ServerProcess) -> None:
    """Whatever was sent before has been read when another request is answered."""
    with urlopen(f"{server.url}/healthz", timeout=TIMEOUT_S) as reply:
        assert reply.status == 200


def statuses(data: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]


def post(credentials: tuple[str, str], *, headers: Sequence[bytes], path: str = "agent-runs") -> bytes:
    slug, key = credentials
    lines = [
        f"POST /api/v1/workspaces/{slug}/{path} HTTP/1.1".encode(),
        b"Host: x",
        f"Authorization: Bearer {key}".encode(),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


RUN = json.dumps({"modelId": "scripted:hello", "prompt": "x"}).encode()
UPGRADE = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
LENGTH = b"Content-Length: %d" % len(RUN)
CHUNKED = b"Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("framing", "body"),
    [((LENGTH,), RUN), ((CHUNKED,), b"%x\r\n%b\r\n0\r\n\r\n" % (len(RUN), RUN))],
    ids=["length", "chunked"],
)
async def test_upgrade_request_keeps_its_body(
    server: ServerProcess, credentials: tuple[str, str], framing: tuple[bytes, ...], body: bytes
) -> None:
    head = post(credentials, headers=(*UPGRADE, *framing))
    last = post(credentials, headers=(*UPGRADE, *framing, b"Connection: close"))
    for sent in (
        (head + body + last + body,),
        (head, body, last, body),
        (head[:-1], head[-1:] + body[:10], body[10:] + last[:30], last[30:] + body[:1], body[1:]),
    ):
        assert statuses(await answers(server, *sent)) == [202, 202]


async def test_requests_cannot_hide_in_a_body_of_another_protocol(server: ServerProcess) -> None:
    for protocol in (b"websocket", b"h2c", b"x"):
        asks = b"Connection: Upgrade\r\nUpgrade: %b\r\nContent-Length: %d\r\n\r\n" % (protocol, len(GET))
        head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + asks
        for sent in ((head + GET,), (head, GET), (head + GET[:9], GET[9:])):
            end = b"GET /readyz HTTP/1.1\r\nHost: x\r\n" + b"Connection: close\r\n\r\n"
            data = await answers(server, *sent, end)
            assert statuses(data) == [200, 200], "the two requests, and not the one in the body of the first"


async def test_client_that_asks_for_another_protocol_is_told_to_continue(
    server: ServerProcess, credentials: tuple[str, str]
) -> None:
    head = post(credentials, headers=(*UPGRADE, LENGTH, b"Expect: 100-continue", b"Connection: close"))
    assert statuses(await answers(server, head, RUN)) == [100, 202]


async def test_client_that_is_refused_continue_finds_its_connection_closed(
    server: ServerProcess, credentials: tuple[str, str]
) -> None:
    """It may send the body or not, and nobody could tell its next request from that."""
    expects = (LENGTH, b"Expect: 100-continue")
    head = post((credentials[0], "wrong"), headers=expects)
    data = await answers(server, head, GET)
    assert statuses(data) == [401] and b"connection: close" in data
    whole = await answers(server, head + RUN + GET, request(b"Host: x", b"Connection: close"))
    assert statuses(whole) == [401, 200, 200], "the body has come, so it is clear where the next one begins"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_may_ask_for_http2_in_the_clear(server: ServerProcess, credentials: tuple[str, str]) -> None:
    slug, key = credentials
    url = f"{server.url}/api/v1/workspaces/{slug}/agent-runs"
    args = ("--http2", "-s", "-m", "60", "-w", " %{http_code}", "-H", f"X-API-Key: {key}", "-d", RUN.decode(), url)
    process = await asyncio.create_subprocess_exec("curl", *args, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert out.endswith(b" 202")


def request(*lines: bytes, start: bytes = b"GET /healthz HTTP/1.1", body: bytes = b"") -> bytes:
    return b"\r\n".join((start, *lines)) + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (request(), 400, "invalid_request"),
        (request(b"Host: a", b"Host: a"), 400, "invalid_request"),
        (request(b"Host: a b"), 400, "invalid_request"),
        (request(b"Host: a/b"), 400, "invalid_request"),
        (request(b"Host: a@b"), 400, "invalid_request"),
        (request(b"Host: [::1"), 400, "invalid_request"),
        (b"GET /healthz\r\n\r\n", 400, "invalid_request"),
        (request(b"Host: a", start=b"GET /healthz HTTP/2.0"), 400, "invalid_request"),
        (request(b"Host: a:443", start=b"CONNECT a:443 HTTP/1.1"), 501, "not_implemented"),
        (request(b"Host: a", b"Content-Length: 5", start=b"CONNECT a:443 HTTP/1.1", body=GET), 501, "not_implemented"),
        (request(b"Host: a", b"Content-Encoding: gzip"), 415, "unsupported_encoding"),
        (request(b"Host: a", b"Expect: a-pony"), 417, "expectation_failed"),
        (request(b"Host: a", b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), 501, "not_implemented"),
        (request(b"Transfer-Encoding: chunked", start=b"GET /healthz HTTP/1.0", body=b"0\r\n\r\n"), 400, None),
        (request(b"Host: a", b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n"), 400, None),
        (request(b"Host: a", start=b"GET /" + b"%" * 2000 + b" HTTP/1.1"), 400, "invalid_request"),
    ],
)
async def test_a_head_that_others_could_read_differently_is_refused(
    server: ServerProcess, sent: bytes, status: int, code: str | None
) -> None:
    # On a connection of its own, and after another request that was fine.
    for before, expected in ((b"", [status]), (GET, [200, status])):
        data = await answers(server, *filter(None, (before, sent)))
        assert statuses(data) == expected
        _, _, last = data.rpartition(b"HTTP/1.1 %d " % status)
        head, _, body = last.partition(b"\r\n\r\n")
        assert b"connection: close" in head and b"x-content-type-options: nosniff" in head
        assert json.loads(body)["code"] == (code or "invalid_request")


@pytest.mark.parametrize("host", [b"", b"a", b"a.example:8080", b"[::1]:80", b"127.0.0.1:", b"a_b.example"])
async def test_any_host_will_do(server: ServerProcess, host: bytes) -> None:
    assert statuses(await answers(server, request(b"Host: " + host, b"Connection: close"))) == [200]


async def test_http_1_0_client_needs_no_host_and_no_continue(server: ServerProcess) -> None:
    old = b"POST /api/oauth/token HTTP/1.0"
    assert statuses(await answers(server, request(start=b"GET /healthz HTTP/1.0"))) == [200]
    assert statuses(
        await answers(server, request(b"Expect: 100-continue", b"Content-Length: 1", start=old) + b"x")
    ) == [400]


async def test_trailers_of_a_chunked_body_do_not_join_headers(
    server: ServerProcess, credentials: tuple[str, str]
) -> None:
    slug, key = credentials
    head = request(
        b"Host: x", CHUNKED, b"Connection: close", start=f"POST /api/v1/workspaces/{slug}/agent-runs HTTP/1.1".encode()
    )
    trailer = b"%x\r\n%b\r\n0\r\nX-API-Key: %b\r\n\r\n" % (len(RUN), RUN, key.encode())
    assert statuses(await answers(server, head + trailer)) == [401]
    # Nor the head of the next request, which is judged by its own.
    first = request(b"Host: x", CHUNKED, body=b"0\r\nHost: y\r\n\r\n")
    second = request(b"Host: x", CHUNKED, b"Host: y", body=b"0\r\n\r\n")
    assert statuses(await answers(server, first, second)) == [200, 400]


@pytest.mark.parametrize("trailer", [b"Connection: close", b"Connection: keep-alive", b"connection: Upgrade"])
async def test_a_connection_header_after_a_chunked_body_means_nothing(
    server: ServerProcess, credentials: tuple[str, str], trailer: bytes
) -> None:
    body = b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(RUN), RUN, trailer)
    head, last = post(credentials, headers=[CHUNKED]), request(b"Host: x", b"Connection: close")
    for segments in ([head + body + GET + last + GET], [head + body, GET, last], [head, body, last + GET]):
        data = await answers(server, *segments)
        assert statuses(data) == [202, *[200] * (b"".join(segments).partition(last)[0].count(GET) + 1)]
        assert data.count(b"connection: close") == 1
    # The head is what counts.
    closing = post(credentials, headers=[CHUNKED, b"Connection: close"])
    assert statuses(await answers(server, closing + body + GET)) == [202]


async def test_an_escaped_slash_does_not_separate_two_names(
    server: ServerProcess, credentials: tuple[str, str]
) -> None:
    slug, key = credentials
    for path, status in (
        (f"/api/v1/workspaces/{slug}/models", 200),
        (f"/api/v1/workspaces/{slug}/%6dodels", 200),
        (f"/api/v1/workspaces/{slug}%2fmodels", 404),
        (f"/api/v1%2Fworkspaces/{slug}/models", 404),
    ):
        sent = request(
            b"Host: x", f"X-API-Key: {key}".encode(), b"Connection: close", start=f"GET {path} HTTP/1.1".encode()
        )
        assert statuses(await answers(server, sent)) == [status]


async def test_requests_that_came_are_answered_before_the_connection_is_closed(server: ServerProcess) -> None:
    last = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    data = await answers(server, GET * 99 + last)
    assert statuses(data) == [200] * 100 and data.count(b"connection: close") == 1
    assert statuses(await answers(server, GET * 3 + b"nonsense\r\n\r\n")) == [200] * 3
