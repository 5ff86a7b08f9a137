"""The operator: whoever can open the store or its control socket.

That is the server's own user, who may use every agent.
"""

from __future__ import annotations

import getpass

from msgspec import Struct

from weftline.replay.refusing import find_run
from weftline.store.base import LogReader
from weftline.store.rows import RunRow
from weftline.workspace import workspaces
from weftline.workspace.context import Workspaces


class Operator(Struct, frozen=True):
    """The operator in one workspace; see `weftline.workspace.context.Caller`."""

    workspace: int
    agents: tuple[str, ...] = ()


async def operator_of(at: Workspaces, workspace: str) -> Operator:
    """Returns the operator. Raises `NotFound` for an unknown workspace."""
    return Operator(await workspaces.find(at, workspace))


async def operated_run(at: Workspaces, logs: LogReader, run: str, *, workspace: str | None) -> RunRow:
    """Returns the row of the run that a command names, in any workspace by default. Raises `NotFound`."""
    key = None if workspace is None else await workspaces.find(at, workspace)
    return await find_run(logs, run, workspace=key)


def operator_name() -> str:
    """Returns the name of the operator in logs."""
    return f"operator:{getpass.getuser()}"
