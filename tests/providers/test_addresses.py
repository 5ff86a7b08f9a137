"""Where requests go, and what an error says about it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from openai_stand_in import answer, ask

from loopback import listening
from weftline.net.transport import AiohttpTransport
from weftline.providers.anthropic.bedrock import Bedrock
from weftline.providers.anthropic.provider import Anthropic
from weftline.providers.base import Provider, ProviderError
from weftline.providers.catalog import Catalog
from weftline.providers.families import ProviderSettings
from weftline.providers.google.provider import Google
from weftline.providers.openai.chat import OpenAIChat
from weftline.providers.openai.responses import OpenAIResponses
from weftline.providers.workspace import OwnProvider, WorkspaceCatalogs

TOKEN = "Tq7/x+z=9"
QUERY = "token=Tq7%2Fx%2Bz%3D9"

FAMILIES: dict[str, tuple[Callable[[str], Provider], str, str]] = {
    "anthropic": (lambda url: Anthropic(base_url=url, api_key="k"), "/v1/messages", "/v1/models"),
    "bedrock": (
        lambda url: Bedrock(base_url=url, api_key="k", region="eu-west-1"),
        "/model/m/invoke-with-response-stream",
        "/foundation-models",
    ),
    "google": (
        lambda url: Google(base_url=url, api_key="k"),
        "/v1beta/models/m:streamGenerateContent",
        "/v1beta/models",
    ),
    "openai_chat": (
        lambda url: OpenAIChat(profile="compatible", base_url=url, api_key="k"),
        "/chat/completions",
        "/models",
    ),
    "openai_responses": (lambda url: OpenAIResponses(base_url=url, api_key="k"), "/responses", "/models"),
}
each_family = pytest.mark.parametrize("family", FAMILIES)


class Server:
    """Answers every request in the same way."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        self.asked: list[web.Request] = []
        self.url = ""
        self._reply = status, kind, text

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        status, kind, text = self._reply
        return web.Response(status=status, content_type=kind, text=text.replace("{query}", request.query_string))


@asynccontextmanager
async def server(status: int, kind: str, text: str) -> AsyncGenerator[Server]:
    found = Server(status, kind, text)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.handle)
    async with listening(app) as url:
        found.url = url
        yield found


async def error_of(provider: Any, *, listing: bool = False) -> ProviderError:
    try:
        with pytest.raises(ProviderError) as raised:
            await (provider.list_models() if listing else answer(provider, ask(model="m")))
        return raised.value
    finally:
        await provider.aclose()


@each_family
@pytest.mark.parametrize("listing", [False, True])
async def test_query_of_address_follows_path_and_is_not_shown(family: str, listing: bool) -> None:
    build, call, models = FAMILIES[family]
    message = f"no {TOKEN} in {{query}}"
    said = json.dumps({"message": message, "error": {"message": message}})
    async with server(400, "application/json", said) as api:
        provider = build(f"{api.url}/gw/?{QUERY}")
        error = await error_of(provider, listing=listing)
    [asked] = api.asked
    assert asked.path == f"/gw{models if listing else call}"
    assert asked.query["token"] == TOKEN
    shown = error.message + repr(provider)
    assert TOKEN not in shown and QUERY not in shown and "[redacted]" in error.message


@each_family
async def test_missing_path_is_named_with_its_url(family: str) -> None:
    build, call, _ = FAMILIES[family]
    async with server(404, "text/plain", "404 page not found") as api:
        error = await error_of(build(f"{api.url}/?{QUERY}"))
    assert error.message.startswith(f"404 page not found. 404 for {api.url}{call}.")
    assert ("openai_chat" in error.message) is (family == "openai_responses")
    assert "token" not in error.message


async def test_missing_model_is_not_blamed_on_the_address() -> None:
    said = json.dumps({"error": {"message": "model 'm' not found"}})
    async with server(404, "application/json", said) as api:
        error = await error_of(OpenAIResponses(base_url=f"{api.url}/v1", api_key="k"))
    assert error.message == f"model 'm' not found. 404 for {api.url}/v1/responses."


@each_family
@pytest.mark.parametrize("listing", [False, True])
async def test_html_in_place_of_an_answer_is_called_html(family: str, listing: bool) -> None:
    build, call, models = FAMILIES[family]
    async with server(200, "text/html", "<!doctype html><h1>Log in</h1>") as api:
        error = await error_of(build(f"{api.url}/?{QUERY}"), listing=listing)
    assert error.message.startswith(f"{api.url}{models if listing else call} answered 200 with HTML")
    assert not error.retryable


@each_family
async def test_server_that_is_down_is_named_with_its_port(family: str) -> None:
    build, call, _ = FAMILIES[family]
    async with server(200, "text/plain", "") as api:
        address = api.url
    error = await error_of(build(f"{address}/?{QUERY}"))
    assert error.message == f"Could not connect to {address}{call}."


def test_googles_address_gets_a_version_unless_it_has_one() -> None:
    for given, used in (
        ("http://gw.test", "http://gw.test/v1beta"),
        ("http://gw.test/gemini/", "http://gw.test/gemini/v1beta"),
        ("http://gw.test/v1", "http://gw.test/v1"),
    ):
        assert repr(Google(base_url=given)) == f"Google(base_url='{used}')"


@pytest.mark.parametrize("listing", [False, True])
async def test_token_in_a_workspaces_address_is_not_in_its_errors(listing: bool) -> None:
    """The server repeats the token where its family does not look for it."""
    async with server(400, "application/json", json.dumps({"error": {"type": TOKEN, "message": "{query}"}})) as api:
        settings = ProviderSettings(
            name="own",
            family="openai_chat",
            api_key="short",
            base_url=f"{api.url}/v1?{QUERY}",
            options={"profile": "compatible"},
        )

        async def own(workspace: int) -> list[OwnProvider]:
            return [OwnProvider("p1", 1, settings)]

        transport = AiohttpTransport()
        catalogs = WorkspaceCatalogs(Catalog(), own=own, transport=transport)
        provider: Any = (await catalogs.load(1)).resolve("own:m").provider
        error = await error_of(provider, listing=listing)
        await catalogs.aclose()
        await transport.aclose()
    for shown in (error.message, str(error), error.code or "", repr(error)):
        assert TOKEN not in shown and QUERY not in shown
