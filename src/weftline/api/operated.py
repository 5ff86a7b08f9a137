"""The run that an operation of the command line is about."""

from __future__ import annotations

from weftline.replay.refusing import find_run
from weftline.store.base import LogReader, RunRow
from weftline.workspace import workspaces
from weftline.workspace.context import Workspaces


async def operated_run(at: Workspaces, logs: LogReader, run: str, *, workspace: str | None) -> RunRow:
    """The row of a run, in any workspace if none is named. Raises `NotFound`."""
    key = None if workspace is None else await workspaces.find(at, workspace)
    return await find_run(logs, run, workspace=key)
