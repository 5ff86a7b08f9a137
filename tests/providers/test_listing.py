"""The models that a provider's own API lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from commands import weftline_beside
from loopback import listening
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.base import ModelInfo, ProviderError
from weftline.providers.google.provider import Google
from weftline.providers.listing import Lists, every_model
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.openai.responses import OpenAIResponses
from weftline.testing.recordings import RecordedTransport, replay

JSON = "application/json"
Build = Callable[[RecordedTransport], Lists]


def pages(*documents: Any) -> RecordedTransport:
    return RecordedTransport(replay(*((200, JSON, msgspec.json.encode(one)) for one in documents)))


CASES: dict[str, tuple[Build, list[Any], list[ModelInfo], list[str]]] = {
    "anthropic": (
        lambda transport: Anthropic(transport=transport, api_key="sk-secret-key"),
        [
            {"data": [{"id": "claude-a", "display_name": "Claude A"}], "has_more": True, "last_id": "claude-a"},
            {"data": [{"id": "claude-b", "max_input_tokens": 200000, "max_tokens": 64000}], "has_more": False},
        ],
        [ModelInfo("claude-a", "Claude A"), ModelInfo("claude-b", "", 200_000, 64_000)],
        ["/v1/models?limit=100", "/v1/models?limit=100&after_id=claude-a"],
    ),
    "google": (
        lambda transport: Google(transport=transport, api_key="sk-secret-key"),
        [
            {
                "models": [
                    {"name": "models/gemini-x", "displayName": "X", "inputTokenLimit": 10, "thinking": True},
                    {"name": "models/embed", "supportedGenerationMethods": ["embedContent"]},
                ],
                "nextPageToken": "p2",
            },
            {"models": [{"name": "models/gemini-y", "supportedGenerationMethods": ["generateContent"]}]},
        ],
        [ModelInfo("gemini-x", "X", 10, reasoning=True), ModelInfo("gemini-y")],
        ["/v1beta/models?pageSize=100", "/v1beta/models?pageSize=100&pageToken=p2"],
    ),
    "openai": (
        lambda transport: OpenAIResponses(transport=transport, api_key="sk-secret-key"),
        [{"object": "list", "data": [{"id": "gpt-x", "object": "model"}, {"id": "gpt-y"}, "junk"]}],
        [ModelInfo("gpt-x"), ModelInfo("gpt-y")],
        ["/v1/models"],
    ),
    "openrouter": (
        lambda transport: OpenAIChat(profile="openrouter", transport=transport, api_key="sk-secret-key"),
        [
            {
                "data": [
                    {
                        "id": "a/b",
                        "name": "A B",
                        "context_length": 8192,
                        "top_provider": {"max_completion_tokens": 1024},
                        "architecture": {"input_modalities": ["text", "image"]},
                        "supported_parameters": ["tools"],
                    }
                ]
            }
        ],
        [ModelInfo("a/b", "A B", 8192, 1024, vision=True, reasoning=False, tools=True)],
        ["/api/v1/models"],
    ),
}


@pytest.mark.requirement("provider.models.listing")
@pytest.mark.parametrize("family", list(CASES))
async def test_models_are_listed_page_by_page_with_hints(family: str) -> None:
    build, documents, models, paths = CASES[family]
    transport = pages(*documents)
    assert [model async for model in every_model(build(transport))] == models
    assert [sent.url.partition("//")[2].partition("/")[2] for sent in transport.sent] == [path[1:] for path in paths]
    assert all("sk-secret-key" in str(sent.headers) and "sk-secret-key" not in sent.url for sent in transport.sent)


@pytest.mark.requirement("provider.models.listing")
@pytest.mark.parametrize("family", list(CASES))
async def test_search_keeps_what_contains_it_and_still_reads_every_page(family: str) -> None:
    build, documents, models, _ = CASES[family]
    transport = pages(*documents)
    last = models[-1]
    found = [model async for model in every_model(build(transport), search=last.vendor_id.upper())]
    assert found == [last] and len(transport.sent) == len(documents)


@pytest.mark.parametrize("family", list(CASES))
async def test_listing_that_fails_is_classified_and_keeps_key_to_itself(family: str) -> None:
    build = CASES[family][0]
    error = msgspec.json.encode({"error": {"message": "bad key sk-secret-key", "type": "authentication_error"}})
    for body, status, cls in (
        (error, 401, "auth"),
        (b"<html>", 200, "server"),
        (b'{"data":5,"models":5}', 200, "server"),
    ):
        with pytest.raises(ProviderError) as failure:
            await build(RecordedTransport(replay((status, JSON, body)))).list_models()
        assert failure.value.cls == cls and "sk-secret-key" not in failure.value.message


async def test_the_command_asks_the_providers_api(tmp_path: Path) -> None:
    async def models(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer k"
        return web.json_response({"data": [{"id": "llama-1"}, {"id": "qwen-1", "max_model_len": 4096}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with listening(app) as url:
        config = tmp_path / "config.toml"
        config.write_text(f'[providers.lab]\nfamily = "openai_chat"\nbase_url = "{url}/v1"\napi_key = "k"\n')
        listed = ("models", "--config", str(config), "--of")
        assert await weftline_beside(*listed, "lab", "-q") == (0, "llama-1\nqwen-1\n", "")
        shown = await weftline_beside(*listed, "lab", "--search", "qwen", "--json")
        assert shown.code == 0
        assert msgspec.json.decode(shown.out) == [{"vendor_id": "qwen-1", "context_window_tokens": 4096}]
        assert (await weftline_beside(*listed, "nobody")).code == 1
