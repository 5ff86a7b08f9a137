"""The Responses API, against recorded traffic and a loopback server."""

from __future__ import annotations

from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from openai_responses_kit import (
    ENCRYPTED,
    ENCRYPTED_RECORDED,
    HELLO,
    KEY,
    SEARCH,
    SEARCH_RECORDED,
    completed,
    folder,
    ours,
    response,
    responses,
    text_item,
)
from openai_stand_in import (
    JSON,
    SSE,
    answer,
    answering,
    ask,
    chunks_of,
    events,
    serving,
    spec,
)

from traffic import exchange, recorded
from weftline.messages import (
    Assistant,
    Text,
    Thinking,
    Usage,
)
from weftline.net.transport import AiohttpTransport
from weftline.providers.base import (
    CallArgs,
    CallDone,
    CallStart,
    Finish,
    ProviderError,
    TextDelta,
    UsageUpdate,
)
from weftline.providers.openai.responses import OpenAIResponses
from weftline.testing import Aborted, Answered, Failed, check_provider
from weftline.testing.providers import Case
from weftline.testing.recordings import RecordedTransport, replay

Row = tuple[str, int, str, list[tuple[str, str]], str, Usage]
OURS: list[Row] = [
    (
        ours("call_then_text"), 0, "", [("home_port", '{"coast":"Finnmark"}')], "tool_use",
        Usage(input=255, output=16),
    ),
    (ours("call_then_text"), 1, "You sail from Vardø.", [], "end_turn", Usage(input=278, output=9)),
    (
        ours("encrypted_reasoning"), 0, "", [("report", '{"sum":42}')], "tool_use",
        Usage(input=53, reasoning=448, output=469),
    ),
    (
        ours("reasoning_ends_after_the_text"), 0, "7", [], "end_turn", Usage(input=78, reasoning=22, output=37),
    ),
    (
        ours("tool_search"), 0, "", [("high_water", '{"port":"Vardø"}')], "tool_use",
        Usage(input=310, cached=128, output=41),
    ),
    (ours("file_search"), 0, "High water is at 04:12.", [], "end_turn", Usage(input=1177, output=37)),
    (
        ours("two_calls"), 0, "",
        [("port_of", '{"coast":"Finmark"}'), ("port_of", '{"coast":"Nordland"}')], "tool_use", Usage(),
    ),
    (ours("two_calls"), 1, '"Finmark" is unknown', [], "end_turn", Usage(input=335, output=44)),
    (
        ours("reasoning_summary"), 0, "Happy to help: reef early.", [], "end_turn",
        Usage(input=13, reasoning=1600, output=1915),
    ),
    (ours("reasoning_summary"), 1, "Two reefs:", [], "end_turn", Usage(input=88, reasoning=128, output=547)),
]  # fmt: skip
RECORDED: list[Row] = [
    (folder("native_output"), 0, "", [("get_user_country", "{}")], "tool_use", Usage(input=66, output=12)),
    (
        folder("native_output"), 1, '{"city":"Mexico City","country":"Mexico"}', [], "end_turn",
        Usage(input=89, output=16),
    ),
    (
        folder("openai_responses_model_file_search_tool_stream"), 3, "The capital of France is Paris.", [], "end_turn",
        Usage(input=1177, output=37),
    ),
    (
        folder("openai_responses_model_retry"), 0, "",
        [("get_location", '{"loc_name":"Londos"}'), ("get_location", '{"loc_name":"London"}')], "tool_use", Usage(),
    ),
    (
        folder("openai_responses_model_retry"), 1, 'It seems "Londos" might be incorrect', [], "end_turn",
        Usage(input=335, output=44),
    ),
    (
        folder("openai_responses_model_simple_response_with_tool_call"), 0, "",
        [("get_capital", '{"country":"PotatoLand"}')], "tool_use", Usage(input=40, output=18),
    ),
    (
        folder("openai_responses_model_simple_response_with_tool_call"), 1,
        "The capital of PotatoLand is Potato City.", [], "end_turn", Usage(input=67, output=11),
    ),
    (
        folder("openai_responses_raw_cot_stream_openrouter"), 0, "4", [], "end_turn",
        Usage(input=78, reasoning=22, output=37),
    ),
    (
        folder("openai_responses_reasoning_effort"), 0, "Ingredients for the dough:", [], "end_turn",
        Usage(input=88, reasoning=128, output=547),
    ),
    (
        folder("openai_responses_stream"), 0, "", [("get_capital", '{"country":"France"}')], "tool_use",
        Usage(input=255, output=16),
    ),
    (
        folder("openai_responses_stream"), 1, "The capital of France is Paris.", [], "end_turn",
        Usage(input=278, output=9),
    ),
    (
        folder("openai_responses_streaming_usage"), 0, "", [("final_result", '{"result":6666}')], "tool_use",
        Usage(input=53, reasoning=448, output=469),
    ),
    (
        folder("reasoning_summary_auto"), 0, "```python\ndef factorial", [], "end_turn",
        Usage(input=34, reasoning=59, output=226),
    ),
    (
        "openai_chat/openai_model_thinking_part", 0, "I'm happy to help.", [], "end_turn",
        Usage(input=13, reasoning=1600, output=1915),
    ),
]  # fmt: skip


