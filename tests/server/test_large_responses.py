"""Responses that nobody reads: they wait in pieces, and so much of them is held and no more."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from weftline.errors import RateLimited
from weftline.server.http import PIECE_BYTES, Request, Response, send_response
from weftline.server.large import LargeResponses
from weftline.trace_context import RequestInfo

from .kit import TIMEOUT_S, Api, check_error

MB = 1024 * 1024


class Client:
    """Takes so many messages, and then none."""

    def __init__(self, takes: int) -> None:
        self.takes = takes
        self.got: list[Any] = []

    async def send(self, message: Any) -> None:
        if len(self.got) >= self.takes:
            await asyncio.get_running_loop().create_future()
        self.got.append(message)

    def request(self) -> Request:
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": []}
        return Request(scope, self.send, self.send, RequestInfo("req_1"))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
async def test_response_is_sent_whole_in_pieces_of_bounded_size(size: int) -> None:
    client = Client(100)
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    await send_response(client.request(), Response(body))
    head, *pieces = client.got
    assert (b"content-length", b"%d" % size) in head["headers"]
    assert b"".join(piece["body"] for piece in pieces) == body
    assert max(len(piece["body"]) for piece in pieces) <= PIECE_BYTES
    assert [bool(piece.get("more_body")) for piece in pieces] == [True] * (len(pieces) - 1) + [False]


async def test_a_workspace_holds_its_part_or_one_response() -> None:
    large = LargeResponses(max_bytes=100, max_bytes_per_workspace=30)
    first = large.hold("acme", 60)
    with pytest.raises(RateLimited) as refused:
        large.hold("acme", 1)
    assert refused.value.code == "too_many_large_responses" and refused.value.status == 429
    other = large.hold("beta", 30)
    with pytest.raises(RateLimited):
        large.hold("gamma", 20)
    first.free()
    first.free()
    large.hold("gamma", 20).free()
    other.free()
    assert large.held == 0


async def test_waiter_gets_room_when_free_or_is_refused() -> None:
    large = LargeResponses(max_bytes=100, max_bytes_per_workspace=30)
    first = large.hold("acme", 30)
    waiting = asyncio.create_task(large.wait_to_hold("acme", 30))
    await asyncio.sleep(0)
    assert not waiting.done()
    first.free()
    async with asyncio.timeout(TIMEOUT_S):
        second = await waiting
    impatient = LargeResponses(max_bytes=100, max_bytes_per_workspace=30, wait_s=0)
    impatient.hold("acme", 30)
    with pytest.raises(RateLimited):
        await impatient.wait_to_hold("acme", 30)
    second.free()
    assert large.held == 0


async def test_a_client_that_is_too_slow_loses_its_response() -> None:
    large = LargeResponses(grace_s=0)
    room = large.hold("acme", 10)
    with pytest.raises(ConnectionResetError):
        await large.send(Client(1).request(), Response(b"x" * 10), room)
    assert large.held == 0


async def test_snapshots_that_nobody_reads_do_not_keep_others_from_theirs(api: Api, other_api: Api) -> None:
    prompt = "x" * (8 * MB - 200_000)
    large = await api.start("hello", prompt=prompt)
    small = await api.start("hello")
    theirs = await other_api.start("hello", prompt="y" * MB)
    agent = (await api.post("agents", {"name": "a", "spec": {"systemPrompt": "z" * 900_000}})).json["id"]
    address = urlsplit(api.url)
    head = f"GET {api.base}/agent-runs/{large} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n\r\n"
    unread: list[socket.socket] = []
    try:
        for _ in range(2):  # nearly 16 MB each, so that two of them are what a workspace may have
            one = socket.create_connection((address.hostname or "", address.port or 0))
            unread.append(one)
            one.sendall(head.encode())
            await asyncio.to_thread(one.recv, 1)
        refused = await api.get(f"agents/{agent}")
        assert check_error(refused, 429, "too_many_large_responses") and refused.headers["Retry-After"]
        third = asyncio.create_task(api.snapshot(large))
        # So does what reads as much and sends little.
        fork = asyncio.create_task(api.post(f"agent-runs/{large}/fork", {"turn": 9}))
        budgets = asyncio.create_task(api.get(f"agent-runs/{large}/budgets"))
        assert (await api.snapshot(small))["status"]
        assert (await other_api.snapshot(theirs))["spec"]["prompt"] == "y" * MB
        # Long enough for a server that does not make them wait, and nothing that a busy one could fail.
        done, _ = await asyncio.wait({third, fork, budgets}, timeout=1)
        assert not done
    finally:
        for one in unread:
            one.close()
    # The room of the clients that went away is free again, and who waited for it has it.
    assert (await third)["spec"]["prompt"] == prompt
    assert check_error(await fork, 400, "invalid_request") and (await budgets).json == {"budgets": []}
    assert (await api.get(f"agents/{agent}")).status == 200


async def test_workspace_limits_its_concurrent_pages_without_delaying_others(api: Api, other_api: Api) -> None:
    pages = await asyncio.gather(*[api.get("agent-runs") for _ in range(20)], *[api.get("awaits") for _ in range(20)])
    assert {page.status for page in pages} == {200} and (await other_api.get("agent-runs")).status == 200
