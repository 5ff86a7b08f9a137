"""What the stand-in of the Messages API is sent."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw

from weftline.messages import (
    Message,
    User,
)
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.assemble import collect
from weftline.providers.base import ModelRequest, OutputSchema, ToolSpec
from weftline.testing.recordings import RecordedTransport, SentRequest, replay

SCHEMA = b'{"type":"object","properties":{"city":{"type":"string"}}}'


CITY = OutputSchema("city", Raw(SCHEMA))


OK = b'{"type":"message","content":[{"type":"text","text":"ok"}],"stop_reason":"end_turn"}'


WITH_REPORT = "claude-sonnet-4-0"
"""A model that gives structured answers through a report."""


def tool(name: str, parameters: bytes = b'{"type":"object","properties":{}}', **fields: Any) -> ToolSpec:
    return ToolSpec(name, f"does {name}", Raw(parameters), **fields)


def request(*messages: Message, model: str = "claude-sonnet-4-5", **fields: Any) -> ModelRequest:
    return ModelRequest(model, messages or (User.of("hi"),), **fields)


async def send(asked: ModelRequest, **options: Any) -> SentRequest:
    transport = RecordedTransport(replay((200, "application/json", OK)))
    await collect(Anthropic(transport=transport, api_key="sk-secret", **options), asked)
    return transport.sent[0]


async def body(asked: ModelRequest, **options: Any) -> dict[str, Any]:
    return json.loads((await send(asked, **options)).body)
