"""Streams with a profile: which events they have, what each is about, and how a reader goes on in the middle."""

from __future__ import annotations

from typing import Any

import pytest

from weftline.client.events import parse_frame
from weftline.events.wire import DETAILS
from weftline.net.sse import SseEvent, SseParser

from .kit import Api, Json, check_error, local_tool

ECHO = {"kind": "server", "name": "echo"}
ABOUT = {"runId", "agent", "sessionId", "turnId", "at", "key"}


async def frames(api: Api, run: str, profile: str, **query: Any) -> list[SseEvent]:
    more = "".join([f"&{name}={value}" for name, value in query.items()])
    reply = await api.get(f"agent-runs/{run}/stream?profile={profile}{more}")
    assert reply.status == 200, reply.body
    return list(SseParser().feed(reply.body))


def bodies(found: list[SseEvent]) -> list[Json]:
    return [parse_frame(sent, run_id="").data | {"type": sent.event} for sent in found]


@pytest.mark.requirement("run.event.profile")
async def test_a_stream_has_the_events_of_its_profile(api: Api) -> None:
    run = await api.start("echo", tools=[ECHO])
    plain = await api.events(run)
    default = await api.get(f"agent-runs/{run}/stream?profile=default")
    assert default.body == b"".join([frame.raw + b"\n\n" for frame in plain])
    assert not {frame.type for frame in plain} & DETAILS.keys()

    whole = bodies(await frames(api, run, "all"))
    assert [one["type"] for one in whole if one["type"] not in DETAILS] == [frame.type for frame in plain]
    assert [one["type"] for one in whole if one["type"] in DETAILS] == [
        *("run_phase_changed", "run_phase_changed", "usage", "run_phase_changed"),
        *("run_phase_changed", "usage", "run_phase_changed"),
    ]
    assert [one["type"] for one in whole][:2] == ["started", "run_phase_changed"]
    assert [one["type"] for one in whole][-2:] == ["run_phase_changed", "result"]
    assert all(one.keys() >= ABOUT and one["runId"] == one["turnId"] == run for one in whole)
    assert len({one["key"] for one in whole}) == len(whole)

    metrics = bodies(await frames(api, run, "metrics"))
    assert {one["type"] for one in metrics} == {"usage", "run_phase_changed", "result"}
    assert metrics == [one for one in whole if one["type"] in ("usage", "run_phase_changed", "result")]
    some = bodies(await frames(api, run, "tool_call,usage"))
    assert [one["type"] for one in some] == ["usage", "tool_call", "usage", "result"]

    for wrong, words in [
        ("al", "profile: 'al' is neither a profile (default, all, metrics) nor a type of event. Did you mean 'all'?"),
        ("usage,usag", "profile: 'usag' is neither a profile (default, all, metrics) nor a type of event."),
        ("", "profile: '' is neither a profile (default, all, metrics) nor a type of event."),
    ]:
        error = check_error(await api.get(f"agent-runs/{run}/stream?profile={wrong}"), 400, "invalid_request")
        assert error["message"].startswith(words)
    error = check_error(
        await api.post("agent-runs?profile=nope", {"prompt": "x"}, headers={"accept": "text/event-stream"}),
        400,
        "invalid_request",
    )
    assert "'nope' is neither a profile" in error["message"]


async def test_only_the_last_frame_of_an_entry_has_an_id(api: Api) -> None:
    run = await api.start("echo", tools=[ECHO])
    raw = (await api.get(f"agent-runs/{run}/stream?profile=all")).body
    whole = bodies(list(SseParser().feed(raw)))
    lines = [frame.split(b"\n") for frame in raw.rstrip().split(b"\n\n")]
    seqs = [int(one["key"].partition(".")[0]) for one in whole]
    for place, (frame, seq) in enumerate(zip(lines, seqs, strict=True)):
        if seq in seqs[place + 1 :]:
            assert len(frame) == 2 and frame[0].startswith(b"event: ")
            continue
        assert frame[0] == b"id: %d" % seq
        if seq < seqs[-1]:
            assert bodies(await frames(api, run, "all", lastSeq=seq)) == whole[place + 1 :]


