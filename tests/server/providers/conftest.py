"""A server with tools of its own, stand-ins for model APIs, and a workspace that brings providers which point there."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

import aiohttp
import pytest

from weftline.testing import ServerProcess

from ..kit import Api, Frame, Json
from .dialects import FAMILIES, Dialect
from .upstream import Upstream, serving

KEY = "sk-live-7f3a9c1e5b8d2046"
TOOLS = """
from weftline import tool
from weftline.messages import File, Image, Text
from weftline.tools.base import ToolOutput

@tool(effect="read")
def weather(city: str) -> str:
    "The weather of a city."
    return f"sunny in {city}"

@tool(effect="read")
def photo() -> ToolOutput:
    "A photo."
    return ToolOutput((Text("here it is"), Image("image/png", data="aW1hZ2U=")))

@tool(effect="read")
def rows() -> ToolOutput:
    "Several texts."
    return ToolOutput((Text("alpha"), Text("beta")))

@tool(effect="read")
def sound() -> ToolOutput:
    "A sound, and bytes."
    return ToolOutput((File("audio/wav", data="UklGRg=="), File("application/octet-stream", data="AAEC")))
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    folder = tmp_path_factory.mktemp("providers")
    with ServerProcess(folder, tools=TOOLS, scripts={"hello": {"turns": [{"text": "hi"}]}}) as running:
        yield running


@pytest.fixture
async def upstream() -> AsyncGenerator[Upstream]:
    async with serving() as running:
        yield running


@pytest.fixture(params=list(FAMILIES))
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return FAMILIES[request.param]


class Team:
    """A workspace, its API and the stand-in that its providers point to."""

    def __init__(self, api: Api, upstream: Upstream) -> None:
        self.api = api
        self.upstream = upstream

    async def bring(self, dialect: Dialect, name: str = "mine", **fields: Any) -> str:
        """Stores a provider; returns the id of its model."""
        body = {"name": name, "apiKey": KEY, **dialect.settings(self.upstream.url), **fields}
        reply = await self.api.post("providers", body)
        assert reply.status == 201, reply.body
        return f"{name}:{dialect.model}"

    async def start(self, model: str, **spec: Any) -> str:
        spec.setdefault("prompt", "hello")
        reply = await self.api.post("agent-runs", {"modelId": model, **spec})
        assert reply.status == 202, reply.body
        return reply.json["runId"]

    async def run(self, model: str, **spec: Any) -> list[Frame]:
        return await self.api.events(await self.start(model, **spec))


@pytest.fixture
async def team(api: Api, upstream: Upstream) -> Team:
    return Team(api, upstream)


@pytest.fixture
async def http() -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        yield session


def server_tool(name: str) -> Json:
    return {"kind": "mantyx_plugin", "name": name}


def team_of(server: ServerProcess, http: aiohttp.ClientSession, upstream: Upstream, slug: str = "acme") -> Team:
    return Team(Api(http, server.url, slug, server.create_key(slug)), upstream)