@pytest.mark.requirement("provider.usage.mapping", "provider.stream.finish_reason")
@pytest.mark.parametrize(("file", "number", "text", "calls", "reason", "usage"), [*OURS, *recorded(RECORDED)])
async def test_an_answer_gives_its_text_calls_reason_and_usage(
    file: str, number: int, text: str, calls: list[tuple[str, str]], reason: str, usage: Usage
) -> None:
    got = await answer(responses(RecordedTransport([exchange(file, number)])))
    message = got.message()
    assert message.text.startswith(text)
    assert bool(message.text) is bool(text)
    assert [(call.name, call.args) for call in message.calls] == calls
    assert got.finish_reason == reason
    assert got.usage == usage


@pytest.mark.parametrize(("file", "number"), [*(row[:2] for row in OURS), *recorded(row[:2] for row in RECORDED)])
async def test_the_official_client_reads_the_same_from_the_same_bytes(file: str, number: int) -> None:
    replayed = exchange(file, number)
    streamed = replayed.headers["content-type"].startswith(SSE)
    async with serving(replayed, replayed) as api:
        async with openai.AsyncOpenAI(api_key=KEY, base_url=api.url, max_retries=0) as client:
            official: Any = None
            if streamed:
                async for event in await client.responses.create(model="m", input="hi", stream=True):
                    if event.type == "response.completed":
                        official = event.response
            else:
                official = await client.responses.create(model="m", input="hi")
        transport = AiohttpTransport()
        got = await answer(OpenAIResponses(transport=transport, base_url=api.url, api_key=KEY))
        await transport.aclose()
    message = got.message()
    calls = [item for item in official.output if item.type == "function_call"]
    assert message.text == official.output_text
    assert [(call.name, call.args, call.id) for call in message.calls] == [
        (item.name, item.arguments, item.call_id) for item in calls
    ]
    assert (got.usage.input, got.usage.output) == (official.usage.input_tokens, official.usage.output_tokens)
    assert got.usage.reasoning == official.usage.output_tokens_details.reasoning_tokens


CALL, CALL_RECORDED = ours("call_then_text"), folder("openai_responses_stream")
LATE, LATE_RECORDED = ours("reasoning_ends_after_the_text"), folder("openai_responses_raw_cot_stream_openrouter")
STREAMED = [
    (CALL, 0),
    (ENCRYPTED, 0),
    (LATE, 0),
    (SEARCH, 0),
    (ours("tool_search"), 0),
    *recorded([(CALL_RECORDED, 0), (ENCRYPTED_RECORDED, 0), (LATE_RECORDED, 0), (SEARCH_RECORDED, 3)]),
]


@pytest.mark.requirement("provider.stream.equals_generate")
@pytest.mark.parametrize(("file", "number"), STREAMED)
@given(data=st.data())
async def test_however_the_bytes_are_split_the_chunks_are_the_same(data: st.DataObject, file: str, number: int) -> None:
    replayed = exchange(file, number)
    cuts = data.draw(st.lists(st.integers(1, len(replayed.body) - 1), max_size=12))
    whole = await chunks_of(responses(RecordedTransport([replayed])))
    split = await chunks_of(responses(RecordedTransport([replayed], cuts=cuts)))
    assert msgspec.json.encode(split) == msgspec.json.encode(whole)


