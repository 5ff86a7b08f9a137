"""Whole runs through a server process, each family against a stand-in for its API."""

from __future__ import annotations

import json

import pytest

from traffic import exchange, recorded

from ..kit import Frame, local_tool, of_type, types
from .conftest import KEY, Team, server_tool
from .dialects import FAMILIES, Anthropic, Call, Dialect, OldAnthropic, OldGoogle
from .upstream import JSON, Reply

CAPITAL = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
OUTPUT = {"name": "capital", "schema": CAPITAL}
ANSWER = '{"city":"Oslo"}'
OLD: dict[str, Dialect] = {"old_anthropic": OldAnthropic(), "old_google": OldGoogle()}
SYNTHETIC = {"final_report", "set_model_response"}


def deltas(frames: list[Frame], kind: str = "assistant_delta", *, attempt: int = 1) -> str:
    return "".join(frame["text"] for frame in of_type(frames, kind) if frame["attempt"] == attempt)


@pytest.mark.requirement("provider.family.available", "wire.usage.tokens", "wire.usage.model")
async def test_a_family_answers_in_text_with_its_usage(team: Team, dialect: Dialect) -> None:
    model = await team.bring(dialect)
    team.upstream.answers(dialect.answer("Hel", "lo"))
    frames = await team.run(model)
    assert types(frames) == ["started", "assistant_message", "result"]
    assert deltas(frames) == "Hello" == frames[-1]["text"]
    assert frames[-1]["tokens"] == {"inputTokens": 12, "cachedTokens": 0, "reasoningTokens": 0, "outputTokens": 7}
    assert frames[-1]["turns"] == 1
    assert frames[-1]["model"]["id"] == model and frames[-1]["model"]["vendorModelId"] == dialect.model
    assert len(team.upstream.asked) == 1


async def test_character_that_family_cuts_in_two_is_whole_again(team: Team, dialect: Dialect) -> None:
    model = await team.bring(dialect)
    team.upstream.answers(dialect.answer("a\ud83d", "\ude00b", "c\ud83d", "d", "e\ude00"))
    frames = await team.run(model)
    assert frames[-1].type == "result", frames[-1]
    assert deltas(frames) == frames[-1]["text"] == "a😀bc\ufffdde\ufffd"


@pytest.mark.requirement("provider.family.available", "provider.request.conversation", "provider.stream.incremental")
async def test_a_family_thinks_calls_a_tool_and_answers(team: Team, dialect: Dialect) -> None:
    model = await team.bring(dialect)
    calls = [Call("weather", '{"city":"Oslo"}')]
    team.upstream.answers(dialect.answer("Let me see.", thinking=["h", "m"], calls=calls), dialect.answer("Sunny."))
    frames = await team.run(model, tools=[server_tool("weather")], reasoningLevel="high")
    assert types(frames, without=("assistant_delta", "thinking_delta")) == [
        "started",
        "assistant_message",
        "tool_call",
        "tool_result",
        "assistant_message",
        "result",
    ]
    assert deltas(frames, "thinking_delta") == "hm"
    assert of_type(frames, "tool_result")[0]["result"] == "sunny in Oslo"
    assert frames[-1]["text"] == "Sunny." and frames[-1]["tokens"]["inputTokens"] == 24 and frames[-1]["turns"] == 2
    assert b"sunny in Oslo" in team.upstream.asked[1].raw


ROUNDS = [
    ("anthropic", "streams/anthropic/thinking_then_a_call", (0, 1)),
    ("google", "streams/google/tool_rounds", (0, 2)),
    ("openai_chat", "streams/openai_chat/call_then_text", (0, 1)),
    ("openai_responses", "streams/openai_responses/call_then_text", (0, 1)),
    *recorded(
        [
            ("anthropic", "anthropic/anthropic_tool_with_thinking", (0, 1)),
            ("google", "google/google_model_iter_stream", (0, 2)),
            ("openai_chat", "openai_chat/run_stream_sync_streams_real_model", (0, 1)),
            ("openai_responses", "openai_responses/openai_responses_stream", (0, 1)),
        ]
    ),
]


