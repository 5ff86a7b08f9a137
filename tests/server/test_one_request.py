"""One request that creates a run and follows it: the events that two would bring, and no run when it is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from weftline.server.creating import accepted_types
from weftline.server.http import Request
from weftline.trace_context import RequestInfo

from .kit import TERMINAL, Api, Stream, check_error, local_tool, types

HELLO = {"modelId": "scripted:hello", "prompt": "hi"}
EVENTS = {"Accept": "text/event-stream"}


@asynccontextmanager
async def posted(
    api: Api, body: Any, *, path: str = "agent-runs", headers: Mapping[str, str] | None = None
) -> AsyncGenerator[Stream]:
    """The stream that a POST is answered with."""
    sent = {"Authorization": f"Bearer {api.key}", **EVENTS, **(headers or {})}
    async with api.http.post(f"{api.url}{api.base}/{path}", json=body, headers=sent) as response:
        assert response.status == 200, await response.read()
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        yield Stream(response)


def run_of(stream: Stream) -> str:
    return stream.response.headers["X-Run-Id"]


async def test_create_that_accepts_events_is_answered_with_stream_of_run(api: Api) -> None:
    async with posted(api, HELLO) as stream:
        frames = await stream.rest()
    run = run_of(stream)
    assert types(frames) == ["started", "assistant_message", "result"]
    assert stream.response.headers["Location"] == f"{api.base}/agent-runs/{run}"
    assert stream.response.headers["X-Request-Id"] and stream.response.headers["X-Accel-Buffering"] == "no"
    assert [frame.raw for frame in frames] == [frame.raw for frame in await api.events(run)]
    assert (await api.get(stream.response.headers["Location"])).json["status"] == "succeeded"
    last = frames[2].seq
    assert [frame.raw for frame in await api.events(run, last_seq=last)] == [frame.raw for frame in frames[3:]]


async def test_client_answers_calls_while_create_is_still_being_answered(api: Api) -> None:
    async with posted(api, {"modelId": "scripted:lookup", "prompt": "x", "tools": [local_tool()]}) as stream:
        call = await stream.until("local_tool_call")
        await api.answer(run_of(stream), call["toolUseId"], result="42")
        assert (await stream.rest())[-1]["text"] == "found 42"


async def test_message_to_session_is_answered_with_its_events_too(api: Api) -> None:
    session = await api.session("seen")
    path = f"agent-sessions/{session}/messages"
    for prompt, expected in (("one", "one / 1"), ("two", "one two / 3")):
        async with posted(api, {"prompt": prompt}, path=path) as stream:
            frames = await stream.rest()
        assert frames[-1]["text"].replace(",", "").replace("\n", " ") == expected or frames[-1].type == "result"
        assert [frame.raw for frame in frames] == [frame.raw for frame in await api.events(run_of(stream))]
    assert (await api.snapshot(run_of(stream)))["sessionId"] == session


async def test_repeated_create_follows_its_run_from_any_event(api: Api) -> None:
    key = {"Idempotency-Key": "once"}
    async with posted(api, HELLO, headers=key) as first:
        whole = await first.rest()
    async with posted(api, HELLO, headers=key) as again:
        assert [frame.raw for frame in await again.rest()] == [frame.raw for frame in whole]
    async with posted(api, HELLO, headers={**key, "Last-Event-ID": str(whole[1].seq)}) as rest:
        assert [frame.raw for frame in await rest.rest()] == [frame.raw for frame in whole[2:]]
    assert {run_of(first), run_of(again), run_of(rest)} == {run_of(first)}
    plain = await api.post("agent-runs", HELLO, headers=key)
    assert plain.status == 202 and plain.json["runId"] == run_of(first) == plain.headers["X-Run-Id"]
    assert plain.headers["Location"] == f"{api.base}/agent-runs/{run_of(first)}"
    check_error(
        await api.post("agent-runs", {**HELLO, "prompt": "other"}, headers={**key, **EVENTS}),
        409,
        "idempotency_conflict",
    )
    assert len((await api.get("agent-runs")).json["runs"]) == 1


async def test_many_creates_with_one_key_make_one_run(api: Api) -> None:
    body = {"modelId": "scripted:drip", "prompt": "x"}

    async def one() -> tuple[str, list[bytes]]:
        async with posted(api, body, headers={"Idempotency-Key": "k"}) as stream:
            return run_of(stream), [frame.raw for frame in await stream.rest()]

    seen = await asyncio.gather(*(one() for _ in range(8)))
    assert len({run for run, _ in seen}) == 1 and all(frames == seen[0][1] for _, frames in seen)


async def test_a_client_that_goes_away_leaves_the_run_alone(api: Api) -> None:
    async with posted(api, {"modelId": "scripted:drip", "prompt": "x"}) as stream:
        await stream.until("assistant_delta")
    frames = await api.events(run_of(stream))
    assert frames[-1].type == "result"


async def test_creator_that_does_not_read_misses_nothing(api: Api) -> None:
    big = {"modelId": "scripted:big", "prompt": "x", "tools": [{"kind": "mantyx_plugin", "name": "big"}]}
    async with posted(api, big) as lazy:
        assert (await api.play("hello"))[-1].type == "result"
        whole = await api.events(run_of(lazy))
        assert [frame.raw for frame in await lazy.rest()] == [frame.raw for frame in whole]


async def test_early_refusal_is_an_error_in_json(api: Api) -> None:
    async def refused(body: Any, *, path: str = "agent-runs", **options: Any) -> Any:
        headers = {**EVENTS, **options.pop("headers", {})}
        return await api.post(path, body, headers=headers, **options)

    unknown = {**HELLO, "modelId": "scripted:nobody"}
    check_error(await refused(unknown), 400, "invalid_model")
    check_error(await refused({"modelId": "scripted:hello"}), 400, "invalid_request")
    check_error(await refused(None, data=b"{"), 400, "invalid_request")
    check_error(await refused(HELLO, headers={"Idempotency-Key": ""}), 400, "invalid_request")
    check_error(await refused(HELLO, key="nonsense"), 401, "unauthorized")
    check_error(await refused(HELLO, path="agent-sessions/ses_1/messages"), 404, "not_found")
    check_error(await refused(None, data=b" " * (64 * 1024 * 1024)), 413, "body_too_large")
    session = await api.session("hello")
    await api.call("DELETE", f"agent-sessions/{session}")
    check_error(await refused({"prompt": "x"}, path=f"agent-sessions/{session}/messages"), 409, "session_ended")
    assert (await api.get("agent-runs")).json["runs"] == []


async def test_failing_run_is_told_in_its_stream_like_any_other(api: Api) -> None:
    async with posted(api, {"modelId": "scripted:fails_auth", "prompt": "x"}) as stream:
        frames = await stream.rest()
    assert [frame.type for frame in frames if frame.type in TERMINAL] == ["error"]


@pytest.mark.parametrize(
    ("accept", "events", "json"),
    [
        ([], False, True),
        (["*/*"], False, True),
        (["application/json"], False, True),
        (["text/event-stream"], True, False),
        (["TEXT/Event-Stream ; q=0.5"], True, False),
        (["text/event-stream", "application/json;q=0.9"], True, True),
        (["text/event-stream, */*"], True, True),
        (["application/json, text/event-stream"], False, True),
        (["application/json;q=0.1, text/event-stream;q=0.2"], True, True),
        (["text/event-stream;q=0"], False, False),
        (["text/event-stream;q=nan, application/*;q=junk"], False, True),
        (["text/*"], False, False),
        ([",,;;q=,"], False, False),
    ],
)
def test_event_stream_is_what_accept_names_and_prefers_to_json(accept: list[str], events: bool, json: bool) -> None:
    async def nothing(*_: Any) -> Any: ...

    headers = [(b"accept", line.encode()) for line in accept]
    request = Request({"method": "POST", "path": "/", "headers": headers}, nothing, nothing, RequestInfo("req_1"))
    assert accepted_types(request) == (events, json)


async def test_warnings_come_in_header_of_stream_and_strictness_is_400(api: Api) -> None:
    wrong = {**HELLO, "modelid": "x", "ünknown": 1, **{f"field{number}": 1 for number in range(500)}}
    async with posted(api, wrong) as stream:
        await stream.rest()
    told = json.loads(stream.response.headers["X-Warnings"])
    plain = (await api.post("agent-runs", wrong)).json["warnings"]
    assert told == plain[: len(told)] and told and "modelId" in {one.get("nearest") for one in told}
    assert len(stream.response.headers["X-Warnings"]) < 8000
    async with posted(api, HELLO) as stream:
        assert "X-Warnings" not in stream.response.headers
    strict = {**EVENTS, "Prefer": "handling=strict"}
    check_error(await api.post("agent-runs", wrong, headers=strict), 400, "invalid_request")
