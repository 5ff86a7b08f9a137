"""The official SDK reads the same bytes from the same kind of server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import web
from anthropic_answers import (
    CODE,
    CODE_RECORDED,
    HANDMADE,
    LOOKUP,
    THINKING,
    THINKING_RECORDED,
    ask,
    assembled,
    stored,
    streamed,
)
from anthropic_kit import OURS, RECORDED, answered

from loopback import listening
from traffic import exchange, recorded
from weftline.messages import Thinking, Usage, User
from weftline.net.transport import AiohttpTransport
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.assemble import collect
from weftline.providers.base import (
    ModelRequest,
)
from weftline.testing.recordings import Exchange, RecordedTransport


@pytest.mark.requirement("provider.extra.reasoning_replay", "provider.extra.round_trip")
@pytest.mark.parametrize(
    "file",
    [
        "streams/anthropic/redacted_thinking",
        CODE,
        "streams/anthropic/web_fetch",
        THINKING,
        *recorded(
            [
                "anthropic/anthropic_model_thinking_part_redacted_stream",
                CODE_RECORDED,
                "anthropic/anthropic_web_fetch_tool_stream",
                THINKING_RECORDED,
            ]
        ),
    ],
)
async def test_anthropic_data_returns_unchanged_after_storage(file: str) -> None:
    first = exchange(file)
    message = stored((await assembled([first])).message())
    provider = Anthropic(transport=RecordedTransport([]), api_key="")
    sent = json.loads(provider.native_request(ModelRequest("claude-x", [User.of("hi"), message, User.of("go")])).body)
    assert sent["messages"][1]["content"] == await sdk_blocks(first)


@asynccontextmanager
async def server(answer: Exchange) -> AsyncGenerator[str]:
    async def handle(_request: web.Request) -> web.Response:
        kind = answer.headers["content-type"]
        return web.Response(status=answer.status, body=answer.body, headers={"content-type": kind})

    app = web.Application()
    app.router.add_post("/v1/messages", handle)
    async with listening(app) as url:
        yield url


async def sdk_message(answer: Exchange) -> Any:
    import anthropic  # takes a second, which the other tests need not wait for

    async with (
        server(answer) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key="sk-test", max_retries=0) as client,
    ):
        fields: dict[str, Any] = {
            "model": "claude-opus-5",
            "max_tokens": 100,
            "messages": [{"role": "user", "content": "hi"}],
        }
        if answer.headers["content-type"].startswith("application/json"):
            return cast("Any", await client.messages.create(**fields))
        async with client.messages.stream(**fields) as stream:
            return cast("Any", await stream.get_final_message())


async def sdk_blocks(answer: Exchange) -> list[dict[str, Any]]:
    message = await sdk_message(answer)
    return [part.model_dump(mode="json", exclude_unset=True) for part in message.content]


@pytest.mark.parametrize(("file", "number"), [("handmade", 0), *answered(OURS), *recorded(answered(RECORDED))])
@pytest.mark.requirement("provider.stream.equals_generate", "provider.usage.mapping")
async def test_the_official_sdk_reads_the_same_text_calls_and_usage(file: str, number: int) -> None:
    replayed = streamed(HANDMADE)[0] if file == "handmade" else exchange(file, number)
    theirs = await sdk_message(replayed)
    async with server(replayed) as url:
        transport = AiohttpTransport()
        try:
            result = await collect(Anthropic(transport=transport, base_url=url, api_key="sk-test"), ask(tools=[LOOKUP]))
        finally:
            await transport.aclose()
    assert result.text == "".join(part.text for part in theirs.content if part.type == "text")
    thoughts = "".join(part.text for part in result.message().parts if isinstance(part, Thinking))
    assert thoughts == "".join(part.thinking for part in theirs.content if part.type == "thinking")
    assert [(part.id, part.name.replace(".", "_"), json.loads(part.args)) for part in result.message().calls] == [
        (part.id, part.name, part.input) for part in theirs.content if part.type == "tool_use"
    ]
    assert result.finish_reason == theirs.stop_reason
    cached, written = theirs.usage.cache_read_input_tokens or 0, theirs.usage.cache_creation_input_tokens or 0
    assert result.usage == Usage(
        theirs.usage.input_tokens + cached + written, cached, 0, theirs.usage.output_tokens, written
    )
