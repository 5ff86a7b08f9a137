"""The records of a new store, on a clock that the test holds, without a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec import Struct

from weftline.store import open_store
from weftline.workspace import workspaces
from weftline.workspace.context import Change, Workspaces

NOW_US = 1_800_000_000_000_000


class Clock:
    def __init__(self) -> None:
        self.us = NOW_US

    def now_us(self) -> int:
        return self.us


class Caller(Struct):
    workspace: int
    agents: tuple[str, ...] = ()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def changes() -> list[Change]:
    """What was announced, in order."""
    return []


@pytest.fixture
async def at(tmp_path: Path, clock: Clock, changes: list[Change]) -> AsyncGenerator[Workspaces]:
    store = open_store(tmp_path / "store")

    async def changed(change: Change) -> None:
        changes.append(change)

    yield Workspaces(store.records, store.vault, clock, changed)
    await store.close()


@pytest.fixture
async def acme(at: Workspaces) -> int:
    return await workspaces.ensure(at, "acme")


@pytest.fixture
async def globex(at: Workspaces) -> int:
    return await workspaces.ensure(at, "globex")
