"""Items of the Responses API that go back with the next request: reasoning, calls, images, and unknown ones."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET, Raw
from openai_responses_kit import (
    ENCRYPTED,
    ENCRYPTED_RECORDED,
    KEY,
    SEARCH,
    SEARCH_RECORDED,
    completed,
    ours,
    responses,
    sent,
    text_item,
)
from openai_stand_in import (
    answer,
    answering,
    ask,
    events,
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
    User,
)
from weftline.providers.openai.chat import OpenAIChat
from weftline.testing.recordings import RecordedTransport


@pytest.mark.requirement("provider.extra.reasoning_replay")
@pytest.mark.parametrize("file", [ENCRYPTED, *recorded([ENCRYPTED_RECORDED])])
async def test_encrypted_reasoning_survives_storage_in_place(file: str) -> None:
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
async def test_responses_conversation_continues_over_chat_without_its_items(file: str) -> None:
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
async def test_openai_tool_is_recorded_and_returned_in_place(file: str, number: int, query: str, said: str) -> None:
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
async def test_tool_search_is_recorded_and_returned_with_its_call() -> None:
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


async def test_item_with_foreign_fields_is_kept_unchanged() -> None:
    odd = {"type": "program_output", "id": 7, "status": 1, "content": "text", "summary": {"a": 1}}
    message = (await answer(responses(answering(events(completed(odd, text_item("Hello"))))))).message()
    assert message.text == "Hello"
    assert odd in (await sent(ask(User.of("hi"), message)))["input"]


async def test_generated_image_is_stored_once_and_returned_with_its_call() -> None:
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
