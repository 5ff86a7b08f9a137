"""One world per test, unless a module shares one."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest

from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.server.options import ServerOptions
from weftline.store import open_store
from weftline.tools.base import Tool
from weftline.tools.builtin import builtin_tools
from weftline.workspace.client_documents import ReadDocument

from .kit import Browser, World
from .worlds import new_world


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
    path = shutil.copytree(empty_store, tmp_path / "store")
    async with new_world(path, options=options, limits=limits, read_document=read_document, tools=tools) as world:
        yield world


@pytest.fixture
async def browser(world: World) -> Browser:
    """Ann's, who is a member of acme and has signed in."""
    await world.user("ann@example.com", "acme")
    signed_in = Browser(world)
    assert (await signed_in.sign_in()).status == 303
    return signed_in
