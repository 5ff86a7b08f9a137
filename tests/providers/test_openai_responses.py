"""The Responses API, against recorded traffic and a loopback server."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from openai_stand_in import (
    JSON,
    SSE,
    answer,
    answering,
    ask,
    chunks_of,
    events,
    sent_by,
    serving,
    spec,
)

from traffic import exchange, recorded
from weftline.messages import (
    Assistant,
    File,
    Image,
    Message,
    Opaque,
    ProviderCall,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolResults,
    Usage,
    User,
)
from weftline.net.transport import AiohttpTransport
from weftline.providers.base import (
    CallArgs,
    CallDone,
    CallStart,
    Finish,
    ModelInfo,
    ModelRequest,
    OutputSchema,
    ProviderError,
    TextDelta,
    UsageUpdate,
)
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.openai.responses import OpenAIResponses
from weftline.testing import Aborted, Answered, Failed, check_provider
from weftline.testing.providers import Case
from weftline.testing.recordings import RecordedTransport, replay

KEY = "sk-secret-0123456789"


def response(*output: dict[str, Any], status: str = "completed", **fields: Any) -> dict[str, Any]:
    return {"object": "response", "status": status, "output": list(output), **fields}


def text_item(text: str, **fields: Any) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": content, **fields}


def completed(*output: dict[str, Any], kind: str = "completed", **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": response(*output, status=kind, **fields)}


HELLO = events(completed(text_item("Hello")))


def responses(transport: RecordedTransport, **settings: Any) -> OpenAIResponses:
    return OpenAIResponses(transport=transport, base_url="http://stand-in/v1", api_key=KEY, **settings)


async def sent(request: ModelRequest, **settings: Any) -> Any:
    return await sent_by(lambda transport: responses(transport, **settings), HELLO, request)


def folder(name: str) -> str:
    return f"openai_responses/{name}"


def ours(name: str) -> str:
    return f"streams/openai_responses/{name}"


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
ENCRYPTED, ENCRYPTED_RECORDED = ours("encrypted_reasoning"), folder("openai_responses_streaming_usage")
LATE, LATE_RECORDED = ours("reasoning_ends_after_the_text"), folder("openai_responses_raw_cot_stream_openrouter")
SEARCH, SEARCH_RECORDED = ours("file_search"), folder("openai_responses_model_file_search_tool_stream")
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
async def test_the_final_object_of_a_stream_read_as_a_whole_answer_gives_the_same(file: str, number: int) -> None:
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
async def test_pieces_are_passed_on_in_upstream_order_and_one_finish_ends_the_stream(
    file: str, start: CallStart, pieces: tuple[str, ...]
) -> None:
    chunks = await chunks_of(responses(RecordedTransport([exchange(file)])))
    assert chunks == [
        start,
        *(CallArgs(0, piece) for piece in pieces),
        CallDone(0, "".join(pieces)),
        UsageUpdate(Usage(input=255, output=16)),
        Finish("tool_use"),
    ]


@pytest.mark.requirement("provider.stream.tool_calls")
async def test_arguments_at_the_end_of_a_call_win_over_its_pieces() -> None:
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
async def test_reasoning_that_is_completed_after_the_text_still_comes_before_it(
    file: str, thought: str, said: str
) -> None:
    thinking, text = (await answer(responses(RecordedTransport([exchange(file)])))).message().parts
    assert isinstance(thinking, Thinking)
    assert thinking.text == thought
    assert thinking.opaque is not UNSET
    assert msgspec.json.decode(thinking.opaque)["content"] == [{"type": "reasoning_text", "text": thinking.text}]
    assert text == Text(said)


async def test_the_parts_of_a_reasoning_summary_are_paragraphs_streamed_or_not() -> None:
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


@pytest.mark.requirement("provider.extra.reasoning_replay")
@pytest.mark.parametrize("file", [ENCRYPTED, *recorded([ENCRYPTED_RECORDED])])
async def test_encrypted_reasoning_survives_storage_and_goes_back_unchanged_and_in_place(file: str) -> None:
    replayed = exchange(file)
    lines = [line for line in replayed.body.splitlines() if b'"type":"response.output_item.done"' in line]
    reasoning, call = (msgspec.json.decode(line.removeprefix(b"data: "))["item"] for line in lines)
    message = (await answer(responses(RecordedTransport([replayed])))).message()
    stored = msgspec.json.decode(msgspec.json.encode(message), type=Assistant)
    results = ToolResults((ToolResult(stored.calls[0].id, call["name"], (Text("ok"),)),))
    body = await sent(ask(User.of("Calculate"), stored, results, model="gpt-5"))
    assert body["input"] == [
        {"role": "user", "content": "Calculate"},
        reasoning,
        {
            "type": "function_call",
            "call_id": call["call_id"],
            "name": call["name"],
            "arguments": call["arguments"],
        },
        {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"},
    ]
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content"]
    assert "previous_response_id" not in body


async def test_reasoning_with_nothing_after_it_is_not_sent_back() -> None:
    item = Raw(b'{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA"}')
    body = await sent(ask(User.of("a"), Assistant((Thinking("", "openai", None, item),)), User.of("b")))
    assert [one["role"] for one in body["input"]] == ["user", "user"]


@pytest.mark.requirement("provider.extra.other_provider")
async def test_data_of_another_provider_is_left_out() -> None:
    foreign = Assistant(
        (
            Thinking("secret", "anthropic", "sig"),
            Thinking("", "openrouter", None, Raw(b'{"type":"reasoning","encrypted_content":"x"}')),
            Text("Yes."),
            ToolCall("c1", "look", "{}", "google", Raw(b'{"extra_content":{"google":1}}')),
            Opaque("google", Raw(b'{"type":"anything"}')),
            ProviderCall("w1", "web_search", "anthropic", opaque=Raw(b'{"type":"web_search_call"}')),
        )
    )
    body = await sent(ask(User.of("a"), foreign))
    assert body["input"][1:] == [
        {"role": "assistant", "content": "Yes."},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    ]


@pytest.mark.parametrize("file", [ours("reasoning_summary"), *recorded(["openai_chat/openai_model_thinking_part"])])
async def test_a_conversation_of_the_responses_api_goes_on_over_chat_without_its_items(file: str) -> None:
    message = (await answer(responses(RecordedTransport([exchange(file)])))).message()
    transport = answering(b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n')
    provider = OpenAIChat(transport=transport, base_url="http://stand-in/v1", api_key=KEY)
    await answer(provider, ask(User.of("a"), message, User.of("b"), model="o3-mini"))
    body = msgspec.json.decode(transport.sent[0].body)
    assert body["messages"][1] == {"role": "assistant", "content": message.text}


@pytest.mark.requirement("provider.tools.executed")
@pytest.mark.parametrize(
    ("file", "number", "query", "said"),
    [
        (SEARCH, 0, "When is high water?", "High water is at 04:12."),
        *recorded([(SEARCH_RECORDED, 3, "What is the capital of France?", "The capital of France is Paris.")]),
    ],
)
async def test_a_tool_that_openai_ran_is_recorded_never_called_and_goes_back_in_place(
    file: str, number: int, query: str, said: str
) -> None:
    got = await answer(responses(RecordedTransport([exchange(file, number)])))
    ran, text = got.message().parts
    assert isinstance(ran, ProviderCall)
    assert (ran.name, ran.provider, ran.status) == ("file_search", "openai", "completed")
    assert ran.input is not UNSET
    assert msgspec.json.decode(ran.input) == [query]
    assert (text, got.message().calls, got.finish_reason) == (Text(said), (), "end_turn")
    body = await sent(ask(User.of("a"), got.message(), User.of("b")))
    assert [item.get("type") for item in body["input"]] == [None, "file_search_call", None, None]
    assert body["input"][1]["id"] == ran.id


@pytest.mark.requirement("provider.stream.images")
async def test_a_search_for_tools_is_recorded_and_goes_back_with_the_call_that_it_led_to() -> None:
    replayed = exchange(ours("tool_search"))
    message = (await answer(responses(RecordedTransport([replayed])))).message()
    search = message.parts[0]
    assert isinstance(search, ProviderCall)
    assert (search.name, search.status) == ("tool_search", "completed")
    assert msgspec.json.decode(bytes(search.input if search.input is not UNSET else b"")) == {
        "paths": ["harbour"],
        "limit": 3,
    }
    result = ToolResults((ToolResult("call_1", "high_water", (Text("noon"),)),))
    body = await sent(ask(User.of("When?"), message, result))
    kinds = [item["type"] for item in body["input"][1:]]
    assert kinds == ["tool_search_call", "tool_search_output", "function_call", "function_call_output"]
    assert body["input"][1]["arguments"] == {"paths": ["harbour"], "limit": 3}
    assert body["input"][3]["namespace"] == "harbour"


@pytest.mark.parametrize("number", [0, 1], ids=["queued", "in_progress"])
async def test_an_answer_that_has_not_been_written_yet_is_a_failure(number: int) -> None:
    with pytest.raises(ProviderError, match="before its answer was finished") as caught:
        await answer(responses(RecordedTransport([exchange(ours("not_finished"), number)])))
    assert (caught.value.cls, caught.value.retryable) == ("server", False)


async def test_an_item_whose_fields_are_not_those_of_ours_is_kept_as_it_is() -> None:
    odd = {"type": "program_output", "id": 7, "status": 1, "content": "text", "summary": {"a": 1}}
    message = (await answer(responses(answering(events(completed(odd, text_item("Hello"))))))).message()
    assert message.text == "Hello"
    assert odd in (await sent(ask(User.of("hi"), message)))["input"]


async def test_requests_of_one_conversation_name_it() -> None:
    assert (await sent(ask(cache_key="run_1")))["prompt_cache_key"] == "run_1"
    assert "prompt_cache_key" not in await sent(ask())


async def test_a_generated_image_is_kept_once_and_goes_back_with_its_call() -> None:
    item = {
        "type": "image_generation_call",
        "id": "ig_1",
        "status": "completed",
        "output_format": "webp",
        "result": "QUJD" * 40,
    }
    message = (await answer(responses(answering(events(completed(item, text_item("There."))))))).message()
    call, image, _text = message.parts
    assert isinstance(call, ProviderCall)
    assert image == Image("image/webp", data="QUJD" * 40)
    assert msgspec.json.encode(message).count(b"QUJD" * 40) == 1
    body = await sent(ask(User.of("a"), message))
    assert body["input"][1] == item


async def test_the_phase_of_a_message_goes_back_with_it() -> None:
    stream = events(completed(text_item("First I look.", phase="commentary"), text_item("Done.", phase="final_answer")))
    message = (await answer(responses(answering(stream)))).message()
    assert message.text == "First I look.Done."
    body = await sent(ask(User.of("a"), message))
    assert body["input"][1:] == [
        {"role": "assistant", "content": "First I look.", "phase": "commentary"},
        {"role": "assistant", "content": "Done.", "phase": "final_answer"},
    ]


async def test_items_that_are_not_known_go_back_unchanged() -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}
    message = (await answer(responses(answering(events(completed(item, text_item("x"))))))).message()
    assert (await sent(ask(User.of("a"), message)))["input"][1] == item


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


LEVELS: list[tuple[str, dict[int, str | None]]] = [
    ("gpt-5", {0: "minimal", 15: "minimal", 30: "low", 50: "medium", 80: "high", 100: "high"}),
    ("gpt-5-mini-2025-08-07", {0: "minimal", 15: "minimal", 80: "high"}),
    ("gpt-5.5", {0: "none", 15: "low", 30: "low", 50: "medium", 80: "high", 90: "xhigh", 100: "xhigh"}),
    ("gpt-5.6-sol", {0: "none", 90: "xhigh", 100: "max"}),
    ("gpt-6-sol", {0: "none", 80: "high", 90: "xhigh", 100: "max"}),
    ("gpt-6-astra", {0: "low", 100: "max"}),
    ("gpt-5.1-codex", {0: "low", 80: "high", 100: "high"}),
    ("gpt-5.1-codex-max", {0: "low", 90: "xhigh"}),
    ("gpt-5.3-codex", {0: "low", 90: "xhigh"}),
    ("gpt-5.4-pro", {0: "medium", 80: "high", 100: "xhigh"}),
    ("o3", {0: "low", 15: "low", 30: "low", 50: "medium", 80: "high"}),
    ("o1-mini", {0: None, 80: None}),
    ("gpt-4o", {0: None, 30: None, 80: None}),
    ("gpt-4.1-mini", {80: None}),
    ("my-own", {80: None}),
]


@pytest.mark.requirement("provider.reasoning.openai")
@pytest.mark.parametrize(("model", "levels"), LEVELS)
async def test_a_level_becomes_the_effort_of_the_model_or_no_field(model: str, levels: dict[int, str | None]) -> None:
    provider = responses(answering(HELLO))
    for level, effort in levels.items():
        body = await sent(ask(model=model, reasoning=level))
        assert body.get("reasoning", {}).get("effort") == effort
        assert ("reasoning" in body) is (effort is not None)
        assert ("include" in body) is provider.takes_reasoning(model) is (effort is not None)


async def test_a_summary_is_asked_for_above_level_0_unless_it_is_switched_off() -> None:
    assert (await sent(ask(model="gpt-5", reasoning=50)))["reasoning"]["summary"] == "auto"
    assert "summary" not in (await sent(ask(model="gpt-5", reasoning=0)))["reasoning"]
    assert "summary" not in (await sent(ask(model="gpt-5", reasoning=50), reasoning_summary="none"))["reasoning"]
    assert "reasoning" not in await sent(ask(model="gpt-5"))


@pytest.mark.requirement("provider.schema.openai", "provider.schema.with_reasoning")
async def test_the_output_schema_is_sent_verbatim_on_every_turn_together_with_the_tools() -> None:
    limited = b'{"type": "number", "minimum": 1.50, "maximum": 123456789012345678901234567890}'
    verbatim = (
        b'{"type": "object", "properties": {"a": %b}, "required": ["a"], "additionalProperties": false}' % limited
    )
    transport = RecordedTransport(replay(*[(200, SSE, HELLO)] * 2))
    provider = responses(transport)
    request = ask(model="gpt-5", tools=[spec()], output_schema=OutputSchema("report", Raw(verbatim)), reasoning=80)
    for _ in range(2):
        await answer(provider, request)
    for one in transport.sent:
        body = msgspec.json.decode(one.body)
        assert verbatim in one.body
        assert {name: body["text"]["format"][name] for name in ("type", "strict", "name")} == {
            "type": "json_schema",
            "strict": True,
            "name": "report",
        }
        assert body["reasoning"]["effort"] == "high"
        assert [tool["name"] for tool in body["tools"]] == ["look"]


@pytest.mark.requirement("provider.request.parameters")
async def test_parameters_appear_in_native_form_and_those_that_the_api_lacks_are_left_out() -> None:
    body = await sent(
        ask(
            tools=[spec("a.b")],
            tool_choice=("tool", "a.b"),
            parallel_tool_calls=True,
            max_output_tokens=100,
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            stop=["END"],
            system="Be brief.",
        )
    )
    settings = {key: value for key, value in body.items() if key not in ("input", "tools")}
    assert settings == {
        "model": "gpt-4o",
        "instructions": "Be brief.",
        "store": False,
        "stream": True,
        "tool_choice": {"type": "function", "name": "a_b"},
        "parallel_tool_calls": True,
        "max_output_tokens": 100,
        "temperature": 0.5,
        "top_p": 0.9,
    }
    for choice in ("auto", "none", "required"):
        assert (await sent(ask(tools=[spec()], tool_choice=choice)))["tool_choice"] == choice
    assert (await sent(ask(tools=[spec()], tools_disabled=True)))["tool_choice"] == "none"
    drawing = [spec("provider:image_generation"), spec("provider:web_search")]
    chosen = (await sent(ask(tools=drawing, tool_choice=("tool", "provider:image_generation"))))["tool_choice"]
    assert chosen == {"type": "image_generation"}
    chosen = (await sent(ask(tools=drawing, tool_choice=("tool", "provider:web_search"))))["tool_choice"]
    assert chosen == {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}
    assert not {"temperature", "top_p"} & (await sent(ask(model="gpt-5", temperature=1, top_p=1))).keys()
    assert "parallel_tool_calls" not in await sent(ask(model="o3", tools=[spec()], parallel_tool_calls=True))


@pytest.mark.requirement("provider.request.images")
async def test_images_and_files_are_sent_natively_also_in_tool_results() -> None:
    image, linked = Image("image/png", data="QUJD"), Image("image/png", url="https://example.org/a.png")
    pdf = File("application/pdf", data="QUJD", name="a.pdf")
    results = ToolResults((ToolResult("c1", "shot", (Text("Done."), image, pdf)),))
    body = await sent(ask(User((Text("See:"), linked)), Assistant((ToolCall("c1", "shot"),)), results))
    assert body["input"][0]["content"] == [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"},
    ]
    assert body["input"][2]["output"] == [
        {"type": "input_text", "text": "Done."},
        {"type": "input_image", "image_url": "data:image/png;base64,QUJD", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"},
    ]
    blind = await sent(ask(User((image,)), model="blind"), models=[ModelInfo("blind", vision=False)])
    assert "QUJD" not in str(blind)


async def test_tools_say_whether_they_are_strict() -> None:
    closed = '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}'
    body = await sent(ask(tools=[spec("one", closed), spec("two", '{"type":"object"}')]))
    assert [(tool["name"], tool["strict"]) for tool in body["tools"]] == [("one", True), ("two", False)]
    assert body["tools"][1]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.requirement("provider.tools.builtin")
async def test_a_tool_of_openai_is_selected_by_name_and_an_unknown_one_is_refused_before_the_request() -> None:
    searching = spec("provider:file_search", '{"vector_store_ids":["vs_1"]}')
    body = await sent(ask(tools=[spec(), searching, spec("provider:code_interpreter")]))
    assert [tool["type"] for tool in body["tools"]] == ["function", "file_search", "code_interpreter"]
    assert body["tools"][1]["vector_store_ids"] == ["vs_1"]
    body = await sent(ask(tools=[spec("provider:shell"), spec("provider:tool_search")]))
    assert body["tools"] == [{"type": "shell", "environment": {"type": "container_auto"}}, {"type": "tool_search"}]
    transport = answering(HELLO)
    provider = responses(transport)
    with pytest.raises(ProviderError, match="teleport") as caught:
        await answer(provider, ask(tools=[spec("provider:teleport")]))
    assert caught.value.cls == "invalid_request"
    assert transport.sent == []
    assert "web_search" in provider.builtin_tools()


@pytest.mark.requirement("provider.request.tool_names")
async def test_a_tool_with_a_name_that_is_not_allowed_is_called_under_its_own_name() -> None:
    item = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "files_read", "arguments": "{}"}
    got = await answer(responses(answering(events(completed(item)))), ask(tools=[spec("files.read")]))
    assert [call.name for call in got.message().calls] == ["files.read"]


@pytest.mark.requirement("provider.cache.stable_prefix", "provider.cache.markers")
async def test_a_request_begins_with_the_bytes_of_the_one_before() -> None:
    transport = RecordedTransport(replay(*[(200, SSE, HELLO)] * 3))
    provider = responses(transport)
    messages: list[Message] = [User.of("Hello")]
    request = ModelRequest("gpt-5", messages, system="Be brief.", tools=[spec("a.b"), spec("c")])
    thought = Raw(b'{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA"}')
    for index in range(3):
        await answer(provider, request)
        messages.append(Assistant((Thinking("", "openai", None, thought), ToolCall(f"c{index}", "a.b"))))
        messages.append(ToolResults((ToolResult(f"c{index}", "a.b", (Text("ok"),)),)))
    bodies = [one.body for one in transport.sent]
    for earlier, later in pairwise(bodies):
        assert later.startswith(earlier[: earlier.index(b'],"store":')])
        assert b"cache_control" not in later
    again = RecordedTransport(replay((200, SSE, HELLO)))
    fresh = ModelRequest("gpt-5", messages[:5], system="Be brief.", tools=[spec("a.b"), spec("c")])
    await answer(responses(again), fresh)
    assert again.sent[0].body == bodies[2]


@pytest.mark.requirement("provider.request.inspect")
async def test_the_native_request_can_be_inspected_without_key_and_binary_content() -> None:
    transport = answering(HELLO)
    provider = responses(transport)
    request = ask(User((Image("image/png", data="QUJD" * 100),)))
    shown = provider.native_request(request)
    await answer(provider, request)
    assert shown.url == transport.sent[0].url == "http://stand-in/v1/responses"
    assert shown.body.replace(b"[elided]", b"QUJD" * 100) == transport.sent[0].body
    assert KEY not in f"{shown} {provider!r}"
    assert transport.sent[0].headers["Authorization"] == f"Bearer {KEY}"


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


async def test_text_that_was_not_streamed_is_taken_from_the_finished_item() -> None:
    done = {"type": "response.output_item.done", "output_index": 0, "item": text_item("Hello")}
    chunks = await chunks_of(responses(answering(events(done, completed(text_item("Hello"))))))
    assert chunks == [TextDelta("Hello"), Finish("end_turn")]
