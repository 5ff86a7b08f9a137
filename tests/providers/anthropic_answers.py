"""Answers of the Messages API, written by hand, and what is made of them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Raw

from weftline.messages import Assistant, User
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.assemble import Assembler, collect
from weftline.providers.base import (
    Chunk,
    ModelRequest,
    ToolSpec,
)
from weftline.testing.recordings import Exchange, RecordedTransport, replay

LOOKUP = ToolSpec("look.up", "", Raw(b'{"type":"object"}'))


def ask(**fields: Any) -> ModelRequest:
    """A model that gives structured answers through a report."""
    return ModelRequest("claude-sonnet-4-0", [User.of("hi")], **fields)


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def call(index: int, name: str, *pieces: str, id: str = "toolu_1") -> list[dict[str, Any]]:
    start: dict[str, Any] = {"type": "tool_use", "id": id, "name": name, "input": {}}
    return block(index, start, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def text(index: int, *pieces: str) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def answer(*events: dict[str, Any], stop: str | None = "end_turn", usage: Any = None) -> bytes:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }
    return sse(
        {"type": "message_start", "message": message},
        {"type": "ping"},
        *events,
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": usage or {"output_tokens": 25},
        },
        {"type": "message_stop"},
    )


def streamed(body: bytes) -> list[Exchange]:
    return replay((200, "text/event-stream; charset=utf-8", body))


async def chunks_of(
    exchanges: list[Exchange], request: ModelRequest | None = None, *, cuts: list[int] | None = None
) -> list[Chunk]:
    provider = Anthropic(transport=RecordedTransport(exchanges, cuts=cuts), api_key="sk-test")
    return [chunk async for chunks in provider.stream(request or ask()) for chunk in chunks]


async def assembled(exchanges: list[Exchange], request: ModelRequest | None = None) -> Assembler:
    return await collect(Anthropic(transport=RecordedTransport(exchanges), api_key="sk-test"), request or ask())


def stored(message: Assistant) -> Assistant:
    """The message after a trip through storage."""
    return msgspec.json.decode(msgspec.json.encode(message), type=Assistant)


HANDMADE = answer(
    *block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Let "},
        {"type": "thinking_delta", "thinking": "me see"},
        {"type": "signature_delta", "signature": "c2ln"},
    ),
    *text(1, "I will ", "look. ☃"),
    *call(2, "look_up", '{"q": ', '"é", "n": [1, 2]}', id="toolu_a"),
    *call(3, "now", "", id="toolu_b"),
    stop="tool_use",
    usage={"input_tokens": 7, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 3, "output_tokens": 40},
)


THINKING = "streams/anthropic/thinking_then_a_call"
THINKING_RECORDED = "anthropic/anthropic_tool_with_thinking"
CODE = "streams/anthropic/code_execution"
CODE_RECORDED = "anthropic/anthropic_code_execution_tool_stream"
