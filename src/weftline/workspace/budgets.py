"""Budgets: what a workspace, an agent or a thread may spend, and what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from weftline.errors import Issue, NotFound, invalid, no_such_run
from weftline.kernel.policy import BudgetRule, Level
from weftline.store.budgets import (
    Booking,
    Limit,
    SetLimit,
    Sums,
    agent_account,
    day_of,
    first_day,
    level_of,
    limits_of,
    run_account,
    thread_account,
    workspace_account,
)
from weftline.store.database import Query
from weftline.store.records import agents as agent_records
from weftline.store.records import budgets
from weftline.store.records import threads as thread_records
from weftline.workspace import agents, threads
from weftline.workspace.code_agents import STORED_ID
from weftline.workspace.context import Caller, Change, Workspaces

PERIODIC: tuple[Level, ...] = ("workspace", "agent")


class Use(Struct, frozen=True):
    """A limit, and how much of it is used."""

    limit: Limit
    spent: int
    reserved: int

    @property
    def remaining(self) -> int:
        return max(self.limit.amount - self.spent - self.reserved, 0)


class Budget(Struct, frozen=True):
    """The limits of one account, and their use."""

    level: Level
    id: str | None
    """The id of the agent, the session or the run; None for the workspace."""
    limits: tuple[Use, ...]


class Subject(Struct, frozen=True):
    """The subject of a budget, by its account and its public id."""

    account: str
    id: str | None = None


async def subject(
    at: Workspaces,
    caller: Caller,
    level: Level,
    id: str | None,
    *,
    thread: tuple[int, str] | None = None,
    run: int | None = None,
) -> Subject:
    """Returns the subject that a caller refers to.

    `thread` is the key and the salt of the session with this id. `run` is the key of a run with a budget of its own,
    which has been looked up.
    """
    match level:
        case "workspace":
            return Subject(workspace_account(caller.workspace))
        case "agent":
            found = (await agents.find_visible(at, caller, id or "")).id
            return Subject(agent_account(caller.workspace, found), found)
        case "thread":
            if thread is None:
                raise NotFound("There is no such session.")
            row = await threads.find(at, caller, thread[0], salt=thread[1])
            return Subject(thread_account(row.key), id)
        case "run" | "child":
            if run is None:
                raise no_such_run()
            return Subject(run_account(run), id)


async def set_limits(at: Workspaces, caller: Caller, about: Subject, limits: Sequence[Limit], *, by: str) -> Budget:
    """Replaces the limits of an account. They apply from the next call of every live run."""
    _check(level_of(about.account), limits)
    now = at.clock.now_us()
    await at.records.write(budgets.set_limits(about.account, limits, workspace=caller.workspace, by=by, now=now))
    await at.changed(Change("budgets", caller.workspace, by))
    return await of(at, about)


async def of(at: Workspaces, about: Subject, rules: Mapping[str, BudgetRule] | None = None) -> Budget:
    """The limits that were set for an account, or else those that came with a run."""
    return await at.records.read(_budget(about, rules or {}, today=day_of(at.clock.now_us())))


async def of_workspace(at: Workspaces, caller: Caller, *, any_code: bool = False) -> list[tuple[str, Budget]]:
    """Every account of the workspace with limits that the caller may see; its name comes first.

    Deleted agents and ended sessions are left out: their limits still apply to active runs, but can no longer be set.
    With `any_code`, anything that is not the id of a stored agent counts as the name of an agent defined in code.
    """
    today = day_of(at.clock.now_us())

    def query() -> Query[list[tuple[str, Budget]]]:
        found = yield from budgets.limits(workspace=caller.workspace)
        by_account: dict[str, Budget] = {}
        for account in dict.fromkeys([limit.account for limit in found]):
            if caller.agents and _agent(account) not in caller.agents:
                continue
            if (yield from _is_there(at, account, workspace=caller.workspace, any_code=any_code)):
                by_account[account] = yield from _budget(Subject(account, _agent(account)), {}, today=today)
        return list(by_account.items())

    return await at.records.read(query())


def _is_there(at: Workspaces, account: str, *, workspace: int, any_code: bool) -> Query[bool]:
    match level_of(account):
        case "agent":
            id = _agent(account) or ""
            if any_code and not STORED_ID.fullmatch(id):
                return True
            return id in at.code or (yield from agent_records.by_id(id, workspace=workspace)) is not None
        case "thread":
            thread = yield from thread_records.by_key(int(account.partition(":")[2]))
            return thread is not None and thread.ended_at is None
        case _:
            return True


def _budget(about: Subject, rules: Mapping[str, BudgetRule], *, today: int) -> Query[Budget]:
    found: Sequence[Limit] = yield from budgets.limits(account=about.account)
    if not found and (rule := rules.get(about.account)) is not None:
        found = limits_of(rule)
    booked = yield from budgets.use(about.account)
    uses = tuple([_use(limit, booked, today=today) for limit in found])
    return Budget(level_of(about.account), about.id, uses)


def _use(limit: Limit, booked: Sequence[Booking], *, today: int) -> Use:
    first = 0 if limit.period == "total" else first_day(today, limit.period)
    sums = Sums()
    for one in booked:
        if one.day >= first:
            sums.add(one)
    return Use(limit, *sums.of(limit.unit))


def _check(level: Level, limits: Sequence[Limit]) -> None:
    issues: list[Issue] = []
    seen: set[tuple[str, str]] = set()
    for place, limit in enumerate(limits):
        if limit.period != "total" and level not in PERIODIC:
            issues.append(Issue(f"limits[{place}].period", f"a {level} cannot have a limit per day or month"))
        if (limit.unit, limit.period) in seen:
            issues.append(Issue(f"limits[{place}]", f"there are two limits in {limit.unit} for the same period"))
        seen.add((limit.unit, limit.period))
    if issues:
        raise invalid(issues)


def _agent(account: str) -> str | None:
    return account.split(":", 2)[2] if level_of(account) == "agent" else None


def setter(limit: Limit) -> tuple[str, int] | None:
    """Who set a limit, and when; None for a limit that came with a run."""
    return (limit.set_by, limit.set_at) if isinstance(limit, SetLimit) else None
