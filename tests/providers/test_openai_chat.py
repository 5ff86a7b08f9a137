"""Chat Completions and the servers that speak it, against recorded traffic and a loopback server."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
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
    Image,
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
from weftline.net.limits import TimeLimits
from weftline.net.transport import AiohttpTransport
from weftline.providers.base import (
    CallArgs,
    CallDone,
    CallStart,
    Chunk,
    Finish,
    ModelRequest,
    ProviderError,
    TextDelta,
    ThinkingDelta,
    ThinkingDone,
    UsageUpdate,
)
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.openai.profiles import PROFILES
from weftline.testing import Aborted, Answered, Failed, check_provider
from weftline.testing.providers import Case
from weftline.testing.recordings import RecordedTransport, replay

KEY = "sk-secret-0123456789"
DONE = b"[DONE]"


def part(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


HELLO = events(part({"content": "Hello"}), part({}, "stop"), DONE)


def chat(transport: RecordedTransport, profile: str = "openai", **settings: Any) -> OpenAIChat:
    base_url = settings.pop("base_url", "http://stand-in/v1")
    return OpenAIChat(profile=profile, transport=transport, base_url=base_url, api_key=KEY, **settings)


async def sent(request: ModelRequest, profile: str = "openai", **settings: Any) -> Any:
    return await sent_by(lambda transport: chat(transport, profile, **settings), HELLO, request)


Row = tuple[str, int, str, str, list[tuple[str, str]], str, Usage]
OURS: list[Row] = [
    (
        "streams/openai_chat/call_then_text", 0, "openai",
        "", [("home_port", '{"coast":"Finnmark"}')], "tool_use", Usage(input=53, output=15),
    ),
    (
        "streams/openai_chat/call_then_text", 1, "openai",
        "You sail from Vardø.", [], "end_turn", Usage(input=78, output=9),
    ),
    (
        "streams/openai_chat/verdict_after_usage", 0, "openai",
        "Vardø.", [], "end_turn", Usage(input=13, output=11),
    ),
    (
        "streams/openai_chat/not_streamed", 0, "openai",
        "", [("home_port", '{"coast":"Finnmark"}')], "tool_use", Usage(input=50, output=15),
    ),
    (
        "streams/openai_chat/not_streamed", 1, "openai",
        '{"port":"Vardø"}', [], "end_turn", Usage(input=577, reasoning=1792, output=2320),
    ),
    (
        "streams/openai_chat/call_without_id", 0, "compatible",
        "", [("time_now", "{}")], "tool_use", Usage(input=35, output=12),
    ),
    (
        "streams/openai_chat/call_without_id", 1, "compatible",
        "It is noon.", [], "end_turn", Usage(input=66, output=6),
    ),
    (
        "streams/openrouter/reasoning_between_comments", 0, "openrouter",
        "3 + 4 = 7", [], "end_turn", Usage(input=43, reasoning=13, output=36),
    ),
    (
        "streams/openrouter/reasoning_details", 0, "openrouter",
        "Short answer: twice a day.", [], "end_turn", Usage(input=41, reasoning=704, output=1457),
    ),
    (
        "streams/openrouter/reasoning_details", 1, "openrouter",
        "", [("divide", '{"a": 6, "b": 7}')], "tool_use", Usage(input=134, output=43),
    ),
    ("streams/groq/thinking", 0, "groq", "Tie a **bowline**.", [], "end_turn", Usage(input=21, output=1414)),
    ("streams/groq/thinking", 1, "groq", "Then a cleat hitch.", [], "end_turn", Usage(input=524, output=1590)),
    (
        "streams/groq/malformed_call", 1, "groq",
        "", [("port_of", '{"coast":"Finnmark"}')], "tool_use", Usage(input=301, reasoning=22, output=52),
    ),
    (
        "streams/groq/malformed_call", 2, "groq",
        "It is Vardø.", [], "end_turn", Usage(input=336, cached=256, reasoning=59, output=96),
    ),
]  # fmt: skip
LISTS: list[Row] = [
    ("streams/mistral/thinking", 0, "mistral", "Twice a day.", [], "end_turn", Usage(input=17, output=31)),
    (
        "streams/mistral/thinking", 1, "mistral",
        "I look it up.", [("home_port", '{"coast": "Finnmark"}')], "tool_use", Usage(input=60, output=25),
    ),
]  # fmt: skip
"""Content that is a list, which the official client does not read."""
RECORDED: list[Row] = [
    (
        "openai_chat/compatible_api_with_tool_calls_without_id", 0, "compatible",
        "", [("get_current_time", "{}")], "tool_use", Usage(input=35, output=12),
    ),
    (
        "openai_chat/compatible_api_with_tool_calls_without_id", 1, "compatible",
        "The current time is Noon.", [], "end_turn", Usage(input=66, output=6),
    ),
    (
        "openai_chat/openai_instructions_with_tool_calls_keep_instructions", 0, "openai",
        "", [("get_temperature", '{"city":"Tokyo"}')], "tool_use", Usage(input=50, output=15),
    ),
    (
        "openai_chat/openai_instructions_with_tool_calls_keep_instructions", 1, "openai",
        "The temperature in Tokyo is currently 20.0 degrees Celsius.", [], "end_turn", Usage(input=75, output=15),
    ),
    (
        "openai_chat/openai_model_thinking_part", 1, "openai",
        "When it comes to crossing a river", [], "end_turn", Usage(input=577, reasoning=1792, output=2320),
    ),
    ("openai_chat/openai_moderation_stream", 0, "openai", "Paris.", [], "end_turn", Usage(input=13, output=11)),
    (
        "openai_chat/openai_native_output", 0, "openai",
        "", [("get_user_country", "{}")], "tool_use", Usage(input=71, output=12),
    ),
    (
        "openai_chat/openai_native_output", 1, "openai",
        '{"city":"Mexico City","country":"Mexico"}', [], "end_turn", Usage(input=92, output=15),
    ),
    (
        "openai_chat/run_stream_sync_streams_real_model", 0, "openai",
        "", [("get_capital", '{"country":"UK"}')], "tool_use", Usage(input=53, output=15),
    ),
    (
        "openai_chat/run_stream_sync_streams_real_model", 1, "openai",
        "The capital of the UK is London.", [], "end_turn", Usage(input=78, output=9),
    ),
    (
        "openrouter/openrouter_preserve_reasoning_block", 0, "openrouter",
        "Hello! How can I help you today?", [], "end_turn", Usage(input=8, output=15),
    ),
    (
        "openrouter/openrouter_preserve_reasoning_block", 1, "openrouter",
        "Short answer: Very large.", [], "end_turn", Usage(input=41, reasoning=704, output=1457),
    ),
    (
        "openrouter/openrouter_streaming_reasoning", 0, "openrouter",
        "2 + 2 = 4", [], "end_turn", Usage(input=43, reasoning=13, output=36),
    ),
    (
        "openrouter/openrouter_tool_calling", 0, "openrouter",
        "", [("divide", '{"numerator": 123, "denominator": 456, "on_inf": "infinity"}')], "tool_use",
        Usage(input=134, output=43),
    ),
    (
        "groq/groq_model_thinking_part", 0, "groq",
        "To make Uruguayan alfajores,", [], "end_turn", Usage(input=21, output=1414),
    ),
    (
        "groq/groq_model_thinking_part", 1, "groq",
        "To create authentic Argentinian alfajores,", [], "end_turn", Usage(input=524, output=1590),
    ),
    (
        "groq/tool_use_failed_error", 1, "groq",
        "", [("get_something_by_name", '{"name":"test"}')], "tool_use", Usage(input=301, reasoning=22, output=52),
    ),
    (
        "groq/tool_use_failed_error", 2, "groq",
        "The first call failed", [], "end_turn", Usage(input=336, cached=256, reasoning=59, output=96),
    ),
]  # fmt: skip


@pytest.mark.requirement("provider.usage.mapping", "provider.stream.finish_reason")
@pytest.mark.parametrize(
    ("file", "number", "profile", "text", "calls", "reason", "usage"), [*OURS, *LISTS, *recorded(RECORDED)]
)
async def test_an_answer_gives_its_text_calls_reason_and_usage(
    file: str, number: int, profile: str, text: str, calls: list[tuple[str, str]], reason: str, usage: Usage
) -> None:
    got = await answer(chat(RecordedTransport([exchange(file, number)]), profile))
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
        text, calls, tokens = await _official(api.url, streamed=streamed)
        transport = AiohttpTransport()
        provider = OpenAIChat(profile="compatible", transport=transport, base_url=api.url, api_key=KEY)
        got = await answer(provider)
        await transport.aclose()
    message = got.message()
    thoughts = "".join(one.text for one in message.parts if isinstance(one, Thinking))
    # The client hands `<think>` on as part of the text.
    assert message.text == re.sub(r"(?s)^<think>.*?</think>\s*", "", text)
    assert not text.startswith("<think>") or thoughts in text
    assert [(call.name, call.args, call.id) for call in message.calls] == calls
    assert (got.usage.input, got.usage.output) == tokens


async def _official(url: str, *, streamed: bool) -> tuple[str, list[tuple[str, str, str]], tuple[int, int]]:
    messages: Any = [{"role": "user", "content": "hi"}]
    text, tokens = "", (0, 0)
    calls: dict[int, list[str]] = {}
    async with openai.AsyncOpenAI(api_key=KEY, base_url=url, max_retries=0) as client:
        if not streamed:
            whole = await client.chat.completions.create(model="m", messages=messages)
            said = whole.choices[0].message
            found = [
                (c.function.name, c.function.arguments, c.id) for c in said.tool_calls or [] if c.type == "function"
            ]
            assert whole.usage is not None
            return said.content or "", found, (whole.usage.prompt_tokens, whole.usage.completion_tokens)
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        async for one in stream:
            if one.usage is not None:
                tokens = (one.usage.prompt_tokens, one.usage.completion_tokens)
            for choice in one.choices:
                text += choice.delta.content or ""
                for piece in choice.delta.tool_calls or []:
                    call = calls.setdefault(piece.index, ["", "", ""])
                    function = piece.function
                    call[0] += (function and function.name) or ""
                    call[1] += (function and function.arguments) or ""
                    call[2] += piece.id or ""
    return text, [(name, args, id) for name, args, id in calls.values()], tokens


CALL = "streams/openai_chat/call_then_text"
CALL_RECORDED = "openai_chat/run_stream_sync_streams_real_model"
REASONING = "streams/openrouter/reasoning_between_comments"
REASONING_RECORDED = "openrouter/openrouter_streaming_reasoning"
SPLIT = [
    (CALL, "openai"),
    ("streams/openai_chat/verdict_after_usage", "openai"),
    (REASONING, "openrouter"),
    *recorded(
        [
            (CALL_RECORDED, "openai"),
            ("openai_chat/openai_moderation_stream", "openai"),
            (REASONING_RECORDED, "openrouter"),
        ]
    ),
]


@pytest.mark.requirement("provider.stream.equals_generate")
@pytest.mark.parametrize(("file", "profile"), SPLIT)
@given(data=st.data())
async def test_however_the_bytes_are_split_the_chunks_are_the_same(
    data: st.DataObject, file: str, profile: str
) -> None:
    replayed = exchange(file)
    cuts = data.draw(st.lists(st.integers(1, len(replayed.body) - 1), max_size=12))
    whole = await chunks_of(chat(RecordedTransport([replayed]), profile))
    split = await chunks_of(chat(RecordedTransport([replayed], cuts=cuts), profile))
    assert msgspec.json.encode(split) == msgspec.json.encode(whole)


@pytest.mark.parametrize("file", [REASONING, *recorded([REASONING_RECORDED])])
async def test_one_byte_at_a_time_gives_the_same_chunks(file: str) -> None:
    replayed = exchange(file)
    whole = await chunks_of(chat(RecordedTransport([replayed]), "openrouter"))
    split = await chunks_of(chat(RecordedTransport([replayed], piece_bytes=1), "openrouter"))
    assert msgspec.json.encode(split) == msgspec.json.encode(whole)


@pytest.mark.requirement("provider.stream.equals_generate")
async def test_an_answer_that_is_not_streamed_gives_the_same_message() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    message = {"role": "assistant", "reasoning": "Hm.", "content": "Let me look.", "tool_calls": [call]}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": usage}
    streamed = events(
        part({"role": "assistant", "content": "", "reasoning": "H"}),
        part({"reasoning": "m."}),
        part({"content": "Let me "}),
        part({"content": "look."}),
        part({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": ""}}]}),
        part({"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}),
        part({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}, "tool_calls"),
        {"choices": [], "usage": usage},
        DONE,
    )
    first = await answer(chat(answering(streamed), "groq"))
    second = await answer(chat(answering(msgspec.json.encode(whole), kind=JSON), "groq"))
    assert first.message() == second.message()
    assert (first.usage, first.finish_reason) == (second.usage, second.finish_reason)


@pytest.mark.requirement("provider.stream.incremental")
@pytest.mark.parametrize(
    ("file", "start", "pieces"),
    [
        (CALL, CallStart(0, "home_port", "call_port"), ('{"', "coast", '":"', "Finnmark", '"}')),
        *recorded(
            [
                (
                    CALL_RECORDED,
                    CallStart(0, "get_capital", "call_ZR5UUuTt3pf61kjwAJIYdVMj"),
                    ('{"', "country", '":"', "UK", '"}'),
                )
            ]
        ),
    ],
)
async def test_pieces_are_passed_on_in_upstream_order_and_one_finish_ends_the_stream(
    file: str, start: CallStart, pieces: tuple[str, ...]
) -> None:
    chunks = await chunks_of(chat(RecordedTransport([exchange(file)])))
    assert chunks[0] == start
    assert chunks[1:6] == [CallArgs(0, piece) for piece in pieces]
    assert chunks[6:] == [UsageUpdate(Usage(input=53, output=15)), CallDone(0), Finish("tool_use")]


def named(*pieces: str, index: int = 0) -> list[dict[str, Any]]:
    return [part({"tool_calls": [{"index": index, "function": {"name": piece}}]}) for piece in pieces]


@pytest.mark.requirement("provider.stream.tool_calls")
@pytest.mark.parametrize(
    ("pieces", "names"),
    [
        (("get", "_wea", "ther"), ["get_weather"]),
        (("get_weather", "get_weather"), ["get_weather"]),
        (("", "get_weather"), ["get_weather"]),
        (("get_weather", "now"), ["get_weather", "now"]),
        (("get_", "now"), ["get_now"]),
    ],
)
@pytest.mark.parametrize("args", ["", '{"a":1}'])
async def test_a_name_that_comes_in_pieces_is_put_together(
    pieces: tuple[str, ...], names: list[str], args: str
) -> None:
    tools = [spec(name) for name in ("get_weather", "now")]
    rest = [part({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}) for piece in (args[:3], args[3:])]
    stream = events(*named(*pieces), *rest, part({}, "tool_calls"), DONE)
    calls = (await answer(chat(answering(stream)), ask(tools=tools))).message().calls
    assert [call.name for call in calls] == names and calls[-1].args == (args or "{}")


@pytest.mark.parametrize("broken", [False, True])
async def test_an_answer_that_says_why_it_stopped_is_complete_without_its_last_event(broken: bool) -> None:
    cut = answering(events(part({"content": "Hello"}), part({}, "stop")), broken=broken)
    got = await answer(chat(cut))
    assert (got.text, got.finish_reason) == ("Hello", "end_turn")


@pytest.mark.parametrize(
    "after",
    [
        {"error": {"message": "overloaded", "code": 503}},
        {"error": {"message": "overloaded"}, **part({}, "error")},
        b"{",
    ],
    ids=["error", "choice", "unreadable"],
)
async def test_a_failure_after_an_answer_has_said_why_it_stopped_does_not_invalidate_it(after: Any) -> None:
    got = await answer(chat(answering(events(part({"content": "Hello"}), part({}, "stop"), after))))
    assert (got.text, got.finish_reason, got.complete) == ("Hello", "end_turn", True)


async def test_an_error_that_comes_with_the_reason_is_an_error() -> None:
    both = {**part({}, "stop"), "error": {"message": "overloaded", "code": 503}}
    with pytest.raises(ProviderError):
        await answer(chat(answering(events(part({"content": "Hello"}), both))))


@pytest.mark.requirement("provider.stream.tool_calls")
async def test_interleaved_calls_are_told_apart_by_their_index() -> None:
    stream = events(
        part({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "one", "arguments": ""}}]}),
        part({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "two", "arguments": ""}}]}),
        part({"tool_calls": [{"index": 0, "function": {"arguments": '{"x":'}}]}),
        part({"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}),
        part({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
        part({}, "stop"),
        DONE,
    )
    got = await answer(chat(answering(stream)))
    assert [(call.id, call.name, call.args) for call in got.message().calls] == [
        ("a", "one", '{"x":1}'),
        ("b", "two", "{}"),
    ]
    assert got.finish_reason == "tool_use"


async def test_calls_that_a_server_numbers_alike_are_told_apart_by_their_ids() -> None:
    stream = events(
        part({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "one", "arguments": "{}"}}]}),
        part({"tool_calls": [{"index": 0, "id": "b", "function": {"name": "one", "arguments": "{}"}}]}),
        part({}, "tool_calls"),
        DONE,
    )
    assert [call.id for call in (await answer(chat(answering(stream), "ollama"))).message().calls] == ["a", "b"]


async def test_calls_without_ids_that_a_server_numbers_alike_are_told_apart_by_their_arguments() -> None:
    def piece(arguments: str) -> dict[str, Any]:
        return part({"tool_calls": [{"index": 0, "id": "", "function": {"name": "one", "arguments": arguments}}]})

    stream = events(piece('{"a"'), piece(":1}"), piece('{"a":2}'), part({}, "tool_calls"), DONE)
    calls = (await answer(chat(answering(stream), "compatible"))).message().calls
    assert [call.args for call in calls] == ['{"a":1}', '{"a":2}']


async def test_a_connection_is_used_again_for_the_next_call() -> None:
    async with serving(*replay(*[(200, SSE, HELLO)] * 3)) as api:
        provider = OpenAIChat(profile="compatible", base_url=api.url, api_key=KEY)
        for _ in range(3):
            assert (await answer(provider)).text == "Hello"
        await provider.aclose()
    assert len(api.peers) == 1


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("streams/openai_chat/call_without_id", "time_now"),
        *recorded([("openai_chat/compatible_api_with_tool_calls_without_id", "get_current_time")]),
    ],
)
async def test_a_call_without_an_upstream_id_starts_without_one(file: str, name: str) -> None:
    chunks = await chunks_of(chat(RecordedTransport([exchange(file)]), "compatible"))
    starts = [chunk for chunk in chunks if isinstance(chunk, CallStart)]
    assert [(start.name, start.id) for start in starts] == [(name, None)]


@pytest.mark.parametrize(
    ("said", "calls", "reason"),
    [
        ("stop", False, "end_turn"),
        ("stop", True, "tool_use"),
        ("length", True, "max_tokens"),
        ("content_filter", False, "refusal"),
        ("function_call_filter: MALFORMED_FUNCTION_CALL", False, "malformed_function_call"),
        ("Something_New", False, "something_new"),
    ],
)
@pytest.mark.requirement("provider.stream.finish_reason")
async def test_finish_reasons_become_one_set_of_lowercase_words(said: str, calls: bool, reason: str) -> None:
    call = [{"index": 0, "id": "a", "function": {"name": "one", "arguments": "{}"}}]
    stream = events(part({"tool_calls": call} if calls else {"content": "x"}), part({}, said), DONE)
    assert (await answer(chat(answering(stream)))).finish_reason == reason


async def test_a_refusal_is_text_with_a_reason_of_its_own() -> None:
    got = await answer(chat(answering(events(part({"refusal": "I can't."}), part({}, "stop"), DONE))))
    assert (got.text, got.finish_reason) == ("I can't.", "refusal")


@pytest.mark.requirement("provider.stream.cut")
@pytest.mark.parametrize("stream", [events(part({"content": "Hel"})), b"", events(DONE)])
async def test_a_stream_without_its_finish_is_a_failure(stream: bytes) -> None:
    with pytest.raises(ProviderError) as caught:
        await answer(chat(answering(stream)))
    assert caught.value.cls == "server"


@pytest.mark.requirement("provider.stream.cut")
async def test_a_finish_with_empty_text_is_a_completed_turn() -> None:
    got = await answer(chat(answering(events(part({"content": ""}), part({}, "stop"), DONE))))
    assert (got.complete, got.text) == (True, "")


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize(
    ("status", "error", "cls", "retryable"),
    [
        (429, {"message": "slow down", "code": "rate_limit_exceeded"}, "rate_limit", True),
        (429, {"message": "no money", "code": "insufficient_quota"}, "rate_limit", False),
        (503, {"message": "busy"}, "overloaded", True),
        (500, {"message": "oops", "type": "server_error"}, "server", True),
        (400, {"message": "too long", "code": "context_length_exceeded"}, "context_window", False),
        (400, {"message": "bad", "code": None}, "invalid_request", False),
        (401, {"message": f"Incorrect API key provided: {KEY}.", "code": "invalid_api_key"}, "auth", False),
        (418, {"message": "teapot"}, "unknown", False),
    ],
)
async def test_failures_have_a_class_and_say_whether_to_try_again(
    status: int, error: dict[str, Any], cls: str, retryable: bool
) -> None:
    body = msgspec.json.encode({"error": error})
    with pytest.raises(ProviderError) as caught:
        await answer(chat(answering(body, status=status, kind=JSON)))
    assert (caught.value.cls, caught.value.retryable, caught.value.status) == (cls, retryable, status)


@pytest.mark.requirement("provider.request.key_secrecy")
async def test_a_key_that_the_server_echoes_is_not_in_the_error() -> None:
    body = msgspec.json.encode({"error": {"message": f"Incorrect API key provided: {KEY}."}})
    provider = chat(answering(body, status=401, kind=JSON))
    with pytest.raises(ProviderError) as caught:
        await answer(provider)
    assert KEY not in f"{caught.value!r} {caught.value.message} {provider!r}"


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize(
    ("file", "profile", "failure"),
    [
        ("streams/openrouter/rate_limited", "openrouter", ("rate_limit", 429, True)),
        ("streams/openai_chat/refused_option", "openai", ("invalid_request", 400, False)),
        *recorded(
            [
                ("openrouter/openrouter_errors_raised", "openrouter", ("rate_limit", 429, True)),
                ("openai_chat/openai_web_search_tool_model_not_supported", "openai", ("invalid_request", 400, False)),
            ]
        ),
    ],
)
async def test_error_answers_have_their_class(file: str, profile: str, failure: tuple[str, int, bool]) -> None:
    with pytest.raises(ProviderError) as caught:
        await answer(chat(RecordedTransport([exchange(file)]), profile))
    assert (caught.value.cls, caught.value.status, caught.value.retryable) == failure


async def test_retry_after_is_kept() -> None:
    limited = replay((429, JSON, b'{"error":{"message":"slow"}}'))[0]
    waiting = msgspec.structs.replace(limited, headers={**limited.headers, "retry-after": "7"})
    with pytest.raises(ProviderError) as caught:
        await answer(chat(RecordedTransport([waiting])))
    assert caught.value.retry_after_s == 7


@pytest.mark.requirement("provider.error.classes")
@pytest.mark.parametrize(
    ("file", "thoughts"),
    [
        ("streams/openrouter/error_in_the_stream", ("A greeting", " needs an answer")),
        *recorded([("openrouter/openrouter_stream_error", ("We need", " to respond to a greeting. The user"))]),
    ],
)
async def test_an_error_inside_a_begun_stream_is_classified_alike(file: str, thoughts: tuple[str, str]) -> None:
    provider = chat(RecordedTransport([exchange(file)]), "openrouter")
    chunks: list[Chunk] = []

    async def read() -> None:
        async for some in provider.stream(ask()):
            chunks.extend(some)

    with pytest.raises(ProviderError) as caught:
        await read()
    assert (caught.value.cls, caught.value.status) == ("invalid_request", 400)
    assert chunks[:2] == [ThinkingDelta(thought) for thought in thoughts]
    assert chunks[-1] == UsageUpdate(Usage(input=43, reasoning=10, output=10))
    assert not any(isinstance(chunk, Finish) for chunk in chunks)


@pytest.mark.requirement("provider.stream.bad_arguments")
@pytest.mark.parametrize(
    ("file", "call"),
    [
        ("streams/groq/malformed_call", ("port_of", {"shore": "Finnmark"})),
        *recorded([("groq/tool_use_failed_error", ("get_something_by_name", {"foo": "bar"}))]),
    ],
)
async def test_a_call_that_the_server_found_malformed_comes_back_as_a_call(file: str, call: tuple[str, Any]) -> None:
    got = await answer(chat(RecordedTransport([exchange(file)]), "groq"))
    assert [(one.name, msgspec.json.decode(one.args)) for one in got.message().calls] == [call]
    assert got.finish_reason == "malformed_function_call"


async def test_a_malformed_call_that_cannot_be_read_comes_back_as_text() -> None:
    error = {"code": "tool_use_failed", "message": "Failed to call a function.", "failed_generation": "<function=x"}
    streamed = events(part({"reasoning": "hm"}), {"error": error})
    got = await answer(chat(answering(streamed), "groq"))
    assert (got.text, got.finish_reason) == ("<function=x", "malformed_function_call")


async def test_an_answer_without_usage_or_with_absurd_counts_does_not_fail() -> None:
    odd = b'{"choices":[],"usage":{"prompt_tokens":NaN,"completion_tokens":-4,"prompt_tokens_details":null}}'
    assert (await answer(chat(answering(HELLO)))).usage == Usage()
    got = await answer(chat(answering(events(part({"content": "x"}, "stop"), odd, DONE))))
    assert (got.text, got.usage) == ("x", Usage())


@pytest.mark.requirement("provider.usage.robust")
@pytest.mark.parametrize("count", ["null", "-1", "1e999", "NaN", '"many"', "{}", "true"])
async def test_a_count_that_makes_no_sense_is_zero(count: str) -> None:
    usage = f'{{"choices":[],"usage":{{"prompt_tokens":{count},"completion_tokens":2}}}}'
    got = await answer(chat(answering(events(part({"content": "x"}, "stop"), usage.encode(), DONE))))
    assert got.usage == Usage(output=2)


@pytest.mark.requirement("provider.usage.mapping")
async def test_cache_reads_and_writes_are_kept_apart() -> None:
    details = {"cached_tokens": 60, "cache_write_tokens": 30}
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": details}
    got = await answer(chat(answering(events(part({"content": "x"}, "stop"), {"usage": usage}, DONE)), "openrouter"))
    assert got.usage == Usage(input=100, cached=60, output=5, cache_write=30)


async def test_reasoning_that_a_server_counts_apart_becomes_part_of_the_output() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 20}}
    got = await answer(chat(answering(events(part({"content": "x"}, "stop"), {"usage": usage}, DONE)), "xai"))
    assert got.usage == Usage(input=10, output=25, reasoning=20)


async def test_tags_around_reasoning_part_it_from_the_text_however_they_are_split() -> None:
    text = "<think>\nAdd <b>them</b>.</think>\n\n4 </think> is text"
    for size in range(1, len(text) + 1):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        stream = events(*(part({"content": piece}) for piece in pieces), part({}, "stop"), DONE)
        message = (await answer(chat(answering(stream), "vllm"))).message()
        assert message.parts == (Thinking("Add <b>them</b>.", "vllm"), Text("4 </think> is text"))


@pytest.mark.parametrize(("number", "thought"), [(0, "The tide turns twice."), (1, "The port first.")])
async def test_thinking_that_comes_as_a_list_is_kept_apart_from_the_text(number: int, thought: str) -> None:
    got = await answer(chat(RecordedTransport([exchange("streams/mistral/thinking", number)]), "mistral"))
    assert got.message().parts[0] == Thinking(thought, "mistral")
    assert isinstance(got.message().parts[1], Text)


async def test_text_that_only_mentions_the_tag_is_text() -> None:
    stream = events(part({"content": "<thi"}), part({"content": "s> and <think>"}), part({}, "stop"), DONE)
    assert (await answer(chat(answering(stream), "vllm"))).message().parts == (Text("<this> and <think>"),)


@pytest.mark.requirement("provider.extra.round_trip")
@pytest.mark.parametrize(
    ("file", "number"),
    [
        ("streams/openrouter/reasoning_details", 0),
        *recorded([("openrouter/openrouter_preserve_reasoning_block", 1)]),
    ],
)
async def test_reasoning_details_survive_storage_and_go_back_unchanged(file: str, number: int) -> None:
    replayed = exchange(file, number)
    details = msgspec.json.decode(replayed.body)["choices"][0]["message"]["reasoning_details"]
    message = (await answer(chat(RecordedTransport([replayed]), "openrouter"))).message()
    stored = msgspec.json.decode(msgspec.json.encode(message), type=Assistant)
    body = await sent(ask(User.of("a"), stored, User.of("b"), model="openai/gpt-5-mini"), "openrouter")
    assert body["messages"][1]["reasoning_details"] == details


@pytest.mark.requirement("provider.extra.reasoning_replay")
@pytest.mark.parametrize(
    ("file", "text", "signature"),
    [
        (REASONING, "A sum: 3+4 is 7.", "RXQwQkNrZ0lDaEFDR0FJcQ=="),
        *recorded([(REASONING_RECORDED, "This is a simple arithmetic question. 2+2 equals 4.", "Et0BCkgIChACGAIq")]),
    ],
)
async def test_streamed_reasoning_details_are_put_together_with_their_signature(
    file: str, text: str, signature: str
) -> None:
    message = (await answer(chat(RecordedTransport([exchange(file)]), "openrouter"))).message()
    body = await sent(ask(User.of("a"), message, model="anthropic/claude-sonnet-4.5"), "openrouter")
    (detail,) = body["messages"][1]["reasoning_details"]
    assert detail["type"] == "reasoning.text"
    assert detail["text"] == text
    assert detail["signature"].startswith(signature)


@pytest.mark.requirement("provider.extra.other_provider")
async def test_data_of_another_provider_is_left_out() -> None:
    foreign = Assistant(
        (
            Thinking("secret", "anthropic", "sig", Raw(b'[{"type":"reasoning.text"}]')),
            Text("Yes."),
            ToolCall("c1", "look", "{}", "google", Raw(b'{"extra_content":{"google":1}}')),
            Opaque("google", Raw(b'{"extra_content":{"google":1}}')),
            ProviderCall("w1", "web_search", "openai", opaque=Raw(b'{"type":"web_search_call"}')),
        )
    )
    body = await sent(ask(User.of("a"), foreign, ToolResults((ToolResult("c1", "look", (Text("ok"),)),))), "openrouter")
    assert body["messages"][1] == {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        "content": [{"type": "text", "text": "Yes."}],
    }


@pytest.mark.requirement("provider.extra.round_trip")
async def test_extra_content_of_calls_and_messages_goes_back() -> None:
    extra = {"google": {"thought_signature": "AVSo"}}
    call = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": "{}"}, "extra_content": extra}
    stream = events(part({"tool_calls": [call], "extra_content": extra}), part({}, "stop"), DONE)
    message = (await answer(chat(answering(stream), "compatible"))).message()
    stored = msgspec.json.decode(msgspec.json.encode(message), type=Assistant)
    body = await sent(ask(User.of("a"), stored), "compatible")
    assert body["messages"][1]["tool_calls"][0]["extra_content"] == extra
    assert body["messages"][1]["extra_content"] == extra


async def test_deepseek_gets_its_reasoning_back_inside_a_tool_round_only() -> None:
    stream = events(part({"reasoning_content": "Hm."}), part({"content": "Yes."}), part({}, "stop"), DONE)
    message = (await answer(chat(answering(stream), "deepseek"))).message()
    assert message.parts[0] == Thinking("Hm.", "deepseek")
    calling = Assistant((*message.parts, ToolCall("c", "look", "{}", "deepseek")))
    body = await sent(ask(User.of("a"), message, calling), "deepseek")
    assert "reasoning_content" not in body["messages"][1]
    assert body["messages"][2]["reasoning_content"] == "Hm."


@pytest.mark.requirement("provider.stream.images")
async def test_images_come_in_index_order() -> None:
    def image(index: int, data: str) -> dict[str, Any]:
        return {"index": index, "type": "image_url", "image_url": {"url": f"data:image/webp;base64,{data}"}}

    stream = events(
        part({"content": "Two:"}),
        part({"images": [image(1, "QkI=")]}),
        part({"images": [image(0, "QUE=")]}, "stop"),
        DONE,
    )
    message = (await answer(chat(answering(stream), "openrouter"))).message()
    assert message.parts == (Text("Two:"), Image("image/webp", data="QUE="), Image("image/webp", data="QkI="))


@pytest.mark.requirement("provider.tools.executed")
async def test_tools_that_the_server_ran_are_recorded_and_never_called() -> None:
    tool = {"index": 0, "type": "search", "arguments": '{"q":"x"}', "output": "found"}
    notes = [{"type": "url_citation", "url_citation": {"url": "https://example.org"}}]
    stream = events(part({"content": "Yes.", "executed_tools": [tool], "annotations": notes}), part({}, "stop"), DONE)
    got = await answer(chat(answering(stream), "groq"))
    ran = [one for one in got.message().parts if isinstance(one, ProviderCall)]
    assert [(one.name, one.provider, one.status) for one in ran] == [
        ("search", "groq", "completed"),
        ("web_search", "groq", "completed"),
    ]
    assert (got.message().calls, got.finish_reason) == ((), "end_turn")
    assert [one["role"] for one in (await sent(ask(User.of("a"), got.message()), "groq"))["messages"]] == [
        "user",
        "assistant",
    ]


@pytest.mark.requirement("provider.family.available")
@pytest.mark.parametrize("profile", sorted(PROFILES))
async def test_every_profile_does_a_text_turn_and_a_tool_round(profile: str) -> None:
    calling = events(
        part({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": "{}"}}]}),
        part({}, "tool_calls"),
        DONE,
    )
    async with serving(*replay((200, SSE, HELLO), (200, SSE, calling), (200, SSE, HELLO))) as api:
        model = PROFILES[profile].default_model or "m"
        provider = OpenAIChat(
            profile=profile, base_url=api.url, api_key=KEY, default_model=model, limits=TimeLimits(total_s=30)
        )
        try:
            assert (await answer(provider, ask(model=""))).text == "Hello"
            first = await answer(provider, ask(tools=[spec()], model=""))
            (call,) = first.message().calls
            results = ToolResults((ToolResult(call.id, call.name, (Text("ok"),)),))
            last = await answer(provider, ask(User.of("hi"), first.message(), results, tools=[spec()], model=""))
            assert last.text == "Hello"
        finally:
            await provider.aclose()
    bodies = [msgspec.json.decode(body) for body in api.bodies]
    assert {body["model"] for body in bodies} == {model}
    assert provider.name == profile


@pytest.mark.requirement("provider.request.key_secrecy")
async def test_a_key_of_the_environment_is_sent_to_its_own_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", KEY)
    at_home, elsewhere = answering(HELLO), answering(HELLO)
    await answer(OpenAIChat(profile="groq", transport=at_home))
    await answer(OpenAIChat(profile="groq", transport=elsewhere, base_url="http://stand-in/v1"))
    assert at_home.sent[0].url == "https://api.groq.com/openai/v1/chat/completions"
    assert at_home.sent[0].headers["Authorization"] == f"Bearer {KEY}"
    assert "Authorization" not in elsewhere.sent[0].headers


@pytest.mark.parametrize(
    "bad",
    [b"{", b'{"choices":1}', b'{"choices":[{"delta":{"executed_tools":[1]},"finish_reason":"stop"}]}'],
)
async def test_an_event_that_makes_no_sense_fails_the_call_after_what_was_read(bad: bytes) -> None:
    case = Failed("bad", ask(), cls="server", text="Hel")
    await check_provider(lambda _: chat(answering(events(part({"content": "Hel"}), bad, DONE)), "groq"), [case])


@pytest.mark.parametrize("kind", [SSE, JSON])
async def test_an_answer_that_cannot_be_read_may_be_billed(kind: str) -> None:
    with pytest.raises(ProviderError) as raised:
        await answer(chat(answering(events(b"{oops"), kind=kind)))
    assert (raised.value.cls, raised.value.unanswered) == ("server", True)


async def test_an_empty_finish_reason_is_none() -> None:
    stream = events({"choices": [{"delta": {"content": "Hel"}, "finish_reason": ""}]})
    await check_provider(lambda _: chat(answering(stream)), [Failed("cut", ask(), cls="server", text="Hel")])


def test_a_server_without_an_address_or_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ValueError, match="base URL"):
        OpenAIChat(profile="compatible", api_key=KEY)
    with pytest.raises(ValueError, match="no profile"):
        OpenAIChat(profile="nobody", api_key=KEY)


@pytest.mark.requirement("provider.stream.abort")
async def test_the_family_conforms() -> None:
    busy = msgspec.json.encode({"error": {"message": "busy"}})
    upstream = {
        "talk": (200, SSE, events(part({"reasoning": "hm"}), part({"content": "Hello"}), part({}, "stop"), DONE)),
        "busy": (503, JSON, busy),
        "cut": (200, SSE, events(part({"content": "Hel"}))),
    }
    async with serving() as silent:

        def build(case: Case) -> OpenAIChat:
            if case.name == "hung":
                return OpenAIChat(profile="openrouter", base_url=silent.url, api_key=KEY)
            return chat(RecordedTransport(replay(upstream[case.name])), "openrouter")

        cases: list[Case] = [
            Answered("talk", ask(), text="Hello", thinking="hm", calls=[], finish_reason="end_turn"),
            Failed("busy", ask(), cls="overloaded", retryable=True),
            Failed("cut", ask(), cls="server", text="Hel"),
        ]
        # The server notices that it was let go a moment after the provider has done so.
        cases.append(Aborted("hung", ask(), reached=silent.reached.wait, closed=lambda: True))
        await check_provider(build, cases)
        await silent.let_go.wait()


async def test_thinking_ends_before_the_text_begins() -> None:
    chunks = await chunks_of(
        chat(answering(events(part({"reasoning": "hm"}), part({"content": "x"}), part({}, "stop"), DONE)), "groq")
    )
    assert chunks == [ThinkingDelta("hm"), ThinkingDone(), TextDelta("x"), Finish("end_turn")]
