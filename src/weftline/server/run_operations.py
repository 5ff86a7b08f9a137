"""Administration of runs by command: what takes whole logs."""

from __future__ import annotations

import asyncio
import getpass
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from weftline.agent.imported import import_export
from weftline.replay.importing import Imported, ImportTarget
from weftline.replay.reading import read_export
from weftline.replay.refusing import find_run
from weftline.runtime.calls import DoubtPage, LoggedCall
from weftline.server.forking import Forking, fork_run, parse_fork
from weftline.server.views import call_views
from weftline.store.base import RunRow, Store
from weftline.wire.calls import Call
from weftline.workspace import workspaces
from weftline.workspace.context import Workspaces

_PAGE = 200


class EndedLogs(ImportTarget, Forking, Protocol):
    """What these operations need of the logs."""

    async def calls(self, row: RunRow) -> list[LoggedCall]: ...
    async def calls_in_doubt(self, workspace: int, *, before: int | None, limit: int) -> DoubtPage: ...


class CallList(Struct, frozen=True):
    items: list[Call]
    after: int | None
    """Where the next part begins; None if this is the last."""


async def import_file(at: Workspaces, logs: EndedLogs, store: Store, *, path: str, workspace: str) -> Imported:
    export = await asyncio.to_thread(read_export, Path(path))
    return await import_export(store.log, logs, at, export, workspace=await workspaces.ensure(at, workspace))


async def list_calls(logs: EndedLogs, store: Store, *, run: str) -> list[Call]:
    return call_views(await logs.calls(await find_run(store.log, run)))


async def list_doubts(at: Workspaces, logs: EndedLogs, *, workspace: str, before: int | None = None) -> CallList:
    key = await workspaces.find(at, workspace)
    page = await logs.calls_in_doubt(key, before=before, limit=_PAGE)
    return CallList(call_views(page.calls), page.before)


async def fork(at: Workspaces, logs: EndedLogs, store: Store, *, run: str, changes: dict[str, Any]) -> str:
    """Whoever can open the control socket is the server's own user, and asks under that name."""
    row = await find_run(store.log, run)
    asked, _ = parse_fork(changes)
    return await fork_run(logs, at, row, asked, requested_by=f"operator:{getpass.getuser()}")
