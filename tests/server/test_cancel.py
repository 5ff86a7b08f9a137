"""Cancel: at once, once, and with a receipt."""

from __future__ import annotations

import asyncio

import pytest

from .kit import Api, Json, local_tool, of_type, types

TOOLS = [{"kind": "mantyx_plugin", "name": name} for name in ("echo", "hold", "peek")]


@pytest.mark.requirement("wire.cancel.immediate", "wire.event.cancelled")
async def test_cancel_stops_a_model_call_at_once(api: Api) -> None:
    run = await api.start("stuck")
    async with api.stream(run) as stream:
        await stream.until("assistant_delta")
        reply = await api.cancel(run)
        assert reply.status == 200 and reply.json["ok"] is True and reply.json["status"] == "cancelled"
        frames = await stream.rest()
    assert types(frames, without=()) == ["started", "assistant_delta", "cancelled"]
    assert frames[-1]["reason"] == "user"
    shown = await api.snapshot(run)
    assert (shown["status"], shown["error"], shown["failureReason"], shown["finalText"]) == (
        "cancelled",
        None,
        None,
        None,
    )
    assert shown["tokens"]["inputTokens"] >= 0 and shown["turns"] == 1


@pytest.mark.requirement("wire.cancel.immediate")
async def test_cancel_ends_a_wait_for_a_client_at_once(api: Api) -> None:
    run = await api.start("lookup", tools=[local_tool()])
    async with api.stream(run) as stream:
        await stream.until("local_tool_call")
        await api.cancel(run)
        assert (await stream.rest())[-1].type == "cancelled"


@pytest.mark.requirement("wire.cancel.idempotent")
async def test_cancel_may_be_repeated_and_adds_nothing(api: Api) -> None:
    run = await api.start("stuck")
    replies = await asyncio.gather(*(api.cancel(run) for _ in range(6)))
    assert {reply.body for reply in replies} == {replies[0].body}
    before = [frame.raw for frame in await api.events(run)]
    assert (await api.cancel(run)).body == replies[0].body
    assert [frame.raw for frame in await api.events(run)] == before


@pytest.mark.requirement("wire.cancel.idempotent")
@pytest.mark.parametrize(("script", "status"), [("hello", "succeeded"), ("cut", "failed")])
async def test_cancelling_a_run_that_has_ended_says_how_it_ended(api: Api, script: str, status: str) -> None:
    run = await api.start(script)
    before = [frame.raw for frame in await api.events(run)]
    for _ in range(2):
        assert (await api.cancel(run)).json["status"] == status
    assert [frame.raw for frame in await api.events(run)] == before
    assert (await api.snapshot(run))["status"] == status


def named(calls: list[Json]) -> list[str]:
    return [call["name"] for call in calls]


@pytest.mark.requirement("wire.cancel.report")
@pytest.mark.parametrize(("script", "in_doubt", "stopped"), [("hold", ["hold"], []), ("peek", [], ["peek"])])
async def test_the_receipt_tells_finished_stopped_and_doubtful_calls_apart(
    api: Api, script: str, in_doubt: list[str], stopped: list[str]
) -> None:
    run = await api.start(script, tools=TOOLS)
    async with api.stream(run) as stream:
        first = await stream.until("tool_result")
        begun = await stream.until("tool_call")
        receipt = (await api.cancel(run)).json
        frames = await stream.rest()
    assert receipt["finished"] == [{"toolUseId": first["toolUseId"], "name": "echo"}]
    assert named(receipt["inDoubt"]) == in_doubt and named(receipt["stopped"]) == stopped
    listed = [call["toolUseId"] for key in ("finished", "inDoubt", "stopped") for call in receipt[key]]
    assert sorted(listed) == sorted([first["toolUseId"], begun["toolUseId"]])
    assert frames[-1].type == "cancelled" and of_type(frames, "tool_result")[-1]["ok"] is False


async def test_cancel_right_after_create_still_ends_in_one_cancelled_event(api: Api) -> None:
    async def race() -> list[str]:
        run = await api.start("stuck")
        await api.cancel(run)
        return types(await api.events(run))

    for got in await asyncio.gather(*(race() for _ in range(20))):
        assert got == ["started", "cancelled"]
