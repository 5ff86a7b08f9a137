"""MCP hosts that know only a URL: the official client's own OAuth flow against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from argon2 import PasswordHasher
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from commands import operate, weftline_beside
from weftline.testing import ServerProcess

from ..kit import TIMEOUT_S, Api
from .person import PASSWORD, Person
from .test_mcp import stored, text_of


class Memory:
    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def new_person(server: ServerProcess, slug: str) -> Person:
    email = f"ann-{slug}@example.com"
    hashed = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
    asked = {"email": email, "password": hashed, "workspaces": [slug]}
    await asyncio.to_thread(operate, server.db, "POST", "users", asked)
    return Person(email)


@asynccontextmanager
async def host(
    url: str, person: Person, memory: Memory, mode: Literal["legacy", "auto"] = "auto"
) -> AsyncGenerator[Client]:
    """An MCP host that was given a URL and nothing else."""

    async def came_back() -> AuthorizationCodeResult:
        query = {name: values[0] for name, values in parse_qs(urlsplit(await person.answer()).query).items()}
        return AuthorizationCodeResult(code=query["code"], state=query["state"], iss=query["iss"])

    provider = OAuthClientProvider(
        url,
        OAuthClientMetadata(client_name="A host", redirect_uris=[AnyUrl(person.redirect_uri)]),
        memory,
        redirect_handler=person.ask,
        callback_handler=came_back,
    )
    async with (
        asyncio.timeout(TIMEOUT_S),
        httpx2.AsyncClient(auth=provider, timeout=TIMEOUT_S) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_connects_with_nothing_but_a_url(
    api: Api, server: ServerProcess, mode: Literal["legacy", "auto"]
) -> None:
    await stored(api, "hello")
    person, memory = await new_person(server, api.slug), Memory()
    url = f"{api.url}/api/mcp/{api.slug}"
    async with host(url, person, memory, mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["helper"]
        assert text_of(await client.call_tool("helper", {"message": "hi"})) == "Hello wörld"
    assert len(person.asked) == 1 and "A host" in person.pages[0]
    assert memory.tokens is not None and memory.tokens.scope == "mcp:connect"
    # The next time it uses the tokens that it has; and when those are gone it renews them without asking anybody.
    async with host(url, person, memory, mode) as client:
        assert (await client.list_tools()).tools
    assert len(person.asked) == 1
    assert memory.client is not None
    listed = await weftline_beside("oauth", "apps", "list", "--registered", "--db", str(server.db))
    assert memory.client.client_id in listed.out.split()
    # What it got is for the MCP server and for nothing else.
    refused = await api.get("agent-runs", key=memory.tokens.access_token)
    assert refused.status == 401


async def test_a_host_that_says_localhost_is_answered_with_localhost(api: Api, server: ServerProcess) -> None:
    await stored(api, "hello")
    url = f"{api.url.replace('127.0.0.1', 'localhost')}/api/mcp/{api.slug}"
    async with host(url, await new_person(server, api.slug), Memory()) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["helper"]
