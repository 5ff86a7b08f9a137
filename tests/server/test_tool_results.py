"""Answers of clients: accepted once, checked, refused when late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from .kit import Api, Reply, Stream, check_error, local_tool, of_type, types

MB = 1024 * 1024


@asynccontextmanager
async def waiting(api: Api, script: str = "lookup", **spec: Any) -> AsyncGenerator[tuple[str, str, Stream]]:
    """A run that waits for a client's answer: its id, the call's id, and its stream."""
    run = await api.start(script, tools=[local_tool()], **spec)
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        yield run, call["toolUseId"], stream


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (rb"cut \ud83d", "cut \ufffd"),
        (rb"\ud83d\ude00", "😀"),
        (rb"\udc00 \\ud83d", "\ufffd \\ud83d"),
        (rb"a\u0000b \\u0000", "a\ufffdb \\u0000"),
    ],
    ids=["half", "whole", "escaped", "nul"],
)
async def test_half_a_character_in_an_answer_costs_that_character_alone(api: Api, sent: bytes, read: str) -> None:
    async with waiting(api) as (run, call, stream):
        body = b'{"toolUseId":"%s","result":"%s"}' % (call.encode(), sent)
        assert (await api.post(f"agent-runs/{run}/tool-results", data=body)).status == 200
        frames = await stream.rest()
    assert of_type(frames, "local_tool_result_in")[0]["result"] == read
    assert frames[-1]["text"] == f"found {read}"


@pytest.mark.requirement("wire.event.local_call", "wire.event.local_result_in")
async def test_answer_goes_to_model_and_shows_on_stream_once(api: Api) -> None:
    async with waiting(api) as (run, call, stream):
        reply = await api.answer(run, call, result="forty-two")
        assert reply.status == 200 and reply.json == {"ok": True}
        frames = await stream.rest()
    assert types(frames) == [
        "started",
        "assistant_message",
        "local_tool_call",
        "local_tool_result_in",
        "assistant_message",
        "result",
    ]
    named = {"toolUseId": call, "name": "lookup"}
    offer = {"args": {"q": "one"}, "kind": "local", "turn": 0, "displayHint": "Lookup"}
    assert frames[2].payload == {**named, **offer}
    assert frames[3].payload == {**named, "output": "forty-two", "result": "forty-two", "how": "returned"} | {
        "telemetry": {"durationMs": 0}
    }
    assert frames[-1]["text"] == "found forty-two"
    assert [frame.raw for frame in await api.events(run)] == [frame.raw for frame in frames]


@pytest.mark.requirement("wire.toolresult.error")
async def test_an_error_reaches_the_model_and_the_run_goes_on(api: Api) -> None:
    async with waiting(api) as (run, call, stream):
        assert (await api.answer(run, call, error="no such thing")).status == 200
        frames = await stream.rest()
    (failed,) = of_type(frames, "local_tool_result_in")
    assert failed.payload == {
        "toolUseId": call,
        "name": "lookup",
        "error": "no such thing",
        "how": "failed",
        "telemetry": {"durationMs": 0},
        "failure": {"kind": "domain_rejection", "recovery": "correct_call"},
    }
    assert frames[-1]["text"] == "found no such thing"


@pytest.mark.requirement("wire.toolresult.validation")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"result": None},
        {"result": "a", "error": "b"},
        {"result": 7},
        {"result": {"a": 1}},
        {"error": ["x"]},
        {"toolUseId": 5, "result": "a"},
        {"toolUseId": "", "result": "a"},
        {"toolUseId": None, "result": "a"},
    ],
)
async def test_answer_of_wrong_shape_is_refused_and_call_stays_open(api: Api, fields: Any) -> None:
    async with waiting(api) as (run, call, stream):
        body = {"toolUseId": call, **fields}
        reply = await api.post(f"agent-runs/{run}/tool-results", body, headers={"User-Agent": "python"})
        check_error(reply, 400, "invalid_request")
        assert (await api.answer(run, call, result="")).status == 200
        assert (await stream.rest())[-1]["text"] == "found "


@pytest.mark.requirement("wire.toolresult.empty_go")
async def test_go_clients_leave_an_empty_result_out(api: Api) -> None:
    async with waiting(api) as (run, call, stream):
        path, body = f"agent-runs/{run}/tool-results", {"toolUseId": call}
        check_error(await api.post(path, body, headers={"User-Agent": "curl/8"}), 400, "invalid_request")
        assert (await api.post(path, body, headers={"User-Agent": "Go-http-client/2.0"})).status == 200
        assert of_type(await stream.rest(), "local_tool_result_in")[0]["result"] == ""


@pytest.mark.requirement("wire.toolresult.limits", "wire.event.size")
async def test_result_at_the_limit_is_accepted_with_every_byte_escaped(api: Api) -> None:
    async with waiting(api, "lookup_size") as (run, call, stream):
        data = b'{"toolUseId": "%s", "result": "%s"}' % (call.encode(), b"\\u0001" * (2 * MB))
        assert (await api.post(f"agent-runs/{run}/tool-results", data=data)).status == 200
        frames = await stream.rest()
    assert frames[-1]["text"] == str(2 * MB)
    assert len(of_type(frames, "local_tool_result_in")[0]["result"].encode()) == 100 * 1024


@pytest.mark.requirement("wire.toolresult.limits")
async def test_an_error_at_the_limit_is_taken_whole(api: Api) -> None:
    async with waiting(api, "lookup_size") as (run, call, stream):
        assert (await api.answer(run, call, error="é" * 4096)).status == 200
        assert (await stream.rest())[-1]["text"] == "4096"


@pytest.mark.requirement("wire.toolresult.oversize")
@pytest.mark.parametrize("fields", [{"result": "x" * (2 * MB + 1)}, {"error": "é" * 4097}], ids=["result", "error"])
async def test_answer_that_is_too_large_is_refused_and_reported(api: Api, fields: dict[str, str]) -> None:
    async with waiting(api) as (run, call, stream):
        check_error(await api.answer(run, call, **fields), 400, "invalid_request")
        frames = await stream.rest()
        check_error(await api.answer(run, call, error="too late"), 409, "run_terminal")
    assert "too large" in of_type(frames, "local_tool_result_in")[0]["error"]
    assert "too large" in frames[-1]["text"]


@pytest.mark.requirement("wire.toolresult.duplicate")
async def test_of_many_answers_to_one_call_exactly_one_counts(api: Api) -> None:
    async with waiting(api, "twice") as (run, call, stream):
        replies = await asyncio.gather(*(api.answer(run, call, result=f"r{number}") for number in range(12)))
        winners = [number for number, reply in enumerate(replies) if reply.status == 200]
        assert len(winners) == 1
        for number, reply in enumerate(replies):
            if number not in winners:
                check_error(reply, 404, "unknown_tool_use")
        check_error(await api.answer(run, call, result="again"), 404, "unknown_tool_use")
        check_error(await api.answer(run, "call_9_9", result="again"), 404, "unknown_tool_use")
        second = await stream.until("local_tool_call")
        await api.answer(run, second["toolUseId"], result="last")
        frames = await stream.rest()
    assert frames[-1]["text"] == f"r{winners[0]} || last"
    assert len(of_type(frames, "local_tool_result_in")) == 2


async def test_answer_repeated_under_its_key_counts_once(api: Api) -> None:
    async with waiting(api, "twice") as (run, call, stream):

        async def answer(key: str | None, **fields: Any) -> Reply:
            headers = {} if key is None else {"Idempotency-Key": key}
            return await api.post(f"agent-runs/{run}/tool-results", {"toolUseId": call, **fields}, headers=headers)

        first = await answer("k", result="x")
        second = await stream.until("local_tool_call")
        again = await answer("k", result="x")
        assert [(one.status, one.json) for one in (first, again)] == [(200, {"ok": True})] * 2
        check_error(await answer("k", result="y"), 409, "idempotency_conflict")
        check_error(await answer("k", error="x"), 409, "idempotency_conflict")
        for key in (None, "another"):
            check_error(await answer(key, result="x"), 404, "unknown_tool_use")
        for key in ("", "x" * 256):
            check_error(await answer(key, result="x"), 400, "invalid_request")
        call = second["toolUseId"]
        large = "x" * (2 * MB + 1)
        for _ in range(2):
            check_error(await answer("l", result=large), 400, "invalid_request")
        frames = await stream.rest()
        check_error(await answer("l", result="small"), 409, "idempotency_conflict")
        check_error(await answer("m", result=large), 409, "run_terminal")
    assert len(of_type(frames, "local_tool_result_in")) == 2


@pytest.mark.requirement("wire.toolresult.terminal")
async def test_answer_after_the_end_is_refused(api: Api) -> None:
    async with waiting(api) as (run, call, stream):
        await api.answer(run, call, result="x")
        before = [frame.raw for frame in await stream.rest()]
    for late in (call, "call_9_9"):
        check_error(await api.answer(run, late, result="x"), 409, "run_terminal")
    assert [frame.raw for frame in await api.events(run)] == before


@pytest.mark.requirement("wire.toolresult.after_cancel")
async def test_answer_to_call_that_cancel_overtook_is_taken_and_ignored(api: Api) -> None:
    async with waiting(api) as (run, call, stream):
        await api.cancel(run)
        for _ in range(2):
            reply = await api.answer(run, call, result="x")
            assert reply.status == 200 and reply.json == {"ok": True, "ignored": True}
        check_error(await api.answer(run, "call_9_9", result="x"), 409, "run_terminal")
        frames = await stream.rest()
    assert types(frames) == ["started", "assistant_message", "local_tool_call", "tool_result", "cancelled"]
    assert (frames[3]["toolUseId"], frames[3]["how"]) == (call, "cancelled")


@pytest.mark.requirement("wire.event.local_batch", "run.batch.order")
async def test_calls_of_a_turn_are_offered_first_and_answered_freely(api: Api) -> None:
    run = await api.start("three", tools=[local_tool()])
    async with api.stream(run) as stream:
        calls = [await stream.until("local_tool_call") for _ in range(3)]
        assert types(stream.frames) == ["started", "assistant_message", *["local_tool_call"] * 3]
        for index in (2, 0, 1):
            await api.answer(run, calls[index]["toolUseId"], result=f"answer {calls[index]['args']['q']}")
        frames = await stream.rest()
    order = [frame["toolUseId"] for frame in of_type(frames, "local_tool_result_in")]
    assert order == [calls[index]["toolUseId"] for index in (2, 0, 1)]
    assert frames[-1]["text"] == "answer a,answer b,answer c"


async def test_server_and_client_calls_of_a_turn_run_concurrently(api: Api) -> None:
    run = await api.start("mixed", tools=[{"kind": "mantyx_plugin", "name": "echo"}, local_tool()])
    async with api.stream(run) as stream:
        done = await stream.until("tool_result")
        call = of_type(stream.frames, "local_tool_call")[0]
        assert call.seq < done.seq
        await api.answer(run, call["toolUseId"], result="mine")
        assert (await stream.rest())[-1]["text"] == "echo said || mine"


@pytest.mark.requirement("wire.toolresult.accept")
async def test_answer_is_there_after_reply_even_when_nobody_follows(api: Api) -> None:
    """The embedded engine has one server, which is every replica; a wake-up lost to a kill is in tests/crash."""
    run = await api.start("lookup", tools=[local_tool()])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
    await api.answer(run, call["toolUseId"], result="x")
    assert json.loads((await api.events(run, last_seq=call.seq))[0].raw.partition(b"data: ")[2])["result"] == "x"


@pytest.mark.requirement("run.hint.steers")
async def test_error_may_give_its_kind_and_help(api: Api) -> None:
    hint = {"reason": "rate_limited", "message": "Once a minute.", "exampleInput": {"q": "two"}}
    async with waiting(api) as (run, call, stream):
        failure = {"kind": "rate_limited", "hint": hint}
        reply = await api.answer(run, call, error="Too fast.", failure=failure)
        assert reply.status == 200, reply.json
        frames = await stream.rest()
    [closed] = of_type(frames, "local_tool_result_in")
    assert closed["failure"] == {
        "kind": "rate_limited",
        "recovery": "replan",
        "hint": {"reason": "rate_limited", "message": "Once a minute.", "tool": "lookup", "exampleInput": {"q": "two"}},
    }


@pytest.mark.requirement("run.await.clarification", "run.policy.missing_fields")
async def test_missing_values_of_a_client_tool_are_asked_of_people(api: Api) -> None:
    policy = {"onMissingFields": "await_clarification"}
    hint = {
        "reason": "missing_fields",
        "missingFields": ["day"],
        "clarifyingQuestion": "Which day?",
        "message": "No day.",
    }
    async with waiting(api, policy=policy) as (run, call, stream):
        assert (await api.answer(run, call, error="No day.", failure={"hint": hint})).status == 200
        opened = await stream.until("await_opened")
        shown = {"missingFields": ["day"], "clarifyingPrompt": "No day."}
        assert (opened["kind"], opened["question"], opened["clarification"]) == ("clarification", "Which day?", shown)
        [listed] = (await api.get(f"agent-runs/{run}/awaits")).json["awaits"]
        assert (listed["id"], listed["clarification"]) == (opened["awaitId"], shown)
        said = {"outcome": "answered", "value": "Friday.", "labels": {"desk": "7"}}
        path = f"agent-runs/{run}/awaits/{opened['awaitId']}"
        assert (await api.post(path, {"outcome": "approved"})).status == 400
        assert (await api.post(path, said | {"labels": {"desk": 7}})).status == 400
        assert (await api.post(path, said)).status == 200
        frames = await stream.rest()
    assert of_type(frames, "await_closed")[0]["labels"] == {"desk": "7"}
    assert frames[-1]["ok"]
