"""Budgets: what a workspace, an agent, a session or a run may spend, and what it has spent.

Large logs are read only when there is room for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType
from pydantic import Field, StringConstraints

from weftline.api.principal import Principal
from weftline.cases.base import Host, Sent, find_run, require_accepting
from weftline.errors import Conflict, Issue, NotFound, invalid
from weftline.kernel import bodies
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import RunCreated, decode_fact
from weftline.kernel.policy import PARTS, BudgetRule, Level, OnExceeded, Period, Unit, amount_issue, smallest
from weftline.plan import decode_plan
from weftline.runtime import ids
from weftline.runtime.budgets.ledger import Account, Ledger
from weftline.runtime.reads.reading import StoredRuns
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
from weftline.store.rows import Item, LargeEntry, RunRow
from weftline.wire.models import NO_NUL, Part
from weftline.wire.responses import Time, Warnings, iso
from weftline.work.heavy import off_loop
from weftline.workspace import agents, threads
from weftline.workspace.code_agents import STORED_ID
from weftline.workspace.context import Caller, Change, Workspaces

MAX_LIMITS = 12
"""Four units, three periods."""
PERIODIC: tuple[Level, ...] = ("workspace", "agent")
LARGE_BYTES = 64 * 1024
"""Larger logs are only read once there is room."""
Room: TypeAlias = Callable[[int], AbstractAsyncContextManager[None]]
"""Reserves room for a request that reads this many bytes."""
_Id: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=NO_NUL)]
SetLevel: TypeAlias = Literal["workspace", "agent", "thread", "run"]
"""The levels at which limits can be set."""


class LimitModel(Part):
    """The most that may be spent and reserved: 0 permits nothing."""

    unit: Unit
    limit: Annotated[float, Field(allow_inf_nan=False, description="Dollars, tokens, seconds or calls.")]
    period: Annotated[Period, Field(description="In UTC; only for a workspace or an agent.")] = "total"
    onExceeded: OnExceeded = "final_turn"


class BudgetLimitsModel(Part):
    """The body that sets the limits of a workspace, an agent, a session, or a run that has a budget."""

    level: SetLevel
    id: Annotated[_Id, Field(description="The id (or slug) of the agent, or the id of the session or run.")] | None = (
        None
    )
    limits: Annotated[list[LimitModel], Field(max_length=MAX_LIMITS)]


class LimitUse(Struct, rename="camel"):
    unit: Unit
    period: Period
    limit: float
    spent: float
    reserved: float
    remaining: float
    on_exceeded: OnExceeded
    set_by: str | UnsetType = UNSET
    set_at: Time | UnsetType = UNSET


class BudgetUse(Struct, rename="camel"):
    level: Level
    id: str | None
    limits: list[LimitUse]
    warnings: Warnings = UNSET


class Budgets(Struct):
    budgets: list[BudgetUse]


class Use(Struct, frozen=True):
    """A limit, and how much of it is used."""

    limit: Limit
    spent: int
    reserved: int

    @property
    def remaining(self) -> int:
        return max(self.limit.amount - self.spent - self.reserved, 0)

    @property
    def amounts(self) -> tuple[float, float, float, float]:
        """Limit, spent, reserved and remaining, in dollars, tokens, seconds or calls."""
        parts = PARTS[self.limit.unit]
        limit, spent, reserved, remaining = (
            amount if parts == 1 else amount / parts
            for amount in (self.limit.amount, self.spent, self.reserved, self.remaining)
        )
        return limit, spent, reserved, remaining


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


async def index(on: Host, by: Principal) -> Budgets:
    return Budgets([_shown(one) for one in await of_workspace(on.workspaces, by, on.engine.stored)])


async def change(on: Host, by: Principal, sent: Sent[BudgetLimitsModel]) -> BudgetUse:
    body = await sent.read()
    fields = body.fields
    limits = _limits(fields)
    warnings = sent.warn(body.unknown)
    require_accepting(on, by)
    about = await subject(
        on.workspaces,
        by,
        on.engine.stored,
        level=fields.level,
        id=fields.id,
        room=partial(on.large.room_to_work, by.slug),
    )
    return _shown(await set_limits(on.workspaces, by, about, limits, by=by.who), warnings)


async def of_run(on: Host, by: Principal, run_id: str) -> Budgets:
    row = await find_run(on, by, run_id)
    found = await over_run(on.workspaces, on.engine.stored, row, room=partial(on.large.room_to_work, by.slug))
    return Budgets([_shown(one) for one in found])


def _limits(sent: BudgetLimitsModel) -> list[Limit]:
    issues = [
        Issue(f"limits[{place}].limit", issue)
        for place, one in enumerate(sent.limits)
        if (issue := amount_issue(one.unit, one.limit))
    ]
    if (sent.id is None) != (sent.level == "workspace"):
        issues.append(Issue("id", "give the agent, the session or the run; a workspace has none"))
    if issues:
        raise invalid(issues)
    return [Limit(one.unit, smallest(one.unit, one.limit), one.period, one.onExceeded) for one in sent.limits]


def _any_room(size: int) -> AbstractAsyncContextManager[None]:
    return nullcontext()


async def subject(
    at: Workspaces, caller: Caller, runs: StoredRuns, *, level: SetLevel, id: str | None, room: Room = _any_room
) -> Subject:
    """Returns what a budget applies to. Raises `Conflict` for a run that has ended, or has no budget of its own."""
    match level:
        case "workspace":
            return Subject(workspace_account(caller.workspace))
        case "agent":
            found = (await agents.find_visible(at, caller, id or "")).id
            return Subject(agent_account(caller.workspace, found), found)
        case "thread":
            parsed = ids.parse(id or "", prefix="ses_")
            if parsed is None:
                raise NotFound("There is no such session.")
            thread = await threads.find(at, caller, parsed[0], salt=parsed[1])
            return Subject(thread_account(thread.key), id)
        case "run":
            row = await runs.find(id or "", workspace=caller.workspace)
            if row.ended_at is not None or run_account(row.key) not in (await _account(runs, row, room=room)).rules:
                raise Conflict("The run has ended, or has no budget of its own.")
            return Subject(run_account(row.key), id)


async def set_limits(at: Workspaces, caller: Caller, about: Subject, limits: Sequence[Limit], *, by: str) -> Budget:
    """Replaces the limits of an account. They apply from the next call of every live run."""
    _check(level_of(about.account), limits)
    now = at.clock.now_us()
    await at.records.write(budgets.set_limits(about.account, limits, workspace=caller.workspace, by=by, now=now))
    await at.changed(Change("budgets", caller.workspace, by))
    return await _of(at, about)


async def of_workspace(at: Workspaces, caller: Caller, runs: StoredRuns, *, any_code: bool = False) -> list[Budget]:
    """Returns the budgets of a workspace that the caller may see.

    Deleted agents, and sessions and runs that have ended, are left out: their limits still apply to active runs, but
    can no longer be set. With `any_code`, anything that is not the id of a stored agent counts as the name of an agent
    defined in code, which this process need not know.
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

    found: list[Budget] = []
    for account, budget in await at.records.read(query()):
        level, key = level_of(account), account.rpartition(":")[2]
        id = budget.id if level != "thread" else await runs.session_id(int(key))
        if level == "run":
            row = await runs.row(int(key))
            if row is None or row.ended_at is not None:
                continue
            id = ids.run_id(row.key, row.salt)
        found.append(Budget(budget.level, id, budget.limits))
    return found


