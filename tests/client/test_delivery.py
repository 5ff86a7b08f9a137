from __future__ import annotations

import asyncio
import threading

import pytest
from aiohttp import web

from weftline.client import AsyncClient, ToolDeliveryFailed, tool

from .stand_in import Behaviour, StandIn, drop, hybrid, reply, stream, success, when

RESULTS = "/agent-runs/run_1/tool-results"
CALL = hybrid(2, "local_tool_call", toolUseId="u1", name="lookup", args={"key": "a"}, kind="local")


class Counted:
    def __init__(self) -> None:
        self.calls = 0
        self.tool = tool(name="lookup")(self.lookup)

    def lookup(self, key: str) -> str:
        self.calls += 1
        return "found"


@pytest.mark.requirement("wire.client.delivery")
async def test_an_answer_is_handed_over_again_until_it_is_taken(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    done = threading.Event()
    stand_in.run("run_1", stream(CALL), when(done, stream(success(5))))
    refusals: list[Behaviour] = [
        drop,
        reply({"error": "rate_limited"}, status=429, headers={"Retry-After": "0"}),
        *(reply({"error": "x"}, status=status) for status in (500, 502, 503, 504)),
        reply(b"<html>bad gateway</html>", status=502),
    ]
    stand_in.on("POST", RESULTS, *refusals, reply({"ok": True}))
    counted = Counted()
    run = await to_stand_in.start("hi", tools=[counted.tool])
    asked = await asyncio.to_thread(stand_in.wait_for, "POST", RESULTS, len(refusals) + 1)
    done.set()
    assert (await run.result()).text == "done"
    assert {one.body for one in asked} == {b'{"toolUseId":"u1","result":"found"}'}
    assert len({one.headers["Idempotency-Key"] for one in asked}) == 1
    assert counted.calls == 1


@pytest.mark.requirement("wire.client.delivery")
@pytest.mark.parametrize(("status", "code"), [(404, "unknown_tool_use"), (409, "run_terminal")])
async def test_an_answer_that_nobody_waits_for_counts_as_delivered(
    to_stand_in: AsyncClient, stand_in: StandIn, status: int, code: str
) -> None:
    done = threading.Event()
    stand_in.run("run_1", stream(CALL), when(done, stream(success(5))))
    stand_in.on("POST", RESULTS, reply({"error": code, "code": code}, status=status))
    run = await to_stand_in.start("hi", tools=[Counted().tool])
    await asyncio.to_thread(stand_in.wait_for, "POST", RESULTS)
    done.set()
    result = await run.result()
    assert not any(isinstance(event, ToolDeliveryFailed) for event in result.events)
    assert len(stand_in.to("POST", RESULTS)) == 1


async def test_an_answer_that_is_refused_for_good_is_an_event(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    done = threading.Event()
    stand_in.run("run_1", stream(CALL), when(done, stream(success(5))))
    stand_in.on("POST", RESULTS, reply({"error": "forbidden", "code": "forbidden"}, status=403))
    async with await to_stand_in.start("hi", tools=[Counted().tool]) as run:
        async for event in run:
            if isinstance(event, ToolDeliveryFailed):
                assert event.error is not None
                assert (event.error.run_id, event.error.tool_use_id) == ("run_1", "u1")
                done.set()
        assert done.is_set()


async def test_the_end_of_the_run_ends_the_delivery(to_stand_in: AsyncClient, stand_in: StandIn) -> None:
    refused = threading.Event()

    async def refuse(request: web.Request) -> web.StreamResponse:
        refused.set()
        return await drop(request)

    stand_in.run("run_1", stream(CALL), when(refused, stream(success(5))))
    stand_in.on("POST", RESULTS, refuse)
    assert (await to_stand_in.run("hi", tools=[Counted().tool])).text == "done"