@pytest.mark.parametrize(("family", "file", "numbers"), ROUNDS)
async def test_call_and_answer_make_whole_run_with_client_tool(
    team: Team, family: str, file: str, numbers: tuple[int, int]
) -> None:
    replayed = [exchange(file, number) for number in numbers]
    for one in replayed:
        team.upstream.answers(Reply(one.body, one.status, one.headers["content-type"], pieces=7))
    model = await team.bring(FAMILIES[family])
    asked = json.loads(replayed[0].request_body)
    run = await team.start(model, tools=[local_tool(name) for name in FAMILIES[family].tool_names(asked)])
    async with team.api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        assert (await team.api.answer(run, call["toolUseId"], result="42")).status == 200
        frames = await stream.rest()
    assert frames[-1].type == "result" and frames[-1]["ok"] and frames[-1]["text"]
    assert of_type(frames, "assistant_message")[-1]["text"] == frames[-1]["text"]
    assert frames[-1]["tokens"]["inputTokens"] > 0 and frames[-1]["tokens"]["outputTokens"] > 0


async def test_the_texts_of_a_tool_result_are_not_glued_together(team: Team, dialect: Dialect) -> None:
    model = await team.bring(dialect)
    team.upstream.answers(dialect.answer("", calls=[Call("rows", "{}")]), dialect.answer("Done."))
    frames = await team.run(model, tools=[server_tool("rows")])
    assert of_type(frames, "tool_result")[0]["result"] == "alpha\nbeta" and frames[-1].type == "result"
    assert rb'"alpha\nbeta"' in team.upstream.asked[1].raw


@pytest.mark.parametrize("family", ["openai_chat", "openai_responses"])
async def test_sounds_and_bytes_that_api_refuses_are_put_into_words(team: Team, family: str) -> None:
    dialect = FAMILIES[family]
    model = await team.bring(dialect)
    team.upstream.answers(dialect.answer("", calls=[Call("sound", "{}")]), dialect.answer("Done."))
    assert (await team.run(model, tools=[server_tool("sound")]))[-1].type == "result"
    sent = team.upstream.asked[1].raw
    for kind in (b"audio/wav", b"application/octet-stream"):
        assert b"[A file without a name (" + kind + b"), which this model cannot read.]" in sent
    assert b"file_data" not in sent


@pytest.mark.requirement("provider.request.images")
async def test_images_of_a_tool_result_reach_every_family(team: Team, dialect: Dialect) -> None:
    model = await team.bring(dialect)
    team.upstream.answers(dialect.answer(calls=[Call("photo")]), dialect.answer("A cat."))
    frames = await team.run(model, tools=[server_tool("photo")])
    assert frames[-1]["text"] == "A cat."
    assert of_type(frames, "tool_result")[0]["attachments"] == [{"type": "image", "mediaType": "image/png"}]
    assert b"aW1hZ2U=" in team.upstream.asked[1].raw


@pytest.mark.requirement("provider.schema.hidden", "provider.schema.anthropic", "provider.schema.gemini_tools")
@pytest.mark.parametrize("name", [*FAMILIES, *OLD])
async def test_structured_output_works_beside_tools_in_every_family(team: Team, name: str) -> None:
    dialect = OLD.get(name) or FAMILIES[name]
    model = await team.bring(dialect)
    team.upstream.answers(dialect.answer(calls=[Call("weather", '{"city":"Oslo"}')]))
    synthetic = {"old_anthropic": "final_report", "old_google": "set_model_response"}.get(name)
    if synthetic:
        team.upstream.answers(dialect.answer(calls=[Call(synthetic, ANSWER, "toolu_2")]))
    else:
        team.upstream.answers(dialect.answer(ANSWER[:5], ANSWER[5:]))
    run = await team.start(model, tools=[server_tool("weather")], outputSchema=OUTPUT, toolBudgets={})
    frames = await team.api.events(run)
    assert frames[-1]["subtype"] == "success" and json.loads(frames[-1]["text"]) == {"city": "Oslo"}
    last_turn = [frame for frame in of_type(frames, "assistant_delta") if frame["turn"] == 1]
    assert "".join(frame["text"] for frame in last_turn) == frames[-1]["text"]
    assert "toolCalls" not in of_type(frames, "assistant_message")[-1].payload
    form = "tool" if synthetic or name == "bedrock" else "native"
    assert of_type(frames, "assistant_message")[-1]["providerMetadata"] == {"output_schema": form}
    assert len(of_type(frames, "tool_call")) == 1
    sent = dialect.tool_names(team.upstream.asked[0].body)
    assert (synthetic in sent) if synthetic else not SYNTHETIC & set(sent)
    shown = b"".join(frame.raw for frame in frames) + (await team.api.get(f"agent-runs/{run}")).body
    assert not any(hidden.encode() in shown for hidden in SYNTHETIC)


