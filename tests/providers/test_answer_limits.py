"""An answer with more calls or parts than any model writes is cut off, whichever family reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import Raw

from weftline.messages import Opaque, User
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.assemble import MAX_CALLS, MAX_PARTS, Assembler, collect
from weftline.providers.base import (
    CallDone,
    CallStart,
    Chunk,
    ModelRequest,
    Provider,
    ProviderError,
    TextDelta,
    ThinkingDelta,
    Whole,
)
from weftline.providers.google.provider import Google
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.openai.responses import OpenAIResponses
from weftline.testing.recordings import RecordedTransport, replay

Event = dict[str, Any]


def _sse(*events: Event) -> tuple[str, bytes]:
    return "text/event-stream", b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def _whole(body: Event) -> tuple[str, bytes]:
    return "application/json", json.dumps(body).encode()


def _chat_calls(count: int, *, arguments: str) -> list[Event]:
    return [{"index": i, "id": f"c{i}", "function": {"name": "t", "arguments": arguments}} for i in range(count)]


def chat(count: int, *, arguments: str = "{}") -> tuple[str, bytes]:
    return _sse(
        *[
            {"choices": [{"index": 0, "delta": {"tool_calls": [one]}}]}
            for one in _chat_calls(count, arguments=arguments)
        ],
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    )


def chat_in_one_event(count: int) -> tuple[str, bytes]:
    delta = {"tool_calls": _chat_calls(count, arguments="{}")}
    return _sse({"choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]})


def chat_without_arguments(count: int) -> tuple[str, bytes]:
    return chat(count, arguments="")


def chat_whole(count: int) -> tuple[str, bytes]:
    message = {"tool_calls": _chat_calls(count, arguments="{}")}
    return _whole({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})


def _item(index: int) -> Event:
    return {"type": "function_call", "id": f"f{index}", "call_id": f"c{index}", "name": "t", "arguments": "{}"}


def responses(count: int) -> tuple[str, bytes]:
    items = [_item(index) for index in range(count)]
    done = [{"type": "response.output_item.done", "output_index": i, "item": item} for i, item in enumerate(items)]
    return _sse(*done, {"type": "response.completed", "response": {"status": "completed", "output": items[:MAX_CALLS]}})


def responses_whole(count: int) -> tuple[str, bytes]:
    return _whole({"status": "completed", "output": [_item(index) for index in range(count)]})


def _tool_use(index: int) -> Event:
    return {"type": "tool_use", "id": f"c{index}", "name": "t", "input": {}}


def anthropic(count: int) -> tuple[str, bytes]:
    events: list[Event] = []
    for index in range(count):
        events.append({"type": "content_block_start", "index": index, "content_block": _tool_use(index)})
        events.append({"type": "content_block_stop", "index": index})
    stopped = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}
    return _sse(*events, stopped, {"type": "message_stop"})


def anthropic_whole(count: int) -> tuple[str, bytes]:
    content = [_tool_use(index) for index in range(count)]
    return _whole({"type": "message", "content": content, "stop_reason": "tool_use", "usage": {}})


def google(count: int) -> tuple[str, bytes]:
    parts: list[Event] = [{"functionCall": {"name": "t", "args": {}}}] * count
    return _sse(
        *[{"candidates": [{"content": {"parts": [part]}}]} for part in parts],
        {"candidates": [{"finishReason": "STOP"}]},
    )


def google_whole(count: int) -> tuple[str, bytes]:
    parts: list[Event] = [{"functionCall": {"name": "t", "args": {}}}] * count
    return _whole({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})


def _provider(make: Callable[[int], tuple[str, bytes]], transport: RecordedTransport) -> Provider:
    family = make.__name__.partition("_")[0]
    if family == "chat":
        return OpenAIChat(profile="openai", transport=transport, base_url="http://x/v1", api_key="k")
    if family == "responses":
        return OpenAIResponses(transport=transport, base_url="http://x/v1", api_key="k")
    return (
        Google(transport=transport, api_key="k") if family == "google" else Anthropic(transport=transport, api_key="k")
    )


@pytest.mark.parametrize(
    "make",
    [
        chat,
        chat_in_one_event,
        chat_without_arguments,
        chat_whole,
        responses,
        responses_whole,
        anthropic,
        anthropic_whole,
        google,
        google_whole,
    ],
)
async def test_a_family_takes_so_many_calls_and_no_more(make: Callable[[int], tuple[str, bytes]]) -> None:
    async def ask(count: int) -> Assembler:
        provider = _provider(make, RecordedTransport(replay((200, *make(count)))))
        return await collect(provider, ModelRequest("m", [User.of("hi")]))

    assert len((await ask(MAX_CALLS)).message().calls) == MAX_CALLS
    with pytest.raises(ProviderError) as refused:
        await ask(MAX_CALLS + 1)
    assert refused.value.code == "answer_too_large" and not refused.value.retryable and refused.value.unanswered


async def test_calls_without_arguments_are_not_collected_to_the_end() -> None:
    """They begin only when the answer is complete; the stream is cut long before."""
    endless = chat_without_arguments(3 * MAX_CALLS)[1].replace(b'"finish_reason": "tool_calls"', b'"x": 0')
    provider = _provider(chat, RecordedTransport(replay((200, "text/event-stream", endless))))
    with pytest.raises(ProviderError) as refused:
        await collect(provider, ModelRequest("m", [User.of("hi")]))
    assert refused.value.code == "answer_too_large"


@pytest.mark.parametrize(
    "chunks",
    [
        (TextDelta("x"), ThinkingDelta("y")),
        (Whole(Opaque("p", Raw(b"{}"))),),
    ],
)
def test_parts_of_any_kind_are_counted(chunks: Sequence[Chunk]) -> None:
    assembler = Assembler("p")
    assembler.feed([*chunks] * (MAX_PARTS // len(chunks)))
    with pytest.raises(ProviderError) as refused:
        assembler.feed([*chunks, *chunks])
    assert refused.value.code == "answer_too_large"


def test_calls_of_a_family_of_ones_own_are_counted_too() -> None:
    assembler = Assembler("p")
    assembler.feed([chunk for key in range(MAX_CALLS) for chunk in (CallStart(key, "t"), CallDone(key, "{}"))])
    with pytest.raises(ProviderError) as refused:
        assembler.feed([CallStart(MAX_CALLS, "t")])
    assert refused.value.code == "answer_too_large" and len(assembler.message().calls) == MAX_CALLS
