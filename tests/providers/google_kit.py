"""What the tests of the Gemini family share: answers as the API sends them, and ways to ask."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from weftline.messages import (
    Usage,
    User,
)
from weftline.providers.assemble import Assembler, collect
from weftline.providers.base import (
    Chunk,
    ModelRequest,
    OutputSchema,
    ProviderError,
    ToolSpec,
)
from weftline.providers.google.provider import Google
from weftline.testing.recordings import Exchange, RecordedTransport, replay

KEY = "AIza-secret-key"
OLD, NEW = "gemini-2.5-flash", "gemini-3.8-flash"
WEATHER = ToolSpec(
    "get_weather",
    "Weather of a city.",
    Raw(b'{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'),
)
CITY = OutputSchema("city", Raw(b'{"type":"object","properties":{"city":{"const":"Paris"}},"required":["city"]}'))
OURS = [
    f"streams/google/{name}"
    for name in (
        "events_after_the_finish",
        "json_text",
        "max_tokens",
        "text_in_pieces",
        "thought_signatures",
        "tool_rounds",
        "web_search",
    )
]
RECORDED = [
    f"google/google_{name}"
    for name in (
        "model_iter_stream",
        "model_max_tokens",
        "model_max_tokens_thinking_model_empty_response",
        "model_retry",
        "model_stream",
        "model_structured_output",
        "model_web_search_tool_stream",
        "native_output",
        "prompted_output_with_tools",
        "timeout",
        "tool_output",
    )
]


def sse(*documents: dict[str, Any]) -> list[Exchange]:
    body = b"".join(b"data: " + msgspec.json.encode(document) + b"\r\n\r\n" for document in documents)
    return replay((200, "text/event-stream", body))


def answer(*parts: dict[str, Any], finish: str | None = "STOP", **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate | more.pop("candidate", {})], "responseId": "r1", **more}


def call_part(name: str, args: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args}, **more}


async def ask(exchanges: list[Exchange], request: ModelRequest | None = None, **split: Any) -> Assembler:
    transport = RecordedTransport(exchanges, **split)
    return await collect(Google(transport=transport, api_key=KEY), request or ModelRequest(NEW, [User.of("Hi")]))


async def chunks_of(exchanges: list[Exchange], request: ModelRequest | None = None) -> list[Chunk]:
    provider = Google(transport=RecordedTransport(exchanges), api_key=KEY)
    stream = provider.stream(request or ModelRequest(NEW, [User.of("Hi")]))
    return [chunk async for chunks in stream for chunk in chunks]


async def failure(exchanges: list[Exchange], request: ModelRequest | None = None) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await ask(exchanges, request)
    return caught.value


def body_of(request: ModelRequest) -> dict[str, Any]:
    return msgspec.json.decode(raw_body(request), type=dict[str, Any])


def raw_body(request: ModelRequest) -> bytes:
    return Google(transport=RecordedTransport([]), api_key=KEY).native_request(request).body


def comparable(assembler: Assembler) -> tuple[bytes, Usage, str | None]:
    return msgspec.json.encode(assembler.message()), assembler.usage, assembler.finish_reason
