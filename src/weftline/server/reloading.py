"""Reloads a folder of agents while it is served, for `weftline serve desk --reload`.

Its files are looked at twice a second. After a change, once they stay as they are, they are imported and checked as a
new generation, in a thread. With problems the old generation stays, and the log says why. Otherwise new runs, parked
runs and endpoints take the new one in one step, while runs in memory keep what they have. The modules of a generation
go with its last run.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from weftline.errors import WeftlineError
from weftline.providers.catalog import Catalog, close_provider
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.server.app import App
from weftline.work.outcomes import attempt

if TYPE_CHECKING:
    from weftline.agent.loader import ServedAgents
    from weftline.agent.planning.sources import AgentTools
    from weftline.threads.serving import Folder

Stamps: TypeAlias = dict[str, tuple[int, int, int]]
"""What tells versions of files apart, by path."""

logger = logging.getLogger(__name__)

LOOK_S = 0.5
_READ = (".py", ".md", ".json")
_OTHERS = ("__pycache__", "node_modules", "venv", "env", "site-packages")


class Served(Struct, frozen=True):
    """A generation of a folder: its agents, its own routes, and the models of the server with those of the folder."""

    agents: ServedAgents
    folder: Folder
    models: Catalog


class Reloader:
    """`load` reads and checks the folder, in a thread, and raises `WeftlineError` if anything is wrong with it.

    `base` are the models that the server has without the folder, `seen` are the stamps of the files that `present` was
    read from.
    """

    def __init__(
        self,
        root: Path,
        present: Served,
        *,
        load: Callable[[Catalog], Served],
        base: Catalog,
        seen: Stamps,
    ) -> None:
        self._root = root
        self.present = present
        self._load = load
        self._base = base
        self._retired: list[Served] = []
        self._read = seen
        """The stamps of the files that were read last."""
        self._last = seen
        """Those at the latest look: files are read once they stay as they are, as several are often saved at once."""

    async def run(
        self, app: App, tools: AgentTools, catalogs: WorkspaceCatalogs, *, taken: Callable[[Folder], Awaitable[None]]
    ) -> None:
        """Looks at the files until it is cancelled. `taken` is awaited after each new generation."""
        await app.engine.wait_released()
        while True:
            await asyncio.sleep(LOOK_S)
            with attempt(logger, "the folder %s could not be reloaded", self._root):
                if await self._look(app, tools, catalogs):
                    await taken(self.present.folder)
                    logger.info("reloaded %s: %d agents", self._root, len(self.present.agents.by_name))
            await self._forget_unused(tools)

    async def _look(self, app: App, tools: AgentTools, catalogs: WorkspaceCatalogs) -> bool:
        """Returns whether there is a new generation."""
        now = await asyncio.to_thread(stamps, self._root)
        still, self._last = now == self._last, now
        if now == self._read or not still:
            return False
        self._read = now
        try:
            new = await asyncio.to_thread(self._load, self._base.copy())
        except WeftlineError as error:
            logger.error("not reloaded, the agents stay as they were: %s", error.message)
            return False
        self._take(new, app, tools, catalogs)
        return True

    async def _forget_unused(self, tools: AgentTools) -> None:
        for one in [one for one in self._retired if not (one.folder.busy or tools.uses(one.agents.setups))]:
            self._retired.remove(one)
            await self._forget(one)

    def _take(self, new: Served, app: App, tools: AgentTools, catalogs: WorkspaceCatalogs) -> None:
        """Not a coroutine: nothing sees one half of it."""
        catalogs.rebase(new.models)
        app.workspaces.code.take(new.agents.code)
        tools.take(new.agents.setups)
        tools.planner = new.agents.planner(app.engine)
        app.folder = new.folder
        self._retired.append(self.present)
        self.present = new

    async def _forget(self, one: Served) -> None:
        if one.folder.generation is not None:
            one.folder.generation.forget()
        for provider in one.models.beyond(self._base):
            await close_provider(provider)
        logger.debug("the modules of an earlier version of %s are gone", self._root)


def stamps(root: Path) -> Stamps:
    """Returns the stamps of the files of a folder."""
    found: Stamps = {}
    for folder, below, names in os.walk(root):
        below[:] = [one for one in below if not one.startswith(".") and one not in _OTHERS]
        for name in names:
            if name.endswith(_READ):
                path = os.path.join(folder, name)
                try:
                    stat = os.stat(path)
                except OSError:
                    continue  # it was removed in this moment
                found[path] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    return found