async def test_unfitting_answer_is_requested_once_more_then_fails(team: Team, dialect: Dialect) -> None:
    model = await team.bring(dialect)
    team.upstream.answers(dialect.answer("not json"), dialect.answer('{"town":1}'), dialect.answer(ANSWER))
    frames = await team.run(model, outputSchema=OUTPUT)
    assert frames[-1].type == "error" and frames[-1]["code"] == "invalid_output"
    assert frames[-1]["partialText"] == '{"town":1}'
    assert len(team.upstream.asked) == 2, "asked again once, not twice"


@pytest.mark.parametrize("family", ["openai_chat", "openai_responses"])
async def test_optional_fields_written_by_strict_mode_are_removed(team: Team, family: str) -> None:
    dialect = FAMILIES[family]
    model = await team.bring(dialect)
    optional = {"type": "object", "properties": {"city": {"type": "string"}, "river": {"type": "string"}}}
    tool = {**local_tool("ask"), "parameters": optional}
    team.upstream.answers(
        dialect.answer(calls=[Call("ask", '{"city":"Oslo","river":null}')]),
        dialect.answer('{"city":"Oslo",', '"river":null}'),
    )
    run = await team.start(model, tools=[tool], outputSchema={"schema": optional})
    async with team.api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        assert call["args"] == {"city": "Oslo"}
        await team.api.answer(run, call["toolUseId"], result="yes")
        frames = await stream.rest()
    assert frames[-1]["text"] == '{"city":"Oslo"}'
    sent = [asked.body for asked in team.upstream.asked]
    assert all('"strict":true' in json.dumps(body, separators=(",", ":")) for body in sent)
    assert sent[0]["prompt_cache_key"] == sent[1]["prompt_cache_key"] == run


async def test_highest_effort_but_one_has_word_of_its_own(team: Team) -> None:
    dialect = FAMILIES["openai_responses"]
    model = await team.bring(dialect)
    team.upstream.answers(dialect.answer("Hello"))
    await team.run(model, reasoningLevel="xhigh")
    assert team.upstream.asked[0].body["reasoning"]["effort"] == "xhigh"
    refused = await team.api.post("agent-runs", {"modelId": model, "prompt": "hi", "reasoningLevel": "xxhigh"})
    assert refused.status == 400
    assert "off, minimal, low, medium, high, xhigh" in refused.json["message"]


async def test_the_runs_of_a_session_share_their_cache_key(team: Team) -> None:
    dialect = FAMILIES["openai_responses"]
    model = await team.bring(dialect)
    team.upstream.answers(dialect.answer("One."), dialect.answer("Two."))
    session = (await team.api.post("agent-sessions", {"modelId": model})).json["sessionId"]
    for _ in range(2):
        said = await team.api.post(f"agent-sessions/{session}/messages", {"prompt": "hi"})
        await team.api.events(said.json["runId"])
    assert [asked.body["prompt_cache_key"] for asked in team.upstream.asked] == [session, session]


async def test_answer_that_is_only_queued_fails_run_and_says_so(team: Team) -> None:
    queued = exchange("streams/openai_responses/not_finished")
    model = await team.bring(FAMILIES["openai_responses"])
    team.upstream.answers(Reply(queued.body, kind=JSON))
    frames = await team.run(model)
    assert frames[-1].type == "error" and frames[-1]["errorClass"] == "server"
    assert "before its answer was finished: it is queued" in frames[-1]["error"]
    assert len(team.upstream.asked) == 1


async def test_connection_that_breaks_behind_complete_answer_is_no_matter(team: Team, dialect: Dialect) -> None:
    model = await team.bring(dialect)
    team.upstream.answers(Reply(dialect.answer("Hello"), then="cut"))
    frames = await team.run(model)
    assert frames[-1]["text"] == "Hello"
    assert len(team.upstream.asked) == 1


@pytest.mark.requirement("provider.schema.truncated")
@pytest.mark.parametrize("name", [*FAMILIES, "old_anthropic"])
async def test_structured_output_that_hits_limit_is_truncation_with_raw_text(team: Team, name: str) -> None:
    dialect = OLD.get(name) or FAMILIES[name]
    model = await team.bring(dialect)
    if name == "old_anthropic":
        team.upstream.answers(dialect.answer(calls=[Call("final_report", '{"city":"Os')], stop="max_tokens"))
    else:
        team.upstream.answers(dialect.answer('{"city":"Os', stop="max_tokens"))
    frames = await team.run(model, outputSchema=OUTPUT)
    assert frames[-1].type == "error" and frames[-1]["errorClass"] == "truncation"
    assert frames[-1]["partialText"] == '{"city":"Os' and frames[-1]["finishReason"] == "max_tokens"


