"""What people say to a run that is under way: messages, each taken once, and pauses that are refused."""

from __future__ import annotations

import pytest

from .kit import Api, Json, check_error, local_tool, of_type
from .test_awaits import key_id

PEER = local_tool("peer")


async def test_message_steers_the_next_turn_and_follow_up_the_end(api: Api) -> None:
    run = await api.start("steered", tools=[PEER])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        later = {"text": "And then?", "mode": "follow_up"}
        first = await api.post(f"agent-runs/{run}/messages", later)
        second = await api.post(f"agent-runs/{run}/messages", {"text": "Be quick.", "labels": {"ticket": "7"}})
        assert first.status == second.status == 200
        assert set(first.json) == {"ok", "id", "by"} and first.json["by"] == await key_id(api)
        assert first.json["id"] != second.json["id"]
        assert (await api.answer(run, call["toolUseId"], result="done")).status == 200
        frames = await stream.rest()
    assert [frame["texts"] for frame in of_type(frames, "messages_taken")] == [["Be quick."], ["And then?"]]


async def test_a_message_that_is_sent_again_is_taken_once(api: Api) -> None:
    run = await api.start("steered", tools=[PEER])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        once = {"Idempotency-Key": "a"}
        sent: Json = {"text": "Be quick."}
        first = await api.post(f"agent-runs/{run}/messages", sent, headers=once)
        again = await api.post(f"agent-runs/{run}/messages", sent, headers=once)
        assert first.json == again.json
        other = await api.post(f"agent-runs/{run}/messages", {"text": "Be slow."}, headers=once)
        check_error(other, 409, "idempotency_conflict")
        assert (await api.answer(run, call["toolUseId"], result="done")).status == 200
        frames = await stream.rest()
    assert [frame["texts"] for frame in of_type(frames, "messages_taken")] == [["Be quick."]]


async def test_a_message_that_a_run_cannot_take_is_refused(api: Api) -> None:
    run = await api.start("steered", tools=[PEER])
    refused: list[tuple[Json, str]] = [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": 7}, "text"),
        ({"text": "a", "mode": "shout"}, "mode"),
        ({"text": "a", "labels": {"b": 1}}, "labels.b"),
    ]
    for body, path in refused:
        error = check_error(await api.post(f"agent-runs/{run}/messages", body), 400, "invalid_request")
        assert [issue["path"] for issue in error["issues"]] == [path]
    for bomb in (b'{"text": "\\ud800", "labels": {"\\udfff": "\\ud800"}}', b"{", b"[]", b'{"text": NaN}', b"\xff"):
        reply = await api.post(f"agent-runs/{run}/messages", data=bomb)
        assert reply.status in (200, 400), reply.body
    large = await api.post(f"agent-runs/{run}/messages", data=b" " * (5 * 1024 * 1024))
    check_error(large, 413, "body_too_large")
    odd = await api.post(f"agent-runs/{run}/messages", {"text": "a", "lable": {}})
    assert [warning["path"] for warning in odd.json["warnings"]] == ["lable"]
    await api.cancel(run)
    late = check_error(await api.post(f"agent-runs/{run}/messages", {"text": "a"}), 409, "run_terminal")
    assert late["reason"] == "completed_run"
    unknown = await api.post("agent-runs/run_1000000000000000/messages", {"text": "a"})
    assert check_error(unknown, 404, "not_found")["reason"] == "unknown_run"


async def test_a_pause_says_why_however_long_its_reason(api: Api) -> None:
    """So long that the state is stored along with it."""
    reason = "lunch, " * 1000
    run = await api.start("looper", tools=[local_tool()])
    async with api.stream(run) as stream:
        await stream.until("local_tool_call")
        assert (await api.post(f"agent-runs/{run}/pause", {"reason": reason})).status == 200
        assert (await api.snapshot(run))["reason"] == reason
        await api.cancel(run)


@pytest.mark.requirement("run.pause.refused")
async def test_impossible_pause_is_refused_and_a_second_adds_nothing(api: Api) -> None:
    undisturbed = await api.start("looper", tools=[local_tool()], policy={"interruptsAllowed": False})
    async with api.stream(undisturbed) as stream:
        await stream.until("local_tool_call")
        check_error(await api.post(f"agent-runs/{undisturbed}/pause"), 403, "interrupts_not_allowed")
        assert (await api.snapshot(undisturbed))["paused"] is False
        await api.cancel(undisturbed)
        frames = await stream.rest()
    assert not of_type(frames, "run_paused")

    run = await api.start("steered", tools=[PEER])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        check_error(await api.post(f"agent-runs/{run}/resume"), 409, "not_paused")
        for reason in ("lunch", "again"):
            assert (await api.post(f"agent-runs/{run}/pause", {"reason": reason})).status == 200
        assert (await api.post(f"agent-runs/{run}/resume")).status == 200
        check_error(await api.post(f"agent-runs/{run}/resume"), 409, "not_paused")
        await api.answer(run, call["toolUseId"], result="done")
        frames = await stream.rest()
    assert [frame["reason"] for frame in of_type(frames, "run_paused")] == ["lunch"]
    assert len(of_type(frames, "run_resumed")) == 1

    for verb in ("pause", "resume"):
        ended = check_error(await api.post(f"agent-runs/{run}/{verb}"), 409, "run_terminal")
        unknown = check_error(await api.post(f"agent-runs/run_1000000000000000/{verb}"), 404, "not_found")
        assert (ended["reason"], unknown["reason"]) == ("completed_run", "unknown_run")
