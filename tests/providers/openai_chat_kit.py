"""A provider of Chat Completions that is asked and answered without a network."""

from __future__ import annotations

from typing import Any

from openai_stand_in import (
    events,
    sent_by,
)

from weftline.providers.base import (
    ModelRequest,
)
from weftline.providers.openai.chat import OpenAIChat
from weftline.testing.recordings import RecordedTransport

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


REASONING = "streams/openrouter/reasoning_between_comments"
REASONING_RECORDED = "openrouter/openrouter_streaming_reasoning"