@pytest.mark.requirement("provider.stream.equals_generate")
@pytest.mark.parametrize(("file", "number"), STREAMED)
async def test_final_object_of_stream_read_as_whole_answer_gives_same(file: str, number: int) -> None:
    replayed = exchange(file, number)
    last = next(
        msgspec.json.decode(line.removeprefix(b"data: "))
        for line in replayed.body.splitlines()
        if b'"type":"response.completed"' in line
    )
    streamed = await answer(responses(RecordedTransport([replayed])))
    whole = await answer(responses(answering(msgspec.json.encode(last["response"]), kind=JSON)))
    first, second = streamed.message(), whole.message()
    assert (first.text, first.calls) == (second.text, second.calls)
    assert _thoughts(first) == _thoughts(second)
    assert (streamed.usage, streamed.finish_reason) == (whole.usage, whole.finish_reason)


def _thoughts(message: Assistant) -> list[str]:
    return [part.text for part in message.parts if isinstance(part, Thinking)]


@pytest.mark.requirement("provider.stream.incremental")
@pytest.mark.parametrize(
    ("file", "start", "pieces"),
    [
        (CALL, CallStart(0, "home_port", "call_port"), ('{"', "coast", '":"', "Finnmark", '"}')),
        *recorded(
            [
                (
                    CALL_RECORDED,
                    CallStart(0, "get_capital", "call_kL0PCQV7M2WMoVX8V8OtYSAL"),
                    ('{"', "country", '":"', "France", '"}'),
                )
            ]
        ),
    ],
)
async def test_pieces_keep_upstream_order_with_one_finish(file: str, start: CallStart, pieces: tuple[str, ...]) -> None:
    chunks = await chunks_of(responses(RecordedTransport([exchange(file)])))
    assert chunks == [
        start,
        *(CallArgs(0, piece) for piece in pieces),
        CallDone(0, "".join(pieces)),
        UsageUpdate(Usage(input=255, output=16)),
        Finish("tool_use"),
    ]


@pytest.mark.requirement("provider.stream.tool_calls")
async def test_arguments_at_end_of_call_win_over_its_pieces() -> None:
    item = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "look", "arguments": ""}
    stream = events(
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"a":'},
        {"type": "response.output_item.done", "output_index": 0, "item": {**item, "arguments": '{"a":2}'}},
        completed(),
    )
    assert [call.args for call in (await answer(responses(answering(stream)))).message().calls] == ['{"a":2}']


@pytest.mark.parametrize(
    ("file", "thought", "said"),
    [
        (LATE, 'A sum: "7" will do.', "7"),
        *recorded(
            [
                (
                    LATE_RECORDED,
                    'The user asks: "What is 2+2?" They expect a straightforward answer: 4. Just answer 4.',
                    "4",
                )
            ]
        ),
    ],
)
async def test_reasoning_that_is_completed_after_text_still_comes_before_it(file: str, thought: str, said: str) -> None:
    thinking, text = (await answer(responses(RecordedTransport([exchange(file)])))).message().parts
    assert isinstance(thinking, Thinking)
    assert thinking.text == thought
    assert thinking.opaque is not UNSET
    assert msgspec.json.decode(thinking.opaque)["content"] == [{"type": "reasoning_text", "text": thinking.text}]
    assert text == Text(said)


async def test_parts_of_reasoning_summary_are_paragraphs_streamed_or_not() -> None:
    summary = [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}]
    item = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAA"}
    streamed = events(
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "summary": []}},
        {"type": "response.reasoning_summary_part.added", "output_index": 0, "summary_index": 0},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0, "delta": "One."},
        {"type": "response.reasoning_summary_part.added", "output_index": 0, "summary_index": 1},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 1, "delta": "Two."},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        completed(item, text_item("Hello")),
    )
    whole = msgspec.json.encode(response(item, text_item("Hello")))
    first = (await answer(responses(answering(streamed)))).message()
    second = (await answer(responses(answering(whole, kind=JSON)))).message()
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
    assert _thoughts(first) == ["One.\n\nTwo."]


@pytest.mark.parametrize("number", [0, 1], ids=["queued", "in_progress"])
async def test_answer_that_has_not_been_written_yet_is_failure(number: int) -> None:
    with pytest.raises(ProviderError, match="before its answer was finished") as caught:
        await answer(responses(RecordedTransport([exchange(ours("not_finished"), number)])))
    assert (caught.value.cls, caught.value.retryable) == ("server", False)


@pytest.mark.requirement("provider.stream.finish_reason")
@pytest.mark.parametrize(
    ("why", "reason"),
    [("max_output_tokens", "max_tokens"), ("content_filter", "refusal"), ("Other", "other"), (None, None)],
)
async def test_an_incomplete_answer_says_why(why: str | None, reason: str | None) -> None:
    details = {"reason": why} if why else None
    stream = events(completed(text_item("Hel"), kind="incomplete", incomplete_details=details))
    got = await answer(responses(answering(stream)))
    assert (got.text, got.finish_reason) == ("Hel", reason)


