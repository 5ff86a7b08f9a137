"""The budgets that a caller may see and set, in the library, over HTTP and from the command line.

Large logs are read only when there is room for them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import TypeAlias

from weftline.api.parsing import off_loop
from weftline.errors import Conflict, NotFound, no_such_run
from weftline.kernel import bodies
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import RunCreated, decode_fact
from weftline.plan import decode_plan
from weftline.runtime import ids
from weftline.runtime.budgets.ledger import Account, Ledger
from weftline.runtime.reads.finding import row_of
from weftline.runtime.reads.reading import StoredRuns
from weftline.store.base import LogReader
from weftline.store.budgets import level_of, run_account
from weftline.store.rows import Item, LargeEntry, RunRow
from weftline.workspace import budgets
from weftline.workspace.budgets import Budget, Subject
from weftline.workspace.context import Caller, Workspaces

LARGE_BYTES = 64 * 1024
"""Larger logs are only read once there is room."""
Room: TypeAlias = Callable[[int], AbstractAsyncContextManager[None]]
"""Reserves room for a request that reads this many bytes."""


def _any_room(size: int) -> AbstractAsyncContextManager[None]:
    return nullcontext()


async def subject(
    at: Workspaces, caller: Caller, logs: StoredRuns, *, level: budgets.Level, id: str | None, room: Room = _any_room
) -> Subject:
    """Returns what a budget applies to. Raises `Conflict` for a run that has ended, or has no budget of its own."""
    parsed = ids.parse(id or "", prefix="ses_") if level == "thread" else None
    run = None
    if level == "run":
        row = await find_run(logs.logs, caller, id or "")
        if row.ended_at is not None or run_account(row.key) not in (await _account(logs, row, room=room)).rules:
            raise Conflict("The run has ended, or has no budget of its own.")
        run = row.key
    return await budgets.subject(at, caller, level, id, thread=parsed, run=run)


async def find_run(logs: LogReader, caller: Caller, id: str) -> RunRow:
    row = await row_of(logs, id, workspace=caller.workspace)
    if row is None:
        raise no_such_run()
    return row


async def of_workspace(at: Workspaces, caller: Caller, logs: StoredRuns, *, any_code: bool = False) -> list[Budget]:
    """Returns the budgets of a workspace; with `any_code` also those of code agents that this process does not know."""
    found: list[Budget] = []
    for account, budget in await budgets.of_workspace(at, caller, any_code=any_code):
        level, key = level_of(account), account.rpartition(":")[2]
        id = budget.id if level != "thread" else await logs.session_id(int(key))
        if level == "run":
            row = await logs.logs.run(int(key))
            if row is None or row.ended_at is not None:
                continue
            id = ids.run_id(row.key, row.salt)
        found.append(Budget(budget.level, id, budget.limits))
    return found


async def of_run(at: Workspaces, logs: StoredRuns, row: RunRow, *, room: Room = _any_room) -> list[Budget]:
    """Returns every budget that applies to a run, the nearest first."""
    account = await _account(logs, row, room=room)
    found: list[Budget] = []
    for name in account.accounts:
        budget = await budgets.of(at, Subject(name), account.rules)
        if budget.limits:
            child = name == account.own and account.is_child
            found.append(Budget("child" if child else budget.level, await _id(name, row, logs), budget.limits))
    return found


async def _account(logs: StoredRuns, row: RunRow, *, room: Room) -> Account:
    """Reads from a run's log which accounts its calls are booked on."""
    try:
        return await _read_account(row, await logs.logs.entry(row.key, 1, max_bytes=LARGE_BYTES))
    except LargeEntry as large:
        async with room(large.size):
            return await _read_account(row, await logs.logs.entry(row.key, 1))


async def _read_account(row: RunRow, first: Item | None) -> Account:
    return await off_loop(partial(_account_of, row, first), size=0 if first is None else len(first.body))


def _account_of(row: RunRow, first: Item | None) -> Account:
    """Reads the account from the first entry of the run's log. Raises `NotFound` if that is gone or unreadable."""
    if first is None:
        raise NotFound("The log of this run is gone.", code="run_trimmed")
    try:
        head = decode_fact.decode(first.head)
        assert isinstance(head, RunCreated)
        plan = decode_plan(bodies.decode_created(first.body).plan, head.limits)
    except UNREADABLE:
        raise NotFound("The log of this run cannot be read.", code="log_damaged") from None
    return Account(Ledger(), key=row.key, workspace=row.workspace, thread=row.thread, plan=plan, parent=head.parent)


async def _id(account: str, row: RunRow, logs: StoredRuns) -> str | None:
    level, _, key = account.partition(":")
    match level:
        case "run":
            found = row if int(key) == row.key else await logs.logs.run(int(key))
            return None if found is None else ids.run_id(found.key, found.salt)
        case "thread":
            return await logs.session_id(int(key))
        case "agent":
            return key.partition(":")[2]
        case _:
            return None