async def over_run(at: Workspaces, runs: StoredRuns, row: RunRow, *, room: Room = _any_room) -> list[Budget]:
    """Returns every budget that applies to a run, the nearest first."""
    account = await _account(runs, row, room=room)
    found: list[Budget] = []
    for name in account.accounts:
        budget = await _of(at, Subject(name), account.rules)
        if budget.limits:
            child = name == account.own and account.is_child
            found.append(Budget("child" if child else budget.level, await _id(name, row, runs), budget.limits))
    return found


async def _account(runs: StoredRuns, row: RunRow, *, room: Room) -> Account:
    """Reads from a run's log which accounts its calls are booked on."""
    try:
        return await _read_account(row, await runs.logs.entry(row.key, 1, max_bytes=LARGE_BYTES))
    except LargeEntry as large:
        async with room(large.size):
            return await _read_account(row, await runs.logs.entry(row.key, 1))


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


async def _id(account: str, row: RunRow, runs: StoredRuns) -> str | None:
    level, _, key = account.partition(":")
    match level:
        case "run":
            found = row if int(key) == row.key else await runs.row(int(key))
            return None if found is None else ids.run_id(found.key, found.salt)
        case "thread":
            return await runs.session_id(int(key))
        case "agent":
            return key.partition(":")[2]
        case _:
            return None


async def _of(at: Workspaces, about: Subject, rules: Mapping[str, BudgetRule] | None = None) -> Budget:
    """The limits that were set for an account, or else those that came with a run."""
    return await at.records.read(_budget(about, rules or {}, today=day_of(at.clock.now_us())))


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


def _shown(budget: Budget, warnings: Warnings = UNSET) -> BudgetUse:
    return BudgetUse(budget.level, budget.id, [_shown_use(one) for one in budget.limits], warnings)


def _shown_use(use: Use) -> LimitUse:
    limit = use.limit
    view = LimitUse(limit.unit, limit.period, *use.amounts, limit.on_exceeded)
    if isinstance(limit, SetLimit):
        view.set_by, view.set_at = limit.set_by, iso(limit.set_at)
    return view
