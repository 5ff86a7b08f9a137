"""One world per test."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from weftline.config import Config
from weftline.net.transport import AiohttpTransport
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.limits import WorkspaceLimits
from weftline.runtime.new_engine import new_engine
from weftline.server.app import App
from weftline.server.options import ServerOptions
from weftline.server.routes.every import ROUTES
from weftline.store import open_store
from weftline.testing import ScriptedProvider, parse_scripts
from weftline.tools.base import Tool
from weftline.tools.builtin import builtin_tools
from weftline.workspace.client_documents import ReadDocument

from .kit import Browser, Clock, World

SCRIPTS: dict[str, Any] = {
    "seen": {"turns": [{"text": "{{user_messages}}"}]},
    "stuck": {"turns": [{"deltas": ["begun", "never"], "delay_ms": 600_000}]},
    "hello": {"turns": [{"text": "hello"}]},
    "ask": {"turns": [{"tool_calls": [{"name": "ask_user", "args": {"question": "Why?"}}]}, {"text": "done"}]},
    "pay": {"turns": [{"tool_calls": [{"name": "pay", "args": {"amount": 5}}]}, {"text": "{{tool_results.0}}"}]},
    "lookup": {"turns": [{"tool_calls": [{"name": "lookup", "args": {}}]}, {"text": "done"}]},
}


@pytest.fixture
def options() -> ServerOptions:
    return ServerOptions()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once and copied for every world: half of a world's time would go into its tables."""
    path = tmp_path_factory.mktemp("empty") / "store"
    asyncio.run(open_store(path).close())
    return path


@pytest.fixture
def limits() -> WorkspaceLimits:
    return WorkspaceLimits()


@pytest.fixture
def read_document() -> ReadDocument | None:
    return None


@pytest.fixture
def tools() -> Mapping[str, Tool]:
    return builtin_tools()


@pytest.fixture
async def world(
    tmp_path: Path,
    empty_store: Path,
    options: ServerOptions,
    limits: WorkspaceLimits,
    read_document: ReadDocument | None,
    tools: Mapping[str, Tool],
) -> AsyncGenerator[World]:
    clock, transport = Clock(), AiohttpTransport()
    models = Config().catalog(
        transport=transport, scripted=ScriptedProvider(parse_scripts(json.dumps(SCRIPTS).encode()))
    )
    store = open_store(shutil.copytree(empty_store, tmp_path / "store"))
    async with new_engine(store, models=models, tools=tools, clock=clock, limits=limits) as engine:
        catalogs = WorkspaceCatalogs(models)
        app = App(engine, store, catalogs, ROUTES, options=options, read_document=read_document)
        yield World(app, store, clock)
        await engine.stop(drain_s=0)
    await models.aclose()
    await transport.aclose()


@pytest.fixture
async def browser(world: World) -> Browser:
    """Ann's, who is a member of acme and has signed in."""
    await world.user("ann@example.com", "acme")
    signed_in = Browser(world)
    assert (await signed_in.sign_in()).status == 303
    return signed_in
