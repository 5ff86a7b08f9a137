"""A thread and its state, in each kind of store, without a server and without runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest

from weftline.agent.context import Entered
from weftline.runtime.clock import SystemClock
from weftline.store import open_store
from weftline.store.base import Store
from weftline.store.memory import MemoryStore
from weftline.threads.definitions.agents import AgentDefinition, SideConfig
from weftline.threads.definitions.prompts import define_prompt
from weftline.threads.registry import Registry
from weftline.threads.speakers import Speaker
from weftline.threads.state import LiveThread
from weftline.workspace import threads, workspaces
from weftline.workspace.context import Workspaces
from weftline.workspace.threads import ThreadDraft

DRAFT = ThreadDraft(name="t", agent=None, spec=b"{}")
AGENT = AgentDefinition(name="a", side_a=SideConfig(prompt="a"))
PROMPT = define_prompt(name="a", model="fast", tool_description="A.", prompt="Be kind.")
SPEAKER = Speaker("a/a", AGENT, PROMPT, AGENT.side_a)


@pytest.fixture(params=["sqlite", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Store]:
    store = open_store(tmp_path / "store") if request.param == "sqlite" else MemoryStore()
    yield store
    await store.close()


@pytest.fixture
async def at(store: Store) -> Workspaces:
    return Workspaces(store.records, store.vault, SystemClock())


async def state_of(at: Workspaces, slug: str = "acme") -> LiveThread:
    row = await threads.create(at, await workspaces.ensure(at, slug), DRAFT)
    speakers = {SPEAKER.name: SPEAKER}
    return LiveThread(at, row, Registry(), speakers=speakers, entered=Entered(), engine=cast("Any", None))


@pytest.fixture
async def state(at: Workspaces) -> LiveThread:
    return await state_of(at)
