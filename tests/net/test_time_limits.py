"""How long a request may take: to connect, to the first byte, between two pieces, in all."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol
from campaigns.simulation.loop import VirtualLoop
from msgspec.structs import replace

from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.net.errors import RequestFailed, TimeLimits
from weftline.net.response import BodyWatch, HttpResponse

from .kit import HEAD, HELLO, LIMITS, answering, chunk, post, read_request, serving, transport

SHORT_S = 0.05


@contextmanager
def black_hole(address: str = "127.0.0.1", port: int = 0) -> Generator[int]:
    """A port that takes no connection and refuses none: nobody accepts, and the queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_black_hole_is_given_up_after_time_to_connect() -> None:
    with black_hole() as port:
        async with transport() as http:
            with pytest.raises(RequestFailed) as raised:
                await post(http, f"http://127.0.0.1:{port}/", limits=replace(LIMITS, connect_s=SHORT_S))
    assert (raised.value.reason, raised.value.sent) == ("timeout", False)
    assert raised.value.message == "Could not connect to 127.0.0.1 within 0.05 s."


async def test_a_handshake_that_nobody_answers_counts_as_connecting() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(serve) as url, transport() as http:
        with pytest.raises(RequestFailed) as raised:
            await post(http, url.replace("http:", "https:"), limits=replace(LIMITS, connect_s=SHORT_S))
    assert (raised.value.reason, raised.value.sent) == ("timeout", False)


async def test_a_name_lookup_that_hangs_counts_as_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def resolve(*_: object, **__: object) -> list[tuple[Any, ...]]:
        over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with transport() as http:
        with pytest.raises(RequestFailed) as raised:
            await post(http, "http://model.test/", limits=replace(LIMITS, connect_s=SHORT_S))
        over.set()
    assert (raised.value.reason, raised.value.sent) == ("timeout", False)


async def test_another_address_is_tried_while_the_first_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, *_: object, **__: object) -> list[tuple[Any, ...]]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
            for address in ("127.0.0.2", "127.0.0.1")
        ]

    async with serving(answering(HELLO)) as url, transport() as http:
        port = int(url.partition("127.0.0.1:")[2].partition("/")[0])
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        with black_hole("127.0.0.2", port):
            assert await post(http, url.replace("127.0.0.1", "model.test")) == b"hello"


async def test_silent_server_is_given_up_after_time_to_first_byte() -> None:
    async with serving(answering(b"", stay=True)) as url, transport() as http:
        with pytest.raises(RequestFailed) as raised:
            await post(http, url, limits=replace(LIMITS, first_byte_s=SHORT_S))
    assert (raised.value.reason, raised.value.sent) == ("timeout", True)
    assert raised.value.message == "127.0.0.1 did not answer within 0.05 s."


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (replace(LIMITS, idle_s=SHORT_S), "127.0.0.1 sent nothing for 0.05 s in the middle of its response."),
        (replace(LIMITS, idle_s=None, total_s=0.5), "127.0.0.1 did not finish its response within 0.5 s."),
        (replace(LIMITS, first_byte_s=None, total_s=0.5), "127.0.0.1 did not finish its response within 0.5 s."),
    ],
)
async def test_an_answer_that_stops_is_given_up(limits: TimeLimits, message: str) -> None:
    async with (
        serving(answering(HEAD + chunk(b"one"), stay=True)) as url,
        transport() as http,
        http.post(url, headers={}, body=b"{}", limits=limits) as response,
    ):
        pieces = response.chunks()
        assert await anext(pieces) == b"one"
        with pytest.raises(RequestFailed) as raised:
            await anext(pieces)
    assert (raised.value.reason, raised.value.sent, raised.value.message) == ("timeout", True, message)


async def test_time_in_all_bounds_wait_for_head_too() -> None:
    async with serving(answering(b"", stay=True)) as url, transport() as http:
        with pytest.raises(RequestFailed) as raised:
            await post(http, url, limits=replace(LIMITS, first_byte_s=None, total_s=SHORT_S))
    assert raised.value.reason == "timeout"


async def test_a_connection_that_was_given_up_is_closed() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # on a busy machine it may be given up before all of it is sent
            await read_request(reader)
        assert await reader.read() == b""
        closed.set()

    async with serving(serve) as url, transport() as http:
        with pytest.raises(RequestFailed):
            await post(http, url, limits=replace(LIMITS, first_byte_s=SHORT_S))
        await asyncio.wait_for(closed.wait(), 60)


async def test_an_answer_that_is_here_may_be_read_at_leisure() -> None:
    async with (
        serving(answering(HELLO, stay=True)) as url,
        serving(answering(b"", stay=True)) as silent,
        transport() as http,
        http.post(url, headers={}, body=b"{}", limits=replace(LIMITS, idle_s=2.0, total_s=2.0)) as response,
    ):
        with pytest.raises(RequestFailed):
            await post(http, silent, limits=replace(LIMITS, first_byte_s=2.5))
        assert await response.read() == b"hello"


