"""What one connection may hold, and for how long: on a clock that stands still and a wire that is only a list."""

from __future__ import annotations

import asyncio
import gc
import socket
import tracemalloc
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvloop
from uvicorn.server import ServerState

from weftline.errors import WeftlineError
from weftline.server.connections import ConnectionLimits, Connections
from weftline.server.exchange import Exchange
from weftline.server.http import Receive, Scope, Send
from weftline.server.protocol import HttpProtocol

LIMITS = ConnectionLimits(max_head_bytes=4096, head_timeout_s=15, body_timeout_s=300, body_pause_s=30, keep_alive_s=120)
GET = b"GET /quick HTTP/1.1\r\nHost: x\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /%b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def post(path: bytes, length: int) -> bytes:
    return b"POST /%b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path, length)


class Timer:
    def __init__(self, at_s: float, call: Callable[[], object]) -> None:
        self.at_s, self.call, self.cancelled = at_s, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """As much of a loop as a connection uses; its time passes only in `wait`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now_s = 0.0
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self._now_s

    def call_soon(self, call: Callable[[], object]) -> asyncio.Handle:
        return self._loop.call_soon(call)

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        self._timers.append(Timer(self._now_s + delay_s, call))
        return self._timers[-1]

    def create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._loop.create_task(work)

    def wait(self, seconds: float) -> None:
        end_s = self._now_s + seconds
        while due := [timer for timer in self._timers if not timer.cancelled and timer.at_s <= end_s]:
            first = min(due, key=lambda timer: timer.at_s)
            self._timers.remove(first)
            self._now_s = max(self._now_s, first.at_s)
            first.call()
        self._now_s = end_s


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.reads, self.ended, self.closed = True, False, False
        self.unread = 0

    def write(self, data: Any) -> None:
        assert not self.ended
        self.sent += data

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.ended = self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unread

    @property
    def statuses(self) -> list[int]:
        return [int(part[:3]) for part in self.sent.split(b"HTTP/1.1 ")[1:]]


class App:
    """Answers `/early` before it has the body, `/slow` when `go` is set, `/unread` then and without the body, `/broken`
    never, and the rest at once.
    """

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.handled = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.handled += 1
        if scope["path"] == "/broken":
            return
        if scope["path"] in ("/slow", "/unread"):
            await self.go.wait()
        early = scope["path"] in ("/early", "/unread")
        while not early and (await receive()).get("more_body"):
            pass
        status = 401 if early else 200
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def protocol_of(app: App, limits: ConnectionLimits, loop: Any) -> HttpProtocol:
    return HttpProtocol(app, ServerState(), Connections(limits), loop=loop)


class Connection:
    def __init__(self, limits: ConnectionLimits) -> None:
        self.clock, self.wire, self.app = Clock(), Wire(), App()
        self.protocol = protocol_of(self.app, limits, self.clock)
        self.protocol.connection_made(self.wire)

    async def send(self, *segments: bytes) -> None:
        for segment in segments:
            self.protocol.data_received(segment)
            await settled()


async def settled() -> None:
    """Lets everything happen that needs no time."""
    for _ in range(300):
        await asyncio.sleep(0)


@asynccontextmanager
async def connected(limits: ConnectionLimits = LIMITS) -> AsyncGenerator[Connection]:
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
    connection = Connection(limits)
    yield connection
    connection.app.go.set()
    connection.protocol.connection_lost(None)
    await settled()
    assert not problems


def exchanges() -> int:
    """How many are in memory."""
    return sum(isinstance(one, Exchange) for one in gc.get_objects())


@contextmanager
def without_collector() -> Generator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# What is kept


async def test_a_request_may_have_many_headers_but_not_thousands() -> None:
    """Each takes a hundred bytes of memory, and only four on the wire."""
    async with connected() as connection:
        await connection.send(b"GET /quick HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 200 + b"\r\n")
        assert connection.wire.statuses == [200]
        await connection.send(b"GET /quick HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 300)
        assert connection.wire.statuses == [200, 431] and connection.wire.ended


@pytest.mark.parametrize("request_", [GET, post(b"early", 2) + b"x", post(b"quick", 2) + b"x"])
async def test_an_idle_connection_keeps_nothing_of_its_last_request(request_: bytes) -> None:
    async with connected() as connection:
        await connection.send(request_, b"" if request_ == GET else b"x")
        gc.collect()
        assert exchanges() == 0 and not connection.wire.ended
        await connection.send(GET)
        assert len(connection.wire.statuses) == 2


# Time


@pytest.mark.parametrize("path", [b"quick", b"early"])
async def test_requests_have_own_times_despite_shared_writes(path: bytes) -> None:
    whole = post(path, 4) + b"xxxx"
    async with connected() as connection:
        for cut in (10, len(whole) - 2):
            await connection.send(whole[:cut])
            for _ in range(20):
                connection.clock.wait(0.8 * LIMITS.head_timeout_s)
                await connection.send(whole[cut:] + whole[:cut])
            await connection.send(whole[cut:])
        assert len(connection.wire.statuses) == 42 and not connection.wire.ended


# Headers after a body


@pytest.mark.parametrize("trailer", [b"a:b\r\n", b"host:b\r\n"])
async def test_headers_after_a_body_are_not_kept(trailer: bytes) -> None:
    segment = trailer * (100_000 // len(trailer))
    async with connected(ConnectionLimits(max_head_bytes=2_000_000)) as connection:
        await connection.send(CHUNKED % b"quick", b"1\r\nx\r\n0\r\n")
        tracemalloc.start()
        try:
            await connection.send(*[segment] * 10)
            assert tracemalloc.get_traced_memory()[0] < 500_000
        finally:
            tracemalloc.stop()
        await connection.send(b"\r\n")
        assert connection.wire.statuses == [200]


@pytest.mark.parametrize("trailers", [b"a:b\r\n" * 200, b"a" * 1000], ids=["many", "one"])
async def test_a_large_body_earns_no_room_for_headers_after_it(trailers: bytes) -> None:
    async with connected() as connection:
        await connection.send(CHUNKED % b"quick", *[b"2710\r\n%b\r\n" % (b"x" * 10_000)] * 20)
        assert not connection.wire.ended
        await connection.send(b"0\r\n", *[trailers] * 4)
        assert not connection.wire.ended
        await connection.send(trailers)
        assert connection.wire.ended and connection.wire.statuses == [431]


async def test_the_framing_of_a_chunked_body_is_limited() -> None:
    async with connected() as connection:
        await connection.send(CHUNKED % b"quick", *[b"1\r\nx\r\n" * 10_000] * 20)
        assert not connection.wire.ended
        await connection.send(b"1\r\nx\r\n" * 10_000)
        assert connection.wire.statuses == [400] and b"chunks" in connection.wire.sent
        assert connection.wire.ended and not connection.wire.closed


async def test_a_large_body_may_have_as_much_framing() -> None:
    async with connected() as connection:
        await connection.send(CHUNKED % b"quick", *[(b"7\r\n%b\r\n" % (b"x" * 7)) * 5_000] * 50)
        await connection.send(b"0\r\n\r\n")
        assert connection.wire.statuses == [200] and not connection.wire.ended


# Responses before the end of their requests


async def test_connection_answered_early_is_idle_once_its_body_is_there() -> None:
    async with connected() as connection:
        await connection.send(post(b"early", 20) + b"x" * 10)
        assert connection.wire.statuses == [401]
        connection.clock.wait(20)
        await connection.send(b"x" * 10)
        connection.clock.wait(LIMITS.keep_alive_s - 1)
        assert not connection.wire.ended
        connection.clock.wait(2)
        assert connection.wire.closed and connection.wire.statuses == [401]


async def test_connection_answered_early_is_not_idle_during_its_next_request() -> None:
    async with connected() as connection:
        await connection.send(post(b"early", 20) + b"x" * 10, b"x" * 10 + SLOW)
        connection.clock.wait(10 * LIMITS.keep_alive_s)
        connection.app.go.set()
        await settled()
        assert connection.wire.statuses == [401, 200] and not connection.wire.ended


@pytest.mark.parametrize("head", [post(b"early", 100_000), CHUNKED % b"early" + b"186a0\r\n"], ids=["sized", "chunked"])
async def test_early_response_closes_the_connection_if_much_may_follow(head: bytes) -> None:
    """Otherwise clients would send their next request on it, in vain."""
    async with connected() as connection:
        await connection.send(head, b"x" * 10_000)
        assert connection.wire.statuses == [401] and b"connection: close" in connection.wire.sent
        assert connection.wire.ended and not connection.wire.closed
        await connection.send(b"x" * 90_000, GET)
        assert connection.app.handled == 1
        connection.clock.wait(5)
        assert connection.wire.closed and connection.wire.statuses == [401]


async def test_client_that_sends_before_reading_has_limited_time() -> None:
    async with connected() as connection:
        await connection.send(post(b"early", 10**9), *[b"x" * 60_000] * 100)
        assert connection.wire.ended
        for _ in range(18):
            connection.clock.wait(1.5)
            assert connection.wire.reads and not connection.wire.closed
            await connection.send(b"x" * 60_000)
        for _ in range(5):
            connection.clock.wait(1.5)
            await connection.send(b"x" * 60_000)
        assert connection.wire.closed and connection.wire.statuses == [401]


async def test_response_is_sent_to_its_end_despite_unread_request() -> None:
    """Many clients read slowly, and the response may be large."""
    async with connected() as connection:
        connection.wire.unread = 10_500
        await connection.send(post(b"early", 20).replace(b"Host: x", b"Host: x\r\nConnection: close"))
        connection.wire.unread = 10_000
        for _ in range(20):
            connection.clock.wait(2)
            assert not connection.wire.closed
            connection.wire.unread -= 500
        connection.clock.wait(5)
        assert connection.wire.closed


async def test_client_that_stops_reading_on_closing_connection_loses_it() -> None:
    async with connected() as connection:
        connection.wire.unread = 10_000
        await connection.send(post(b"early", 20).replace(b"Host: x", b"Host: x\r\nConnection: close"))
        connection.clock.wait(5)
        assert connection.wire.closed


async def test_early_bytes_earn_no_time_on_a_closing_connection() -> None:
    async with connected() as connection:
        await connection.send(post(b"unread", 20).replace(b"Host: x", b"Host: x\r\nConnection: close"), b"x" * 10)
        connection.app.go.set()
        await settled()
        assert connection.wire.ended and not connection.wire.closed
        connection.clock.wait(2.1)
        assert connection.wire.closed


@pytest.mark.parametrize("close", [b"", b"\r\nConnection: close"])
async def test_remaining_request_time_counts_from_its_response(close: bytes) -> None:
    async with connected() as connection:
        head = post(b"unread", 100_000).replace(b"Host: x", b"Host: x" + close)
        await connection.send(head, b"x" * 70_000)
        assert not connection.wire.reads
        connection.app.go.set()
        await settled()
        assert connection.wire.statuses == [401] and connection.wire.reads
        assert connection.wire.ended == bool(close)
        await connection.send(b"x" * 30_000)
        assert connection.wire.ended == bool(close)


async def test_little_is_read_behind_a_refused_request() -> None:
    async with connected() as connection:
        await connection.send(SLOW + b"nonsense\r\n\r\n", *[b"x" * 60_000] * 20)
        assert not connection.wire.reads
        connection.app.go.set()
        await settled()
        assert connection.wire.statuses == [200] and connection.wire.ended and connection.wire.reads


async def test_nothing_is_parsed_behind_a_refused_request() -> None:
    refused: list[WeftlineError] = []
    async with connected() as connection:
        connection.protocol._all.on_refused = refused.append  # pyright: ignore[reportPrivateUsage]
        await connection.send(GET * 9 + b"nonsense\r\n\r\n" + GET * 100)
        assert len(refused) == 1


async def test_the_rest_of_a_request_behind_many_is_read() -> None:
    many = SLOW + GET * 9
    pad = b"GET /quick HTTP/1.1\r\nHost: x\r\nPad: %b\r\n\r\n"
    many += pad % (b"x" * (1024 - len(many) - len(pad) + 2))
    async with connected() as connection:
        await connection.send(many + b"GET /qui")
        assert not connection.wire.reads
        connection.app.go.set()
        await settled()
        assert connection.wire.statuses == [200] * 11 and connection.wire.reads
        await connection.send(b"ck HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.wire.statuses == [200] * 12


async def test_handler_failing_before_the_body_gives_a_readable_500() -> None:
    async with connected() as connection:
        await connection.send(post(b"broken", 20) + b"x")
        assert connection.wire.statuses == [500] and connection.wire.ended and not connection.wire.closed
        await connection.send(b"x" * 19 + GET)
        connection.clock.wait(5)
        assert connection.wire.closed and connection.app.handled == 1


@pytest.mark.parametrize("rest", [b"", b"1\r\nx\r\n", b"nonsense\r\n"])
async def test_request_has_one_response_even_if_its_body_fails_later(rest: bytes) -> None:
    async with connected() as connection:
        await connection.send(CHUNKED % b"early", b"1\r\nx\r\n")
        connection.clock.wait(1)
        await connection.send(rest)
        connection.clock.wait(LIMITS.body_timeout_s)
        assert connection.wire.statuses == [401] and connection.wire.closed


@pytest.mark.parametrize("header", [b"Connection: close", b"Expect: 100-continue"])
async def test_client_that_still_sends_can_read_the_response(header: bytes) -> None:
    """Closing it at once would reset it, and what the client has not read would be lost."""
    head = post(b"early", 20).replace(b"Host: x\r\n", b"Host: x\r\n%b\r\n" % header)
    async with connected() as connection:
        await connection.send(head)
        assert connection.wire.statuses == [401]
        assert connection.wire.ended and not connection.wire.closed
        await connection.send(b"x" * 10, GET)
        assert connection.app.handled == 1 and not connection.wire.closed
        connection.clock.wait(5)
        assert connection.wire.closed and connection.wire.statuses == [401]


async def test_connection_whose_last_request_is_complete_is_closed_at_once() -> None:
    async with connected() as connection:
        await connection.send(b"GET /quick HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert connection.wire.statuses == [200] and connection.wire.closed


# Requests that wait for others


@pytest.mark.parametrize("segments", [1, 7, 1000])
async def test_requests_wait_behind_a_slow_one_in_limited_number(segments: int) -> None:
    data = SLOW + b"".join([GET, post(b"quick", 6) + b"/1.1/1"] * 500)
    size = len(data) // segments + 1
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    async with connected() as connection:
        while parts and connection.wire.reads:
            await connection.send(parts.pop(0))
        assert exchanges() < 50
        assert not connection.wire.reads and connection.app.handled == 1
        connection.clock.wait(10 * LIMITS.body_timeout_s)
        connection.app.go.set()
        for _ in range(5_000):
            await asyncio.sleep(0)
            if parts and connection.wire.reads:
                await connection.send(parts.pop(0))
        assert connection.wire.statuses == [200] * 1001 and connection.wire.reads
        assert not connection.wire.ended
        connection.clock.wait(2 * LIMITS.keep_alive_s)
        assert connection.wire.closed


async def test_listening_handler_admits_nobody_while_too_many_wait() -> None:
    """As `receive` does, which resumes reading to learn whether the client is gone."""
    async with connected() as connection:
        await connection.send(SLOW + GET * 8)
        connection.protocol.transport.resume_reading()
        assert connection.wire.reads
        for _ in range(10):  # though a transport that obeys sends no more after the first
            await connection.send(GET * 3)
            connection.protocol.transport.resume_reading()
            assert not connection.wire.reads
        assert exchanges() < 20
        connection.clock.wait(10 * LIMITS.body_timeout_s)
        connection.app.go.set()
        await settled()
        assert connection.wire.statuses == [200] * 39 and not connection.wire.ended and connection.wire.reads


async def test_client_that_sends_endlessly_is_read_as_it_is_answered() -> None:
    """Every response, and every handler that listens, asks for more of it."""
    segment = GET * 1000
    async with connected() as connection:
        sent = 0
        for _ in range(200):
            if connection.wire.reads:
                connection.protocol.data_received(segment)
                sent += len(segment)
            await asyncio.sleep(0)
        assert connection.app.handled > 20
        assert sent <= connection.app.handled * len(GET) + len(segment)


@pytest.mark.parametrize("count", [1, 8, 100])
async def test_incomplete_request_gets_its_time_after_earlier_ones(count: int) -> None:
    async with connected() as connection:
        await connection.send(SLOW + GET * count + b"GET /qui")
        if count > 8:
            connection.protocol.transport.resume_reading()
        connection.clock.wait(10.9 * LIMITS.head_timeout_s)
        connection.app.go.set()
        await settled()
        connection.clock.wait(0.9 * LIMITS.head_timeout_s)
        assert connection.wire.statuses == [200] * (1 + count) and not connection.wire.ended
        connection.clock.wait(0.2 * LIMITS.head_timeout_s)
        assert connection.wire.statuses == [200] * (1 + count) + [408] and connection.wire.ended


async def test_a_body_behind_another_request_has_its_time_after_it() -> None:
    async with connected() as connection:
        await connection.send(SLOW + post(b"quick", 2) + b"x")
        connection.clock.wait(10 * LIMITS.body_timeout_s)
        connection.app.go.set()
        await settled()
        await connection.send(b"x")
        assert connection.wire.statuses == [200, 200] and not connection.wire.ended


@pytest.mark.parametrize(
    "rest",
    [
        b"nonsense\r\n\r\n",
        b"GET /qui",
        CHUNKED % b"quick" + b"nonsense\r\n",
        GET + CHUNKED % b"quick" + b"nonsense\r\n",
    ],
)
async def test_slow_response_is_sent_despite_a_refused_next_request(rest: bytes) -> None:
    async with connected() as connection:
        await connection.send(SLOW + rest)
        connection.clock.wait(10 * LIMITS.body_timeout_s)
        assert not connection.wire.ended
        connection.app.go.set()
        await settled()
        assert connection.wire.statuses == [200] * (1 + rest.startswith(GET))
        assert connection.wire.ended and not connection.wire.closed
        assert connection.app.handled == len(connection.wire.statuses)
        connection.clock.wait(5)
        assert connection.wire.closed


async def test_refused_client_is_not_told_to_continue() -> None:
    head = post(b"slow", 20).replace(b"Host: x\r\n", b"Host: x\r\nExpect: 100-continue\r\n")
    async with connected() as connection:
        await connection.send(head)
        connection.clock.wait(LIMITS.body_pause_s + 1)
        assert connection.wire.statuses == [408] and not connection.wire.closed
        connection.app.go.set()
        await settled()
        assert connection.wire.statuses == [408]


# Connections that are gone


async def test_lost_connection_releases_unparsed_data() -> None:
    connection = Connection(LIMITS)
    tracemalloc.start()
    try:
        await connection.send(SLOW + GET * 30_000)
        assert tracemalloc.get_traced_memory()[0] > 900_000
        connection.protocol.connection_lost(None)
        await settled()
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    connection.app.go.set()
    await settled()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("aborted", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        SLOW + post(b"quick", 1000) + b"x" * 999,
        SLOW + (post(b"quick", 1000) + b"x" * 1000) * 20,
        b"GET /slow HTTP/1.1\r\n\r\n",
        SLOW + b"GET /quick HTTP/1.1\r\n\r\n",
        SLOW.replace(b"Host", b"Connection: upgrade\r\nUpgrade: h2c\r\nHost") + GET,
        post(b"early", 2) + b"x",
        post(b"slow", 2) + b"x",
        CHUNKED % b"early" + b"1\r\nx\r\n0\r\na:b\r\n",
        GET,
    ],
)
def test_nothing_of_a_lost_connection_is_kept(
    data: bytes, aborted: bool, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def lose() -> None:
        loop, app = asyncio.get_running_loop(), App()
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            protocol = protocol_of(app, ConnectionLimits(), loop)
            gone = weakref.ref(protocol)
            transport = (await loop.create_connection(lambda protocol=protocol: protocol, sock=ours))[0]
            await loop.sock_sendall(theirs, data)
            await settled()
            if aborted:
                protocol.abort()
            else:
                theirs.close()
            del protocol, transport
            app.go.set()
            await settled()
            assert gone() is None
        assert exchanges() == 0

    with asyncio.Runner(loop_factory=new_loop) as runner, without_collector():
        runner.run(lose())
