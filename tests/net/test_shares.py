"""Each workspace has a share of the requests that are under way at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from weftline.net.dial import MAX_AT_ONCE, Dialer, Shares
from weftline.net.egress import Egress
from weftline.net.errors import RequestFailed

from .kit import HELLO, WAIT_S, answering, dialled, listening, read_request


@pytest.fixture
async def dialer() -> AsyncGenerator[Dialer]:
    opened = Dialer(Egress("private"))
    yield opened
    await opened.aclose()


async def test_a_workspace_whose_peers_hang_holds_up_no_other(dialer: Dialer) -> None:
    held = asyncio.Semaphore(0)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        held.release()
        await reader.read()

    async with listening(hang) as bad, listening(answering(HELLO)) as good, asyncio.timeout(WAIT_S):
        mine, theirs = dialer.of(1), dialer.of(2)
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(dialled(mine, "POST", f"http://127.0.0.1:{bad}/")) for _ in range(MAX_AT_ONCE)]
            for _ in calls:
                await held.acquire()
            assert await dialled(theirs, "POST", f"http://127.0.0.1:{good}/") == b"hello"
            async with mine.request("GET", f"http://127.0.0.1:{good}/", timeout_s=None, listens=True) as reply:
                assert await reply.read() == b"hello"
            with pytest.raises(RequestFailed) as failed:
                async with mine.request("POST", f"http://127.0.0.1:{good}/", timeout_s=0.02):
                    raise AssertionError("it was sent")
            # A call that was never sent cannot have taken effect, and says so.
            assert (failed.value.reason, failed.value.sent) == ("busy", False)
            assert "waited 0.01 s for a free connection" in failed.value.message
            waiting = group.create_task(dialled(mine, "POST", f"http://127.0.0.1:{good}/"))
            await asyncio.sleep(0)
            calls[0].cancel()
            assert await waiting == b"hello"
            for call in calls:
                call.cancel()


async def test_longest_waiting_come_first_with_their_time_left() -> None:
    shares = Shares(max_at_once=1)
    order: list[int] = []

    async def use(number: int) -> None:
        async with shares.turn("acme", timeout_s=WAIT_S) as left_s:
            assert left_s is not None and left_s < WAIT_S
            order.append(number)

    async with asyncio.TaskGroup() as group, shares.turn("acme", timeout_s=None) as left_s:
        assert left_s is None
        for number in range(5):
            group.create_task(use(number))
            await asyncio.sleep(0)
    assert order == [*range(5)]