async def test_dialled_stream_without_time_limit_still_connects_in_time() -> None:
    dialer = Dialer(Egress("private"), connect_s=SHORT_S)
    with black_hole() as port, pytest.raises(RequestFailed) as raised:
        async with dialer.request("GET", f"http://127.0.0.1:{port}/", timeout_s=None):
            pytest.fail("nobody is there")
    assert (raised.value.reason, raised.value.sent) == ("timeout", False)
    await dialer.aclose()


def test_the_defaults_are_those_of_the_vendors_clients() -> None:
    limits = TimeLimits()
    assert (limits.connect_s, limits.total_s) == (5.0, 600.0)
    assert limits.within(1000.0) is limits
    assert limits.within(7.0) == TimeLimits(total_s=7.0)
    assert TimeLimits(total_s=None).within(7.0).total_s == 7.0


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_limit_is_a_positive_number(seconds: float) -> None:
    with pytest.raises(ValueError, match="idle_s"):
        TimeLimits(idle_s=seconds)


Story = Callable[[aiohttp.StreamReader, TimeLimits], Coroutine[Any, Any, None]]


def in_virtual_time(story: Story, limits: TimeLimits) -> None:
    """Runs a story on a body that nobody sends, on a clock that jumps from timer to timer."""
    loop = VirtualLoop()
    protocol = BaseProtocol(loop)
    protocol.connection_made(asyncio.Transport())
    try:
        loop.run_until_complete(story(aiohttp.StreamReader(protocol, 2**16, loop=loop), limits))
    finally:
        loop.close()


def watching(content: aiohttp.StreamReader, limits: TimeLimits) -> BodyWatch:
    return BodyWatch(content, host="h", limits=limits, started=asyncio.get_running_loop().time())


def arrived(content: aiohttp.StreamReader, limits: TimeLimits) -> HttpResponse:
    head = SimpleNamespace(content=content, status=200, reason="OK", headers={}, closed=True)
    return HttpResponse(
        cast("aiohttp.ClientResponse", head), url="http://h/", host="h", limits=limits, started=0.0, max_bytes=None
    )


def test_a_live_answer_is_never_idle_however_long_it_takes() -> None:
    async def story(content: aiohttp.StreamReader, limits: TimeLimits) -> None:
        watch = watching(content, limits)
        for _ in range(100):
            watch.waiting_since = watch.now()
            await asyncio.sleep(9.0)
        assert content.exception() is None

    in_virtual_time(story, TimeLimits(idle_s=10.0, total_s=None))


def test_only_waiting_is_idle_time() -> None:
    async def story(content: aiohttp.StreamReader, limits: TimeLimits) -> None:
        watch = watching(content, limits)
        await asyncio.sleep(100.0)
        watch.waiting_since = watch.now()
        await asyncio.sleep(9.0)
        assert content.exception() is None
        await asyncio.sleep(11.0)
        assert isinstance(content.exception(), RequestFailed)

    in_virtual_time(story, TimeLimits(idle_s=10.0, total_s=None))


def test_reader_that_takes_its_time_does_not_make_answer_idle() -> None:
    async def story(content: aiohttp.StreamReader, limits: TimeLimits) -> None:
        response = arrived(content, limits)
        for piece in (b"one", b"two"):
            asyncio.get_running_loop().call_later(9.0, content.feed_data, piece)
            assert await anext(response) == piece
            await asyncio.sleep(100.0)
        with pytest.raises(RequestFailed):
            await anext(response)
        # Not before: the waiting for it began when it was asked for.
        assert asyncio.get_running_loop().time() >= 2 * 109.0 + 10.0

    in_virtual_time(story, TimeLimits(idle_s=10.0, total_s=None))


def test_the_time_in_all_ends_a_live_answer() -> None:
    async def story(content: aiohttp.StreamReader, limits: TimeLimits) -> None:
        watch = watching(content, limits)
        for _ in range(9):
            watch.waiting_since = watch.now()
            await asyncio.sleep(1.0)
        assert content.exception() is None
        await asyncio.sleep(1.5)
        assert isinstance(content.exception(), RequestFailed)

    in_virtual_time(story, TimeLimits(idle_s=5.0, total_s=10.0))


def test_nobody_watches_a_body_that_has_ended() -> None:
    async def story(content: aiohttp.StreamReader, limits: TimeLimits) -> None:
        watching(content, limits)
        content.feed_eof()
        await asyncio.sleep(100.0)
        assert content.exception() is None

    in_virtual_time(story, TimeLimits(idle_s=5.0, total_s=10.0))


def test_nobody_watches_an_answer_that_was_given_up() -> None:
    async def story(content: aiohttp.StreamReader, limits: TimeLimits) -> None:
        arrived(content, limits).close()
        await asyncio.sleep(100.0)
        assert content.exception() is None

    in_virtual_time(story, TimeLimits(idle_s=5.0, total_s=10.0))
