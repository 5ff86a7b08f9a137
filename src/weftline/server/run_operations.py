"""Administration of runs by command: what takes whole logs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from weftline.replay.importing import Imported, ImportTarget, import_runs
from weftline.replay.reading import read_export
from weftline.store.base import Store
from weftline.workspace import workspaces
from weftline.workspace.context import Workspaces


class EndedLogs(ImportTarget, Protocol):
    """What these operations need of the logs."""


async def import_file(at: Workspaces, logs: EndedLogs, store: Store, *, path: str, workspace: str) -> Imported:
    export = await asyncio.to_thread(read_export, Path(path))
    return await import_runs(store.log, logs, export, workspace=await workspaces.ensure(at, workspace))
