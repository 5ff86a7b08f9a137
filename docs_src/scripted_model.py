"""Plays a scripted conversation with one tool call: no key, no network."""

from __future__ import annotations

import asyncio

from weftline.messages import Message, Text, ToolResult, ToolResults, User
from weftline.providers.base import ModelRequest
from weftline.testing import ScriptedModel, collect


async def main() -> None:
    turns = [
        {"text": "Let me look. ", "tool_calls": [{"name": "weather", "args": {"city": "Oslo"}}]},
        {"deltas": ["It is ", "{{tool_results.0}}", " in Oslo."], "usage": {"input": 120, "cached": 100, "output": 9}},
    ]
    with ScriptedModel(turns, strict=True) as model:
        messages: list[Message] = [User.of("How is the weather in Oslo?")]

        asked = await collect(model, ModelRequest(model="demo", messages=messages))
        call = asked.message().calls[0]
        print(asked.finish_reason, call.name, call.args)

        messages += [asked.message(), ToolResults((ToolResult(call.id, call.name, (Text("sunny"),)),))]
        told = await collect(model, ModelRequest(model="demo", messages=messages, call_index=1))
        print(told.finish_reason, told.text, told.usage.cached)

        print(len(model.requests), "requests, the last with", len(model.requests[-1].messages), "messages")


if __name__ == "__main__":
    asyncio.run(main())
