"""The budgets that a caller may see, for routes and commands. Large logs are read only when there is room for them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import TypeAlias

from weftline.agent.engine import budget_views
from weftline.agent.engine.budget_views import Logs, account_of, of_workspace
from weftline.api.parsing import off_loop
from weftline.runtime.budgets.ledger import Account
from weftline.store.base import Item, LargeEntry, RunRow
from weftline.workspace.budgets import Budget, Level, Subject
from weftline.workspace.context import Caller, Workspaces

__all__ = ["Room", "of_run", "of_workspace", "subject"]

LARGE_BYTES = 64 * 1024
"""Larger logs are only read once there is room."""
Room: TypeAlias = Callable[[int], AbstractAsyncContextManager[None]]
"""Reserves room for a request that reads this many bytes."""


def _any_room(size: int) -> AbstractAsyncContextManager[None]:
    return nullcontext()


async def subject(
    at: Workspaces, caller: Caller, logs: Logs, *, level: Level, id: str | None, room: Room = _any_room
) -> Subject:
    read = partial(_account, logs, room=room)
    return await budget_views.subject(at, caller, logs.logs, level=level, id=id, read=read)


async def of_run(at: Workspaces, logs: Logs, row: RunRow, *, room: Room = _any_room) -> list[Budget]:
    """Returns every budget that applies to a run, the nearest first."""
    return await budget_views.of_run(at, logs, row, read=partial(_account, logs, room=room))


async def _account(logs: Logs, row: RunRow, *, room: Room) -> Account:
    try:
        return await _read_account(row, await logs.logs.entry(row.key, 1, max_bytes=LARGE_BYTES))
    except LargeEntry as large:
        async with room(large.size):
            return await _read_account(row, await logs.logs.entry(row.key, 1))


async def _read_account(row: RunRow, first: Item | None) -> Account:
    return await off_loop(partial(account_of, row, first), size=0 if first is None else len(first.body))
