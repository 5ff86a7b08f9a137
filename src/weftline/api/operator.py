"""Whoever can open the store, or its control socket: the server's own user, who may use every agent."""

from __future__ import annotations

import getpass

from msgspec import Struct

from weftline.workspace import workspaces
from weftline.workspace.context import Workspaces


class Operator(Struct, frozen=True):
    """In one workspace; see `weftline.workspace.context.Caller`."""

    workspace: int
    agents: tuple[str, ...] = ()


async def operator_of(at: Workspaces, workspace: str) -> Operator:
    """Raises `NotFound` for an unknown workspace."""
    return Operator(await workspaces.find(at, workspace))


def operator_name() -> str:
    """As the log has it."""
    return f"operator:{getpass.getuser()}"
