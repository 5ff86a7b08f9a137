"""The catalogs of workspaces: read once, and again after a change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from weftline.providers.catalog import Catalog
from weftline.providers.families import ProviderSettings
from weftline.providers.workspace import OwnProvider, WorkspaceCatalogs


class Stored:
    """Providers by workspace, and which of them were read."""

    def __init__(self) -> None:
        self.own: dict[int, list[OwnProvider]] = {}
        self.read: list[int] = []

    async def load(self, workspace: int) -> Sequence[OwnProvider]:
        self.read.append(workspace)
        found = list(self.own.get(workspace, ()))
        await asyncio.sleep(0)
        return found

    def put(self, workspace: int, version: int = 1) -> None:
        settings = ProviderSettings(name="mine", family="openai_chat", base_url="https://api.example/v1", keyless=True)
        self.own[workspace] = [OwnProvider(f"prov_{workspace}", version, settings)]


async def test_a_workspace_is_read_once_however_many_ask() -> None:
    stored = Stored()
    stored.put(1)
    catalogs = WorkspaceCatalogs(Catalog(), own=stored.load)
    found = await asyncio.gather(*(catalogs.load(1) for _ in range(5)))
    assert stored.read == [1] and len(set(map(id, found))) == 1
    assert catalogs.of(1) is found[0] is not catalogs.base
    await catalogs.aclose()


async def test_refresh_reads_memory_and_keeps_unchanged_providers() -> None:
    stored = Stored()
    stored.put(1)
    stored.put(2)
    catalogs = WorkspaceCatalogs(Catalog(), own=stored.load)
    before = [(await catalogs.load(workspace)).resolve("mine:x").provider for workspace in (1, 2)]
    stored.put(2, version=2)
    await catalogs.refresh(3)
    await catalogs.refresh()
    after = [catalogs.of(workspace).resolve("mine:x").provider for workspace in (1, 2)]
    assert stored.read == [1, 2, 1, 2]
    assert after[0] is before[0] and after[1] is not before[1]
    await catalogs.aclose()


async def test_a_change_while_a_workspace_is_read_is_not_lost() -> None:
    stored = Stored()
    catalogs = WorkspaceCatalogs(Catalog(), own=stored.load)
    reading = asyncio.ensure_future(catalogs.load(1))
    await asyncio.sleep(0)
    stored.put(1)
    await catalogs.refresh(1)
    await reading
    assert catalogs.of(1) is not catalogs.base and stored.read == [1, 1]
    await catalogs.aclose()
