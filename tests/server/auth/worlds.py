"""Makes worlds, for one test or for all of a module."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from weftline.config import Config
from weftline.net.transport import AiohttpTransport
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.runtime.new_engine import new_engine
from weftline.server.app import App
from weftline.server.options import ServerOptions
from weftline.server.routes.every import ROUTES
from weftline.server.routes.operator import ROUTES as OPERATORS
from weftline.store import open_store
from weftline.testing import ScriptedProvider, parse_scripts
from weftline.tools.base import Tool
from weftline.tools.builtin import builtin_tools
from weftline.workspace.client_documents import ReadDocument

from .kit import Clock, World

SCRIPTS: dict[str, Any] = {
    "seen": {"turns": [{"text": "{{user_messages}}"}]},
    "stuck": {"turns": [{"deltas": ["begun", "never"], "delay_ms": 600_000}]},
    "hello": {"turns": [{"text": "hello"}]},
    "ask": {"turns": [{"tool_calls": [{"name": "ask_user", "args": {"question": "Why?"}}]}, {"text": "done"}]},
    "pay": {"turns": [{"tool_calls": [{"name": "pay", "args": {"amount": 5}}]}, {"text": "{{tool_results.0}}"}]},
    "lookup": {"turns": [{"tool_calls": [{"name": "lookup", "args": {}}]}, {"text": "done"}]},
}


@asynccontextmanager
async def new_world(
    path: Path,
    *,
    options: ServerOptions | None = None,
    limits: WorkspaceLimits | None = None,
    read_document: ReadDocument | None = None,
    tools: Mapping[str, Tool] | None = None,
) -> AsyncGenerator[World]:
    """On the store at `path`."""
    clock, transport = Clock(), AiohttpTransport()
    models = Config().catalog(
        transport=transport, scripted=ScriptedProvider(parse_scripts(json.dumps(SCRIPTS).encode()))
    )
    store = open_store(path)
    tools = builtin_tools() if tools is None else tools
    async with new_engine(store, models=models, tools=tools, clock=clock, limits=limits or WorkspaceLimits()) as engine:
        app = App(
            engine,
            store,
            WorkspaceCatalogs(models),
            ROUTES,
            options=options,
            read_document=read_document,
            operator_routes=lambda: OPERATORS,
        )
        yield World(app, store, clock)
        await engine.stop(drain_s=0)
    await models.aclose()
    await transport.aclose()