@pytest.mark.requirement("provider.stream.bad_arguments")
@pytest.mark.parametrize("family", ["anthropic", "openai_chat", "openai_responses"])
async def test_non_object_arguments_are_not_run_but_reported(team: Team, family: str) -> None:
    dialect = FAMILIES[family]
    model = await team.bring(dialect)
    team.upstream.answers(
        dialect.answer(calls=[Call("weather", '{"city": "Os')]),
        dialect.answer(calls=[Call("weather", '{"city":"Oslo"}', "toolu_2")]),
        dialect.answer("Sunny."),
    )
    frames = await team.run(model, tools=[server_tool("weather")])
    first, second = of_type(frames, "tool_result")
    assert not first["ok"] and "JSON" in first["result"]
    assert second["ok"] and second["result"] == "sunny in Oslo"
    assert [frame["toolUseId"] for frame in of_type(frames, "tool_call")] == ["toolu_2"]
    assert frames[-1]["text"] == "Sunny."


@pytest.mark.requirement("provider.stream.bad_arguments")
async def test_call_that_gemini_could_not_read_is_asked_again(team: Team) -> None:
    dialect = FAMILIES["google"]
    model = await team.bring(dialect)
    team.upstream.answers(dialect.answer(stop="malformed_function_call"), dialect.answer("Sunny."))
    frames = await team.run(model, tools=[server_tool("weather")])
    assert [frame["reason"] for frame in of_type(frames, "turn_restarted")] == ["server"]
    assert frames[-1]["text"] == "Sunny." and frames[-1]["tokens"]["inputTokens"] == 24


EXECUTED = [
    ("anthropic", "streams/anthropic/web_fetch", 0, "web_fetch"),
    ("google", "streams/google/web_search", 0, "google_search"),
    ("openai_responses", "streams/openai_responses/file_search", 0, "file_search"),
    *recorded(
        [
            ("anthropic", "anthropic/anthropic_web_fetch_tool_stream", 0, "web_fetch"),
            ("google", "google/google_model_web_search_tool_stream", 0, "google_search"),
            ("openai_responses", "openai_responses/openai_responses_model_file_search_tool_stream", 3, "file_search"),
        ]
    ),
]


@pytest.mark.requirement("provider.tools.executed")
@pytest.mark.parametrize(("family", "file", "number", "tool"), EXECUTED)
async def test_provider_tool_is_reported_once_and_never_executed(
    team: Team, family: str, file: str, number: int, tool: str
) -> None:
    replayed = exchange(file, number)
    team.upstream.answers(Reply(replayed.body, 200, replayed.headers["content-type"]))
    model = await team.bring(FAMILIES[family])
    frames = await team.run(model, toolBudgets={tool: {"maxCalls": 0}})
    results = of_type(frames, "tool_result")
    assert results and all(frame["name"] == frame["toolType"] == tool for frame in results)
    for frame in results:
        assert frame["status"] in ("completed", "failed", "in_progress") and frame["toolUseId"]
        assert frame["provider"] and "\n" not in frame.raw.decode().split("data: ", 1)[1]
    ids = [frame["toolUseId"] for frame in results]
    assert len(ids) == len(set(ids))
    assert not of_type(frames, "tool_call") and not of_type(frames, "tool_budget_exceeded")
    assert types(frames)[-2:] == ["assistant_message", "result"] and len(team.upstream.asked) == 1
    assert "toolCalls" not in of_type(frames, "assistant_message")[0].payload


async def test_a_replay_shows_the_same_bytes_as_the_live_stream(team: Team) -> None:
    replayed = exchange("streams/anthropic/web_fetch")
    team.upstream.answers(Reply(replayed.body, 200, replayed.headers["content-type"], pieces=50))
    run = await team.start(await team.bring(Anthropic()))
    live = await team.api.events(run)
    assert [frame.raw for frame in await team.api.events(run)] == [frame.raw for frame in live]


async def test_answer_that_was_not_streamed_is_taken_all_same(team: Team) -> None:
    body = {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "usage": {"input_tokens": 3}}
    team.upstream.answers(Reply(json.dumps({"type": "message", "role": "assistant", **body}).encode(), 200, JSON))
    frames = await team.run(await team.bring(Anthropic()))
    assert frames[-1]["text"] == "hi"
    assert team.upstream.asked[0].headers["x-api-key"] == KEY
