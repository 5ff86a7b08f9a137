"""The budgets that somebody may see, for routes and for commands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol, TypeAlias

from weftline.errors import Conflict, NotFound, no_such_run
from weftline.kernel import bodies
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import Fact, RunCreated, decode_fact
from weftline.plan import RunPlan, decode_plan
from weftline.runtime import ids
from weftline.runtime.budgets import Account, Ledger
from weftline.runtime.finding import row_of
from weftline.server.large import LARGE_BYTES
from weftline.server.parsing import off_loop
from weftline.store.base import LargeEntry, LogReader, RunRow, Stored
from weftline.store.budgets import level_of
from weftline.workspace import budgets
from weftline.workspace.budgets import Budget, Subject
from weftline.workspace.context import Caller, Workspaces


class Logs(Protocol):
    @property
    def logs(self) -> LogReader: ...
    async def session_id(self, thread: int | None) -> str | None: ...


Room: TypeAlias = Callable[[int], AbstractAsyncContextManager[None]]
"""For a request that reads so many bytes."""


def _any_room(size: int) -> AbstractAsyncContextManager[None]:
    return nullcontext()


async def subject(
    at: Workspaces, caller: Caller, logs: Logs, *, level: budgets.Level, id: str | None, room: Room = _any_room
) -> Subject:
    parsed = ids.parse(id or "", prefix="ses_") if level == "thread" else None
    run = None
    if level == "run":
        row = await _run(logs.logs, caller, id or "")
        if row.ended_at is not None or not await _has_own(logs, row, room):
            raise Conflict("The run has ended, or has no budget of its own.")
        run = row.key
    return await budgets.subject(at, caller, level, id, thread=parsed, run=run)


async def _has_own(logs: Logs, row: RunRow, room: Room) -> bool:
    return row.key in {int(one[4:]) for one in (await _account(logs, row, room)).rules}


async def _run(logs: LogReader, caller: Caller, id: str) -> RunRow:
    row = await row_of(logs, id, workspace=caller.workspace)
    if row is None:
        raise no_such_run()
    return row


async def of_workspace(at: Workspaces, caller: Caller, logs: Logs) -> list[Budget]:
    found: list[Budget] = []
    for account, budget in await budgets.of_workspace(at, caller):
        level, key = level_of(account), account.rpartition(":")[2]
        id = budget.id if level != "thread" else await logs.session_id(int(key))
        if level == "run":
            row = await logs.logs.run(int(key))
            if row is None or row.ended_at is not None:
                continue
            id = ids.run_id(row.key, row.salt)
        found.append(Budget(budget.level, id, budget.limits))
    return found


async def of_run(at: Workspaces, logs: Logs, row: RunRow, *, room: Room = _any_room) -> list[Budget]:
    """Every budget that a run is under, the nearest first."""
    account = await _account(logs, row, room)
    found: list[Budget] = []
    for name in account.accounts:
        budget = await budgets.of(at, Subject(name), account.rules)
        if budget.limits:
            child = name == account.own and account.is_child
            found.append(Budget("child" if child else budget.level, await _id(name, row, logs), budget.limits))
    return found


async def _account(logs: Logs, row: RunRow, room: Room) -> Account:
    try:
        return await _read_account(row, await logs.logs.entry(row.key, 1, max_bytes=LARGE_BYTES))
    except LargeEntry as large:
        async with room(large.size):
            return await _read_account(row, await logs.logs.entry(row.key, 1))


async def _read_account(row: RunRow, first: Stored | None) -> Account:
    if first is None:
        raise NotFound("The log of this run is gone.", code="run_trimmed")
    head_bytes, body = first.head, first.body

    def read() -> tuple[Fact, RunPlan]:
        return decode_fact.decode(head_bytes), decode_plan(bodies.decode_created(body).plan)

    try:
        head, plan = await off_loop(read, size=len(body))
    except UNREADABLE:
        raise NotFound("The log of this run cannot be read.", code="log_damaged") from None
    assert isinstance(head, RunCreated)
    return Account(Ledger(), key=row.key, workspace=row.workspace, thread=row.thread, plan=plan, parent=head.parent)


async def _id(account: str, row: RunRow, logs: Logs) -> str | None:
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