async def test_run_is_created_and_followed_with_profile_in_one_request(api: Api) -> None:
    spec = {"prompt": "x", "modelId": "scripted:hello"}
    reply = await api.post("agent-runs?profile=metrics", spec, headers={"accept": "text/event-stream"})
    kinds = [sent.event for sent in SseParser().feed(reply.body)]
    assert kinds == [*("run_phase_changed",) * 2, "usage", "run_phase_changed", "result"]


async def test_client_call_and_decision_are_reported_as_awaits(api: Api) -> None:
    run = await api.start("lookup", tools=[local_tool()])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        await api.answer(run, call["toolUseId"], result="x")
        await stream.rest()
    [external] = [one for one in bodies(await frames(api, run, "await_external_tools")) if one["type"] != "result"]
    assert external["awaitId"] == "external_0"
    assert external["items"] == [{"name": "lookup", "toolUseId": call["toolUseId"], "args": call["args"]}]
    paying = await api.start("pay", tools=[{"kind": "server", "name": "pay"}])
    async with api.stream(paying) as stream:
        asked = await stream.until("await_opened")
        await api.post(f"agent-runs/{paying}/awaits/{asked['awaitId']}", {"outcome": "denied", "reason": "No."})
        await stream.rest()
    paused, resumed, _end = bodies(await frames(api, paying, "run_paused,run_resumed"))
    assert (paused["type"], paused["reason"], paused["requestedBy"]) == ("run_paused", "await", "runtime")
    assert (paused["awaits"], resumed["notes"]) == ([asked["awaitId"]], "await_completed")
    seen = bodies(await frames(api, paying, "await_confirmation,tool_authorization", lastSeq=asked.seq))
    decided, _end = seen
    assert decided["type"] == "tool_authorization" and decided["approved"] is False
    assert (decided["name"], decided["summary"]) == ("pay", asked["question"])
    assert decided["approvedBy"].startswith("key:")


async def test_run_is_shown_with_the_id_of_its_turn(api: Api) -> None:
    run = await api.start("pay", tools=[{"kind": "server", "name": "pay"}], turnId="turn-7")
    async with api.stream(run) as stream:
        asked = await stream.until("await_opened")
        half = (await api.get(f"agent-runs/{run}/snapshot")).json
        await api.post(f"agent-runs/{run}/awaits/{asked['awaitId']}", {"outcome": "approved"})
        await stream.rest()
    whole = (await api.get(f"agent-runs/{run}/snapshot")).json
    assert (half["runId"], half["turnId"], half["sessionId"], half["labels"]) == (run, "turn-7", None, {})
    assert (half["status"], half["phase"]) == ("paused", "executing_tools")
    [question] = half["awaits"]
    assert (question["kind"], question["awaitId"]) == ("await_confirmation", asked["awaitId"])
    assert question["payload"]["args"] == asked["args"] and question["payload"]["question"] == asked["question"]
    assert (whole["status"], whole["phase"], whole["awaits"]) == ("succeeded", "succeeded", [])
    [call] = whole["toolCalls"]
    assert (call["name"], call["error"], call["childRunId"]) == ("pay", None, None)
    assert call["scheduledAt"] <= call["startedAt"] <= call["completedAt"] <= whole["updatedAt"]
    assert sum(used["inputTokens"] for used in whole["tokensByModel"].values()) == whole["tokens"]["inputTokens"]
    assert {one["turnId"] for one in bodies(await frames(api, run, "all"))} == {"turn-7"}
    check_error(await api.get("agent-runs/run_1000000000000000/snapshot"), 404, "not_found")


async def test_id_of_turn_goes_with_message_and_not_with_session(api: Api) -> None:
    session = await api.session("hello")
    run = await api.send(session, turnId="turn-8")
    await api.events(run)
    shown = (await api.get(f"agent-runs/{run}/snapshot")).json
    assert (shown["turnId"], shown["sessionId"]) == ("turn-8", session)
    reply = await api.post("agent-sessions", {"modelId": "scripted:hello", "turnId": "x"})
    assert "turnId: a session is created without input" in check_error(reply, 400, "invalid_request")["message"]
    for wrong in ("", "x" * 256, 7, "a\x00"):
        reply = await api.post("agent-runs", {"modelId": "scripted:hello", "prompt": "x", "turnId": wrong})
        assert check_error(reply, 400, "invalid_request")["message"].startswith("turnId: ")
