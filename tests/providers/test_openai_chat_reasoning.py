"""Reasoning in Chat Completions: apart from the text, and given back to those who want it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw
from openai_chat_kit import DONE, REASONING, REASONING_RECORDED, chat, part, sent
from openai_stand_in import (
    answer,
    answering,
    ask,
    chunks_of,
    events,
)

from traffic import exchange, recorded
from weftline.messages import (
    Assistant,
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
from weftline.providers.base import (
    Finish,
    TextDelta,
    ThinkingDelta,
    ThinkingDone,
)
from weftline.testing.recordings import RecordedTransport


async def test_reasoning_that_server_counts_apart_becomes_part_of_output() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 20}}
    got = await answer(chat(answering(events(part({"content": "x"}, "stop"), {"usage": usage}, DONE)), "xai"))
    assert got.usage == Usage(input=10, output=25, reasoning=20)


async def test_reasoning_tags_separate_text_however_split() -> None:
    text = "<think>\nAdd <b>them</b>.</think>\n\n4 </think> is text"
    for size in range(1, len(text) + 1):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        stream = events(*(part({"content": piece}) for piece in pieces), part({}, "stop"), DONE)
        message = (await answer(chat(answering(stream), "vllm"))).message()
        assert message.parts == (Thinking("Add <b>them</b>.", "vllm"), Text("4 </think> is text"))


@pytest.mark.parametrize(("number", "thought"), [(0, "The tide turns twice."), (1, "The port first.")])
async def test_thinking_that_comes_as_list_is_kept_apart_from_text(number: int, thought: str) -> None:
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


async def test_deepseek_gets_its_reasoning_back_inside_a_tool_round_only() -> None:
    stream = events(part({"reasoning_content": "Hm."}), part({"content": "Yes."}), part({}, "stop"), DONE)
    message = (await answer(chat(answering(stream), "deepseek"))).message()
    assert message.parts[0] == Thinking("Hm.", "deepseek")
    calling = Assistant((*message.parts, ToolCall("c", "look", "{}", "deepseek")))
    body = await sent(ask(User.of("a"), message, calling), "deepseek")
    assert "reasoning_content" not in body["messages"][1]
    assert body["messages"][2]["reasoning_content"] == "Hm."


async def test_thinking_ends_before_the_text_begins() -> None:
    chunks = await chunks_of(
        chat(answering(events(part({"reasoning": "hm"}), part({"content": "x"}), part({}, "stop"), DONE)), "groq")
    )
    assert chunks == [ThinkingDelta("hm"), ThinkingDone(), TextDelta("x"), Finish("end_turn")]