async def test_a_refusal_is_text_with_a_reason_of_its_own() -> None:
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "I can't."}]}
    streamed = events({"type": "response.refusal.delta", "output_index": 0, "delta": "I can't."}, completed(refusal))
    for transport in (answering(streamed), answering(msgspec.json.encode(response(refusal)), kind=JSON)):
        got = await answer(responses(transport))
        assert (got.text, got.finish_reason) == ("I can't.", "refusal")


@pytest.mark.requirement("provider.stream.cut")
async def test_a_stream_without_its_finish_is_a_failure() -> None:
    whole = exchange(CALL).body
    cut = whole[: whole.index(b"event: response.completed")]
    with pytest.raises(ProviderError) as caught:
        await answer(responses(answering(cut)))
    assert caught.value.cls == "server"


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize(
    ("code", "cls"),
    [
        ("server_error", "server"),
        ("rate_limit_exceeded", "rate_limit"),
        ("context_length_exceeded", "context_window"),
        ("invalid_prompt", "invalid_request"),
        ("never_seen", "unknown"),
    ],
)
async def test_an_error_inside_a_begun_stream_is_classified_alike(code: str, cls: str) -> None:
    begun = {"type": "response.output_text.delta", "output_index": 0, "delta": "Hel"}
    error = {"code": code, "message": f"It failed with {KEY}."}
    for end in ({"type": "error", **error}, {"type": "error", "error": error}, completed(kind="failed", error=error)):
        with pytest.raises(ProviderError) as caught:
            await answer(responses(answering(events(begun, end))))
        assert (caught.value.cls, caught.value.code) == (cls, code)
        assert KEY not in caught.value.message


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize(
    "file", [ours("refused_temperature"), *recorded([folder("openai_responses_model_http_error")])]
)
async def test_an_error_answer_has_its_class(file: str) -> None:
    with pytest.raises(ProviderError) as caught:
        await answer(responses(RecordedTransport([exchange(file)])))
    error = caught.value
    assert (error.cls, error.status, error.code) == ("invalid_request", 400, "decimal_below_min_value")
    assert error.message.startswith("Invalid 'temperature'")
    assert not error.retryable


@pytest.mark.parametrize("body", [b"{}", b"[]", b"not json", b'{"object":"list"}'])
async def test_an_answer_that_makes_no_sense_is_a_failure(body: bytes) -> None:
    with pytest.raises(ProviderError) as caught:
        await answer(responses(answering(body, kind=JSON)))
    assert caught.value.cls == "server"


@pytest.mark.requirement("provider.stream.abort", "provider.family.available")
async def test_the_family_conforms() -> None:
    call = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "look", "arguments": '{"n":1}'}
    begun = {"type": "response.output_text.delta", "output_index": 0, "delta": "Hel"}
    upstream = {
        "talk": (200, SSE, HELLO),
        "call": (200, SSE, events(completed(call))),
        "limited": (429, JSON, b'{"error":{"message":"slow down"}}'),
        "cut": (200, SSE, events(begun)),
    }
    async with serving() as silent:

        def build(case: Case) -> OpenAIResponses:
            if case.name == "hung":
                return OpenAIResponses(base_url=silent.url, api_key=KEY)
            return responses(RecordedTransport(replay(upstream[case.name])))

        cases: list[Case] = [
            Answered("talk", ask(model=""), text="Hello", calls=[], finish_reason="end_turn"),
            Answered("call", ask(tools=[spec()]), calls=[("look", {"n": 1})], finish_reason="tool_use"),
            Failed("limited", ask(), cls="rate_limit", retryable=True),
            Failed("cut", ask(), cls="server", text="Hel"),
            # The server notices that it was let go a moment after the provider has done so.
            Aborted("hung", ask(), reached=silent.reached.wait, closed=lambda: True),
        ]
        await check_provider(build, cases)
        await silent.let_go.wait()


async def test_text_that_was_not_streamed_is_taken_from_finished_item() -> None:
    done = {"type": "response.output_item.done", "output_index": 0, "item": text_item("Hello")}
    chunks = await chunks_of(responses(answering(events(done, completed(text_item("Hello"))))))
    assert chunks == [TextDelta("Hello"), Finish("end_turn")]
