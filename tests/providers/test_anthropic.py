"""Answers of the Messages API, retold, recorded or made by hand, and the official SDK's reading of the same bytes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from anthropic_answers import (
    CODE,
    CODE_RECORDED,
    HANDMADE,
    LOOKUP,
    THINKING,
    THINKING_RECORDED,
    answer,
    ask,
    assembled,
    block,
    call,
    chunks_of,
    sse,
    stored,
    streamed,
    text,
)
from anthropic_kit import OURS, RECORDED, Outcome
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from traffic import exchange, exchanges, recorded
from weftline.messages import Assistant, Opaque, ProviderCall, Text, Thinking, ToolCall, User
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.assemble import Assembler, collect
from weftline.providers.base import (
    CallArgs,
    CallDone,
    CallStart,
    Chunk,
    Finish,
    ModelRequest,
    OutputSchema,
    ProviderError,
    TextDelta,
    ThinkingDelta,
    ThinkingDone,
    ToolSpec,
    UsageUpdate,
)
from weftline.testing.recordings import Exchange, RecordedTransport, recordings_dir, replay

CITY = OutputSchema("city", Raw(b'{"type":"object","properties":{"city":{"type":"string"}}}'))


@pytest.mark.recording
def test_every_recording_is_replayed() -> None:
    assert {f"anthropic/{path.stem}" for path in (recordings_dir() / "anthropic").glob("*.yaml")} == set(RECORDED)


@pytest.mark.requirement("provider.usage.mapping", "provider.stream.finish_reason", "provider.error.classes")
@pytest.mark.parametrize(("file", "outcomes"), [*OURS.items(), *recorded(RECORDED.items())])
async def test_an_answer_gives_its_outcome_and_usage(file: str, outcomes: list[Outcome]) -> None:
    got: list[Any] = []
    for one in exchanges(file):
        try:
            result = await assembled([one])
            got.append((result.finish_reason, result.usage))
        except ProviderError as error:
            got.append((error.cls, error.status))
    assert got == outcomes


@pytest.mark.parametrize("file", [THINKING, *recorded([THINKING_RECORDED])])
async def test_an_answer_in_one_piece_becomes_the_same_parts(file: str) -> None:
    first, second = exchanges(file)
    content = json.loads(first.body)["content"]
    thinking, said, call = (await assembled([first])).message().parts
    assert isinstance(thinking, Thinking)
    assert (thinking.text, thinking.signature) == (content[0]["thinking"], content[0]["signature"])
    assert said == Text(content[1]["text"])
    assert call == ToolCall(content[2]["id"], content[2]["name"], "{}", "anthropic")
    assert (await assembled([second])).text == json.loads(second.body)["content"][0]["text"]


@pytest.mark.requirement("provider.tools.executed")
@pytest.mark.parametrize(
    ("file", "id", "stdout"),
    [
        (CODE, "srvtoolu_sum", "42\n"),
        *recorded([(CODE_RECORDED, "srvtoolu_01MwXaweAHve88x6s3Fc8x6Q", "-428330955.97745\n")]),
    ],
)
async def test_anthropic_tool_is_recorded_once_and_never_called(file: str, id: str, stdout: str) -> None:
    message = (await assembled([exchange(file)])).message()
    (record,) = [part for part in message.parts if isinstance(part, ProviderCall)]
    assert message.calls == ()
    assert (record.name, record.provider, record.status) == ("bash_code_execution", "anthropic", "completed")
    assert record.id == id
    assert msgspec.json.decode(msgspec.json.encode(record.input))["command"].endswith("| bc -l")
    assert msgspec.json.decode(msgspec.json.encode(record.result))["stdout"] == stdout


@pytest.mark.requirement("provider.tools.executed")
async def test_anthropic_tool_that_failed_or_is_unfinished_says_so() -> None:
    failed = block(0, {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}})
    error = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    failed += block(1, {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": error})
    waiting = block(2, {"type": "server_tool_use", "id": "srv_2", "name": "web_fetch", "input": {}})
    result = await assembled(streamed(answer(*failed, *waiting, stop="pause_turn")))
    records = [part for part in result.message().parts if isinstance(part, ProviderCall)]
    assert [(part.name, part.status) for part in records] == [("web_search", "failed"), ("web_fetch", "in_progress")]
    assert result.finish_reason == "pause_turn"


@pytest.mark.parametrize("file", [CODE, *recorded([CODE_RECORDED])])
@given(data=st.data())
@pytest.mark.requirement("provider.stream.equals_generate")
def test_any_split_of_the_bytes_gives_the_same_message(file: str, data: st.DataObject) -> None:
    whole = exchange(file)
    cuts = data.draw(st.lists(st.integers(0, len(whole.body)), max_size=40))

    async def message(cuts: list[int]) -> bytes:
        assembler = Assembler("anthropic")
        assembler.feed(await chunks_of([whole], cuts=cuts))
        return msgspec.json.encode([assembler.message(), assembler.usage, assembler.finish_reason])

    async def both() -> None:
        assert await message(cuts) == await message([])

    asyncio.run(both())


@pytest.mark.requirement("provider.stream.incremental", "provider.stream.tool_calls", "provider.request.tool_names")
async def test_chunks_come_in_order_and_calls_under_their_names() -> None:
    chunks = await chunks_of(streamed(HANDMADE), ask(tools=[LOOKUP]))
    calls = [chunk for chunk in chunks if isinstance(chunk, CallStart | CallArgs | CallDone)]
    assert calls == [
        CallStart(2, "look.up", "toolu_a"),
        CallArgs(2, '{"q": '),
        CallArgs(2, '"é", "n": [1, 2]}'),
        CallDone(2),
        CallStart(3, "now", "toolu_b"),
        CallDone(3, "{}"),
    ]
    assert [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)] == ["I will ", "look. ☃"]
    assert chunks[-1] == Finish("tool_use")
    assert sum(isinstance(chunk, Finish) for chunk in chunks) == 1


@pytest.mark.requirement("provider.stream.finish_reason")
@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("refusal", "refusal"),
        ("New_One", "new_one"),
        (None, None),
    ],
)
async def test_stop_reasons_are_lowercase_tokens(stop: str | None, reason: str | None) -> None:
    assert (await chunks_of(streamed(answer(*text(0, "a"), stop=stop))))[-1] == Finish(reason)


@pytest.mark.requirement("provider.stream.finish_reason")
async def test_answer_that_ends_its_turn_with_calls_is_tool_use() -> None:
    assert (await chunks_of(streamed(answer(*call(0, "now"), stop="end_turn"))))[-1] == Finish("tool_use")


@pytest.mark.requirement("provider.stream.cut")
async def test_finished_answer_without_text_is_complete() -> None:
    assert (await assembled(streamed(answer()))).message() == Assistant(())
    whole = answer(*text(0, "Hello"), *call(1, "now", "{}"))
    end = whole.index(b"event: message_delta")
    got: list[Chunk] = []
    provider = Anthropic(transport=RecordedTransport(streamed(whole[:end])), api_key="")
    with pytest.raises(ProviderError) as raised:
        await gather(provider, ask(), into=got)
    assert (raised.value.cls, raised.value.retryable) == ("server", True)
    assert TextDelta("Hello") in got
    assert not any(isinstance(chunk, Finish) for chunk in got)


@pytest.mark.parametrize("broken", [False, True])
async def test_answer_with_a_stop_reason_is_complete_without_last_event(broken: bool) -> None:
    whole = answer(*text(0, "Hello"), *call(1, "now", "{}"))
    cut = RecordedTransport(streamed(whole[: whole.index(b"event: message_stop")]), broken=broken)
    got, expected = await collect(Anthropic(transport=cut, api_key=""), ask()), await assembled(streamed(whole))
    assert (got.message(), got.usage, got.finish_reason) == (
        expected.message(),
        expected.usage,
        expected.finish_reason,
    )


@pytest.mark.parametrize(
    "after", [sse({"type": "error", "error": {"type": "overloaded_error", "message": "later"}}), b"data: {\n\n"]
)
async def test_failure_after_a_stop_reason_does_not_invalidate_the_answer(after: bytes) -> None:
    whole = answer(*text(0, "Hello"), *call(1, "now", "{}"))
    got = await assembled(streamed(whole[: whole.index(b"event: message_stop")] + after))
    assert (got.text, len(got.message().calls), got.finish_reason) == ("Hello", 1, "tool_use")


async def test_an_answer_that_filled_the_context_window_was_cut_off() -> None:
    body = answer(*text(0, "Hel")).replace(b'"end_turn"', b'"model_context_window_exceeded"')
    assert (await assembled(streamed(body))).finish_reason == "max_tokens"


async def gather(provider: Anthropic, request: ModelRequest, *, into: list[Chunk]) -> None:
    async for chunks in provider.stream(request):
        into += chunks


@pytest.mark.requirement("provider.error.classes")
async def test_error_inside_stream_is_classified_after_what_came_before_it() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded by sk-test"}}
    body = answer(*text(0, "Hel"))
    body = body[: body.index(b"event: message_delta")] + sse(error)
    got: list[Chunk] = []
    provider = Anthropic(transport=RecordedTransport(streamed(body)), api_key="sk-test")
    with pytest.raises(ProviderError) as raised:
        await gather(provider, ask(), into=got)
    assert (raised.value.cls, raised.value.code) == ("overloaded", "overloaded_error")
    assert "sk-test" not in raised.value.message
    assert TextDelta("Hel") in got


@pytest.mark.requirement("provider.error.classes")
async def test_rate_limit_keeps_its_retry_after_and_makes_one_request() -> None:
    body = b'{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}'
    transport = RecordedTransport([Exchange("POST", "", b"", 429, {"retry-after": "12"}, body)])
    with pytest.raises(ProviderError) as raised:
        await collect(Anthropic(transport=transport, api_key=""), ask())
    error = raised.value
    assert (error.cls, error.retryable, error.retry_after_s, error.message) == ("rate_limit", True, 12.0, "slow down")
    assert len(transport.sent) == 1


async def test_an_answer_that_is_no_json_is_a_server_error() -> None:
    with pytest.raises(ProviderError) as raised:
        await chunks_of(streamed(b"event: message_start\ndata: {oops\n\n"))
    assert (raised.value.cls, raised.value.unanswered) == ("server", True)  # it may be billed


@pytest.mark.requirement("provider.usage.robust")
@pytest.mark.parametrize("usage", [{"output_tokens": -4, "input_tokens": None}, {"output_tokens": "many"}, [1], 7])
async def test_absurd_usage_counts_as_nothing(usage: Any) -> None:
    result = await assembled(streamed(answer(*text(0, "a"), usage=usage)))
    assert result.usage.input == 10
    assert result.usage.output in (0, 1)


@pytest.mark.requirement("provider.usage.robust")
async def test_an_answer_without_usage_is_complete() -> None:
    body = b'{"type":"message","content":[{"type":"text","text":"ok"}],"stop_reason":"end_turn"}'
    chunks = await chunks_of(replay((200, "application/json", body)))
    assert chunks == [TextDelta("ok"), Finish("end_turn")]


# Structured output


@pytest.mark.requirement("provider.schema.anthropic", "provider.schema.hidden")
async def test_report_arrives_as_text_deltas_and_never_as_call() -> None:
    report = call(0, "final_report", '{"city": ', '"Paris"}')
    chunks = await chunks_of(streamed(answer(*report, stop="tool_use")), ask(output_schema=CITY))
    assert [chunk for chunk in chunks if not isinstance(chunk, UsageUpdate)] == [
        TextDelta('{"city": '),
        TextDelta('"Paris"}'),
        Finish("end_turn"),
    ]


@pytest.mark.requirement("provider.schema.anthropic")
async def test_words_around_the_report_are_not_part_of_the_answer() -> None:
    body = answer(
        *text(0, "Here it is:"), *call(1, "final_report", '{"city":"Rome"}'), *text(2, "Done."), stop="tool_use"
    )
    result = await assembled(streamed(body), ask(output_schema=CITY, tools=[LOOKUP]))
    assert result.message() == Assistant((Text('{"city":"Rome"}'),))


async def test_words_before_another_tool_are_kept_in_run_with_schema() -> None:
    body = answer(*text(0, "Let me look."), *call(1, "look_up", "{}"), stop="tool_use")
    result = await assembled(streamed(body), ask(output_schema=CITY, tools=[LOOKUP]))
    assert result.message().parts == (Text("Let me look."), ToolCall("toolu_1", "look.up", "{}", "anthropic"))
    assert result.finish_reason == "tool_use"


@pytest.mark.requirement("provider.schema.hidden")
async def test_tool_of_run_called_final_report_is_still_called() -> None:
    own = ToolSpec("final_report", "files a report", Raw(b'{"type":"object"}'))
    request = ask(output_schema=CITY, tools=[own])
    body = answer(*call(0, "final_report", '{"a":1}'), stop="tool_use")
    assert (await assembled(streamed(body), request)).message().calls == (
        ToolCall("toolu_1", "final_report", '{"a":1}', "anthropic"),
    )
    body = answer(*call(0, "final_report_2", '{"city":"Oslo"}'), stop="tool_use")
    result = await assembled(streamed(body), request)
    assert (result.text, result.message().calls, result.finish_reason) == ('{"city":"Oslo"}', (), "end_turn")


@pytest.mark.requirement("provider.schema.truncated")
@pytest.mark.parametrize("schema", [CITY, OutputSchema("cities", Raw(b'{"type":"array"}'))], ids=["object", "array"])
async def test_report_that_hits_limit_leaves_its_raw_bytes_as_text(schema: OutputSchema) -> None:
    body = answer(*call(0, "final_report", '{"city": "Par'), stop="max_tokens")
    result = await assembled(streamed(body), ask(output_schema=schema))
    assert (result.text, result.finish_reason) == ('{"city": "Par', "max_tokens")


async def test_schema_that_is_no_object_is_answered_without_its_wrapping() -> None:
    body = answer(*call(0, "final_report", '{"output": ["a", ', '"b"]}'), stop="tool_use")
    result = await assembled(streamed(body), ask(output_schema=OutputSchema("list", Raw(b'{"type":"array"}'))))
    assert json.loads(result.text) == ["a", "b"]


@pytest.mark.requirement("provider.schema.truncated")
async def test_text_held_for_a_report_is_released_on_break() -> None:
    body = answer(*text(0, "Once upon"))
    got: list[Chunk] = []
    provider = Anthropic(transport=RecordedTransport(streamed(body[: body.index(b"event: message_delta")])), api_key="")
    with pytest.raises(ProviderError):
        await gather(provider, ask(output_schema=CITY, tools=[LOOKUP]), into=got)
    assert TextDelta("Once upon") in got


async def test_model_with_a_schema_streams_its_answer_as_text() -> None:
    request = ModelRequest("claude-sonnet-5", [User.of("hi")], output_schema=CITY, tools=[LOOKUP])
    chunks = await chunks_of([exchange("streams/anthropic/json_answer")], request)
    assert [chunk for chunk in chunks if not isinstance(chunk, UsageUpdate)] == [
        ThinkingDelta("Finnmark's port."),
        ThinkingDone("c2lnbmVk"),
        TextDelta('{"port":'),
        TextDelta('"Vardø"}'),
        Finish("end_turn"),
    ]


async def test_a_kind_of_block_that_is_new_goes_back_whole() -> None:
    body = answer(
        *block(0, {"type": "compaction", "content": None}, {"type": "compaction_delta", "content": "sum"}),
        *text(1, "ok"),
    )
    message = stored((await assembled(streamed(body))).message())
    assert isinstance(message.parts[0], Opaque)
    assert msgspec.json.decode(msgspec.json.encode(message.parts[0].data)) == {"type": "compaction", "content": "sum"}


@pytest.mark.requirement("provider.request.key_secrecy")
def test_the_key_is_not_in_the_representation() -> None:
    assert "sk-secret" not in repr(Anthropic(transport=RecordedTransport([]), api_key="sk-secret"))
