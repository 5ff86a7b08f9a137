"""Chat Completions and the servers that speak it, against recorded traffic and a loopback server."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_chat_kit import DONE, HELLO, KEY, REASONING, REASONING_RECORDED, chat, part
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
    Image,
    Text,
    Thinking,
    ToolResult,
    ToolResults,
    Usage,
    User,
)
from weftline.net.errors import TimeLimits
from weftline.net.transport import AiohttpTransport
from weftline.providers.base import (
    CallArgs,
    CallDone,
    CallStart,
    Finish,
    UsageUpdate,
)
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.openai.profiles import PROFILES
from weftline.testing import Aborted, Answered, Failed, check_provider
from weftline.testing.providers import Case
from weftline.testing.recordings import RecordedTransport, replay

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


async def test_usage_is_also_read_where_groq_puts_it() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4}
    streamed = events(part({"content": "Hi"}), part({}, "stop") | {"x_groq": {"id": "r", "usage": usage}}, DONE)
    assert (await answer(chat(answering(streamed), "groq"))).usage == Usage(input=9, output=4)
    without = events(part({"content": "Hi"}) | {"x_groq": {"id": "r"}}, part({}, "stop") | {"usage": usage}, DONE)
    assert (await answer(chat(answering(without), "groq"))).usage == Usage(input=9, output=4)


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
async def test_pieces_keep_upstream_order_with_one_finish(file: str, start: CallStart, pieces: tuple[str, ...]) -> None:
    chunks = await chunks_of(chat(RecordedTransport([exchange(file)])))
    assert chunks[0] == start
    assert chunks[1:6] == [CallArgs(0, piece) for piece in pieces]
    assert chunks[6:] == [UsageUpdate(Usage(input=53, output=15)), CallDone(0), Finish("tool_use")]


async def test_a_connection_is_used_again_for_the_next_call() -> None:
    async with serving(*replay(*[(200, SSE, HELLO)] * 3)) as api:
        provider = OpenAIChat(profile="compatible", base_url=api.url, api_key=KEY)
        for _ in range(3):
            assert (await answer(provider)).text == "Hello"
        await provider.aclose()
    assert len(api.peers) == 1


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
async def test_a_finish_with_empty_text_is_a_completed_turn() -> None:
    got = await answer(chat(answering(events(part({"content": ""}), part({}, "stop"), DONE))))
    assert (got.complete, got.text) == (True, "")


async def test_answer_without_usage_or_with_absurd_counts_does_not_fail() -> None:
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
async def test_key_of_environment_is_sent_to_its_own_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", KEY)
    at_home, elsewhere = answering(HELLO), answering(HELLO)
    await answer(OpenAIChat(profile="groq", transport=at_home))
    await answer(OpenAIChat(profile="groq", transport=elsewhere, base_url="http://stand-in/v1"))
    assert at_home.sent[0].url == "https://api.groq.com/openai/v1/chat/completions"
    assert at_home.sent[0].headers["Authorization"] == f"Bearer {KEY}"
    assert "Authorization" not in elsewhere.sent[0].headers


async def test_an_empty_finish_reason_is_none() -> None:
    stream = events({"choices": [{"delta": {"content": "Hel"}, "finish_reason": ""}]})
    await check_provider(lambda _: chat(answering(stream)), [Failed("cut", ask(), cls="server", text="Hel")])


def test_server_without_address_or_unknown_profile_is_refused() -> None:
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
