"""The transport over aiohttp: what it sends, how it streams, when it uses a connection again."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys

import pytest

from weftline._version import __version__
from weftline.net import session
from weftline.net.errors import RequestFailed
from weftline.net.response import MAX_PIECE_BYTES
from weftline.net.session import MAX_INTERIM
from weftline.net.transport import AiohttpTransport

from .kit import HEAD, HELLO, LIMITS, WAIT_S, answering, chunk, post, read_request, serving, transport


async def read_in_pieces(http: AiohttpTransport, url: str) -> list[bytes]:
    async with http.post(url, headers={}, body=b"{}", limits=LIMITS) as response:
        return [piece async for piece in response.chunks()]


async def test_a_request_reaches_the_server_as_it_was_given() -> None:
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await read_request(reader))
        writer.write(HELLO)
        await writer.drain()

    async with (
        serving(serve) as url,
        transport() as http,
        http.post(url, headers={"x-api-key": "k"}, body=b'{"a":1}', limits=LIMITS) as response,
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
        http.post(url, headers={}, body=b"{}", limits=LIMITS) as response,
    ):
        async for piece in response.chunks():
            got.append(piece)
            seen.set()
    assert got == [b"one", b"two"]


@pytest.mark.requirement("provider.stream.abort")
async def test_others_get_their_turn_between_pieces_that_arrived_together() -> None:
    body = bytes(range(256)) * 400
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with serving(answering(head + body, stay=True)) as url, transport() as http:
        waiting = asyncio.create_task(other())
        pieces, seen = list[bytes](), list[int]()
        async with http.post(url, headers={}, body=b"{}", limits=LIMITS) as response:
            async for piece in response.chunks():
                pieces.append(piece)
                seen.append(turns)
        waiting.cancel()
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) <= MAX_PIECE_BYTES
    assert len(set(seen)) == len(seen)


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
        async with http.post(url, headers={}, body=b"{}", limits=LIMITS) as response:
            assert await anext(response.chunks()) == b"one"
        await asyncio.wait_for(closed.wait(), WAIT_S)


@pytest.mark.requirement("provider.error.classes")
async def test_a_refused_connection_is_told_without_the_key() -> None:
    async with serving(answering(b"")) as url:
        pass
    async with transport() as http:
        with pytest.raises(RequestFailed) as raised:
            async with http.post(url, headers={"x-api-key": "sk-header"}, body=b"{}", limits=LIMITS):
                pass
    assert (raised.value.reason, raised.value.sent) == ("connect", False)
    assert "sk-" not in f"{raised.value} {raised.value!r}"


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        HEAD + chunk(b"one"),
        HEAD + b"ff\r\none",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
    ids=["at once", "head", "between chunks", "in a chunk", "short body", "not HTTP"],
)
async def test_a_connection_that_breaks_is_told_and_not_tried_again(answer: bytes) -> None:
    requests: list[bytes] = []
    async with serving(answering(answer, requests=requests)) as url, transport() as http:
        with pytest.raises(RequestFailed) as raised:
            await read_in_pieces(http, url)
    assert (raised.value.reason, raised.value.sent) == ("broken", True)
    assert len(requests) == 1


async def test_data_before_a_cut_is_delivered_first() -> None:
    async with (
        serving(answering(HEAD + chunk(b"one"))) as url,
        serving(answering(HELLO)) as other,
        transport() as http,
        http.post(url, headers={}, body=b"{}", limits=LIMITS) as response,
    ):
        # By the time that another request is through, the news of the cut is here too.
        await post(http, other)
        pieces = response.chunks()
        assert await anext(pieces) == b"one"
        with pytest.raises(RequestFailed):
            await anext(pieces)


async def test_a_whole_read_of_a_cut_body_fails() -> None:
    async with serving(answering(HEAD + chunk(b"one"))) as url, transport() as http:
        with pytest.raises(RequestFailed):
            await post(http, url)


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
            async with http.post(url, headers={}, body=b"{}", limits=LIMITS) as response:
                assert await response.read() == b"hello"
    assert connections == [3]


async def test_stale_kept_connection_is_replaced_silently() -> None:
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
            async with http.post(url, headers={}, body=b"{}", limits=LIMITS) as response:
                assert await response.read() == b"hello"
    assert per_connection == [2, 1]


async def test_stale_connection_is_replaced_once_before_an_answer_begins() -> None:
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
        async with http.post(url, headers={}, body=b"{}", limits=LIMITS) as response:
            await response.read()
        with pytest.raises(RequestFailed) as raised:
            async with http.post(url, headers={}, body=b"{}", limits=LIMITS):
                pass
    assert (raised.value.reason, raised.value.sent) == ("broken", True)
    assert requests == 2


async def test_request_meeting_two_stale_connections_is_sent_twice_only() -> None:
    requests = 0
    both = asyncio.Barrier(2)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1
        # Two requests at once, so that two connections are kept.
        await both.wait()
        writer.write(HELLO)
        await writer.drain()
        await read_request(reader)
        requests += 1

    async with serving(serve) as url, transport() as http:
        await asyncio.gather(post(http, url), post(http, url))
        with pytest.raises(RequestFailed) as raised:
            await post(http, url)
    assert (raised.value.reason, requests) == ("broken", 4)


async def test_a_redirect_is_not_followed() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with (
        serving(serve) as url,
        transport() as http,
        http.post(url, headers={}, body=b"{}", limits=LIMITS) as response,
    ):
        assert response.status == 307


async def test_connection_with_an_unread_answer_is_not_reused() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        # More than anybody buffers, so that the reading of this connection is paused when it is given up.
        writer.write(HEAD + chunk(bytes(4 * 1024 * 1024)) if connections == 1 else HELLO)
        await writer.drain()
        await reader.read()

    async with serving(serve) as url, transport() as http:
        async with http.post(url, headers={}, body=b"{}", limits=LIMITS) as response:
            assert await anext(response.chunks())
        assert await post(http, url) == b"hello"
    assert connections == 2


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/model/a%3Ab:c/%7Eme?x=a%2Bb%20c&y=%41", b"/model/a%3Ab:c/%7Eme?x=a%2Bb%20c&y=%41"),
        ("/a b/ü?q=1\r\n2", b"/a%20b/%C3%BC?q=12"),
        ("", b"/"),
    ],
)
async def test_encoded_url_is_unchanged_and_another_is_encoded(path: str, target: bytes) -> None:
    """A signature holds for the very characters that were signed."""
    requests: list[bytes] = []
    async with serving(answering(HELLO, requests=requests)) as url, transport() as http:
        await post(http, url.partition("/v1")[0] + path)
    assert requests[0].split(b" ")[1] == target


async def test_cookies_are_not_kept() -> None:
    requests: list[bytes] = []
    answer = HELLO.replace(b"X-Served: yes", b"Set-Cookie: a=b; Path=/")
    async with serving(answering(answer, requests=requests)) as url, transport() as http:
        for _ in range(2):
            await post(http, url)
    assert len(requests) == 2
    assert b"cookie" not in requests[1].lower()


async def test_requests_name_the_product_and_accept_bounded_encodings() -> None:
    requests: list[bytes] = []
    async with serving(answering(HELLO, requests=requests)) as url, transport() as http:
        await post(http, url)
    assert f"User-Agent: weftline/{__version__}\r\n".encode() in requests[0]
    assert b"Accept-Encoding: gzip, deflate\r\n" in requests[0]


async def test_large_request_body_arrives_whole_even_when_resent() -> None:
    lengths: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            lengths.append(len((await read_request(reader)).partition(b"\r\n\r\n")[2]))
            if len(lengths) == 2:
                return
            writer.write(HELLO)
            await writer.drain()

    body = bytes(3 * 1024 * 1024)
    async with serving(serve) as url, transport() as http:
        for _ in range(2):
            async with http.post(url, headers={}, body=body, limits=LIMITS) as response:
                await response.read()
    assert lengths == [len(body)] * 3


async def test_a_get_has_no_body() -> None:
    requests: list[bytes] = []
    async with (
        serving(answering(HELLO, requests=requests)) as url,
        transport() as http,
        http.get(url, headers={"x-api-key": "k"}, limits=LIMITS) as response,
    ):
        assert await response.read() == b"hello"
    assert requests[0].startswith(b"GET /v1/messages?key=sk-secret HTTP/1.1\r\n")
    assert b"x-api-key: k\r\n" in requests[0] and requests[0].endswith(b"\r\n\r\n")


async def test_answer_may_follow_notice_or_end_with_its_connection() -> None:
    async with transport() as http:
        async with serving(answering(b"HTTP/1.1 100 Continue\r\n\r\n" + HELLO)) as url:
            assert await post(http, url) == b"hello"
        async with serving(answering(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")) as url:
            assert await post(http, url) == b"hello"


async def test_server_that_sends_one_notice_after_another_is_given_up() -> None:
    notices = b"HTTP/1.1 102 Processing\r\n\r\n"
    async with serving(answering(notices * 20_000 + HELLO)) as url, transport() as http:
        with pytest.raises(RequestFailed) as raised:
            await post(http, url)
    assert (raised.value.reason, raised.value.sent) == ("broken", True)


async def test_a_body_in_chunks_of_one_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_FRAMING_BYTES", 10_000)
    async with transport() as http:
        async with serving(answering(HEAD + chunk(b"x") * 1_000 + chunk(b"y" * 20_000) + b"0\r\n\r\n")) as url:
            assert len(await post(http, url)) == 21_000
        async with serving(answering(HEAD + chunk(b"x") * 200_000 + b"0\r\n\r\n")) as url:
            with pytest.raises(RequestFailed) as raised:
                await post(http, url)
    assert (raised.value.reason, raised.value.sent) == ("broken", True)


async def test_notices_are_counted_for_each_request_of_a_connection() -> None:
    notices = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n" * MAX_INTERIM
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await read_request(reader)
            writer.write(notices + HELLO)
            await writer.drain()

    async with serving(serve) as url, transport() as http:
        assert [await post(http, url) for _ in range(3)] == [b"hello"] * 3
    assert connections == 1


async def test_a_closed_transport_refuses() -> None:
    http = AiohttpTransport()
    await http.aclose()
    with pytest.raises(RequestFailed) as raised:
        await post(http, "http://127.0.0.1:1/")
    assert (raised.value.reason, raised.value.sent) == ("closed", False)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "127.0.0.1", "http://", "http://[::1/", "file:///etc/passwd"])
async def test_address_without_http_is_refused(url: str) -> None:
    async with transport() as http:
        with pytest.raises(RequestFailed) as raised:
            await post(http, url)
    assert (raised.value.reason, raised.value.sent) == ("invalid", False)


async def test_header_with_line_break_is_refused_before_anything_is_sent() -> None:
    requests: list[bytes] = []
    async with serving(answering(HELLO, requests=requests)) as url, transport() as http:
        with pytest.raises(RequestFailed) as raised:
            async with http.post(url, headers={"a": "b\r\nc: d"}, body=b"", limits=LIMITS):
                pytest.fail("it was sent")
    assert (raised.value.reason, raised.value.sent) == ("invalid", False)
    assert requests == []


def test_making_a_transport_does_not_load_the_http_library() -> None:
    code = (
        "import asyncio, sys\n"
        "from weftline.net.dial import Dialer\n"
        "from weftline.net.egress import Egress\n"
        "from weftline.net.transport import AiohttpTransport\n"
        "transport, dialer = AiohttpTransport(), Dialer(Egress())\n"
        "print('aiohttp' in sys.modules)\n"
        "asyncio.run(transport.preload())\n"
        "print('aiohttp' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


async def test_one_transport_serves_several_loops_and_is_closed_with_each() -> None:
    http = AiohttpTransport()

    async def ask(url: str) -> bytes:
        async with http.post(url, headers={}, body=b"{}", limits=LIMITS) as response:
            return await response.read()

    def on_a_loop_of_its_own(url: str) -> bytes:
        return asyncio.run(ask(url))

    async with serving(answering(HELLO)) as url:
        assert await ask(url) == b"hello"
        for _ in range(2):
            assert await asyncio.to_thread(on_a_loop_of_its_own, url) == b"hello"
        gc.collect()  # a session that was left open would say so, and a warning is an error here
        assert await ask(url) == b"hello"
        await http.aclose()
        with pytest.raises(RequestFailed, match="stopping"):
            await ask(url)
