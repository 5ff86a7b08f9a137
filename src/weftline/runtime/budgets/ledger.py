"""The ledger: what every account of the budget tree may spend, has spent and has reserved, in the owner's memory.

The one process that owns the store decides here, on its loop, whether a call fits. The bookings of a run are in its
facts; they are added here at once, and in the store together with those facts, in one transaction. If the store drops a
write, its bookings are undone here. The sums therefore always match the logs, and a new process reads them from the
store.

What a run gives back is available to its own next call at once, since that fails too if the write does. It is available
to others once it is durable, because their writes may succeed although that one is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from weftline.kernel.context import CompactionFailed, ContextCompacted
from weftline.kernel.entries import AttemptFailed, CallClosed, Fact, Parent, TurnCompleted
from weftline.kernel.policy import BudgetRefused, BudgetRule, Held, Period, Unit, tighter
from weftline.kernel.state import State
from weftline.plan import RunPlan, code_agent
from weftline.runtime.clock import Clock
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
from weftline.store.database import Database
from weftline.store.records import budgets

Accounts: TypeAlias = tuple[str, ...]
_NO_RULES: Mapping[str, BudgetRule] = {}
_NO_SUMS = Sums()
MAX_TIME_RESERVE_US = 60_000_000
"""Long enough for most answers."""


class Need(Struct, frozen=True):
    """The most that a call may use. Time is not reserved: there only has to be some left."""

    nusd: int = 0
    tokens: int = 0
    calls: int = 0

    def of(self, unit: Unit) -> int:
        match unit:
            case "usd":
                return self.nusd
            case "tokens":
                return self.tokens
            case "seconds":
                return 1
            case "calls":
                return self.calls

    def concerns(self, unit: Unit) -> bool:
        """Returns True if a limit in this unit applies to the call: `calls` to tool calls, `usd` and `tokens` to model
        calls.
        """
        return unit == "seconds" or (unit == "calls") == bool(self.calls)


NOTHING = Need()


class _Use:
    """The bookings of one account. Days before the month of the latest booking are only in the total."""

    __slots__ = ("days", "kept", "returning", "total")

    def __init__(self) -> None:
        self.total = Sums()
        self.days: dict[int, Sums] = {}
        self.returning: dict[tuple[int, int], Sums] = {}
        """What runs have given back in facts that are not durable yet, by run and day."""
        self.kept = NOTHING
        """What its run reserves for its final turn."""

    def add(self, one: Booking) -> None:
        self.total.add(one)
        day = self.days.get(one.day)
        if day is None:
            day = self.days[one.day] = Sums()
            first = first_day(max(self.days), "month")
            for old in [known for known in self.days if known < first - 1]:  # yesterday may still be settled
                del self.days[old]
        day.add(one)

    def sums(self, period: Period, today: int) -> Sums:
        if period == "total":
            return self.total
        first = first_day(today, period)
        found = Sums()
        for day, sums in self.days.items():
            if day >= first:
                found.add(sums)
        return found

    def keep_back(self, one: Booking, run: int, *, sign: int) -> None:
        sums = self.returning.setdefault((run, one.day), Sums())
        sums.held_nusd += sign * max(-one.nusd - one.held_nusd, 0)
        sums.held_tokens += sign * max(-one.tokens - one.held_tokens, 0)
        sums.held_calls += sign * max(-one.calls - one.held_calls, 0)
        if sums == _NO_SUMS:
            del self.returning[run, one.day]

    def on_its_way(self, unit: Unit, period: Period, today: int, *, run: int) -> int:
        """Returns what runs other than `run` have given back in writes that may still be lost."""
        first = None if period == "total" else first_day(today, period)
        mine = [sums for (by, day), sums in self.returning.items() if by != run and (first is None or day >= first)]
        return sum([sums.of(unit)[1] for sums in mine])


class Ledger:
    def __init__(self) -> None:
        self.limits_set: dict[str, tuple[SetLimit, ...]] = {}
        self._use: dict[str, _Use] = {}
        self._booked: set[int] = set()

    @property
    def active(self) -> bool:
        """True if any workspace, agent or thread has a limit."""
        return bool(self.limits_set)

    async def open(self, records: Database) -> None:
        """Loads what the previous process left."""
        for one in await records.read(budgets.open_use()):
            self._of(one.account).add(one)
            self._booked.add(one.workspace)
        await self.read_limits(records)

    async def read_limits(self, records: Database) -> None:
        """Reads the limits again after somebody has changed them; they apply from the next call on."""
        found: dict[str, tuple[SetLimit, ...]] = {}
        for one in await records.read(budgets.limits()):
            found[one.account] = (*found.get(one.account, ()), one)
        self.limits_set = found

    def limits(self, account: str, rules: Mapping[str, BudgetRule]) -> Sequence[Limit]:
        """The limits that were set, followed by those that came with a run."""
        found = self.limits_set.get(account)
        if found is None:
            rule = rules.get(account)
            return () if rule is None else limits_of(rule)
        return found

    def refusal(
        self,
        accounts: Accounts,
        need: Need,
        *,
        own: str | None,
        final: Need | None,
        rules: Mapping[str, BudgetRule],
        run: int,
        at: int,
    ) -> BudgetRefused | None:
        """The nearest limit that a call of `run` does not fit; None if it fits all of them.

        On the run's `own` account, `final` has to fit as well: the final turn, when nothing else may begin. It is None
        if this is that turn. What the runs above reserve for theirs is not touched either.
        """
        today = day_of(at)
        for account in accounts:
            limits = self.limits(account, rules)
            if not limits:
                continue
            use = self._use.get(account)
            is_last = account == own and final is None
            kept = NOTHING
            if account in rules and not is_last:
                kept = (final or NOTHING) if account == own else use.kept if use is not None else NOTHING
            for limit in limits:
                unit = limit.unit
                spent, reserved = (0, 0) if use is None else use.sums(limit.period, today).of(unit)
                if not need.concerns(unit):
                    continue
                if use is not None and use.returning:
                    reserved += use.on_its_way(unit, limit.period, today, run=run)
                asked = need.of(unit)
                more = 0
                if unit == "seconds":
                    more = 0 if is_last or account not in rules else time_reserve_us(limit)
                elif limit.on_exceeded == "final_turn":
                    more = kept.of(unit)
                if not limit.amount or spent + reserved + asked + more > limit.amount:
                    return BudgetRefused(
                        level_of(account),
                        unit,
                        limit.amount,
                        spent,
                        reserved,
                        asked if unit != "seconds" else 0,
                        account,
                        limit.period,
                        limit.on_exceeded,
                    )
        return None

    @property
    def workspaces(self) -> set[int]:
        """Workspaces with limits of their own, and those that may have had some when the previous process ended."""
        return self._booked | {limit.workspace for limits in self.limits_set.values() for limit in limits}

    def is_raised(self, refused: BudgetRefused, rules: Mapping[str, BudgetRule]) -> bool:
        """Returns True if the limit is now higher than when a call did not fit, or has been removed."""
        same = [
            one for one in self.limits(refused.on, rules) if (one.unit, one.period) == (refused.unit, refused.period)
        ]
        return all(limit.amount > refused.limit for limit in same)

    def setter(self, refused: BudgetRefused) -> str:
        """Who set the current limit that a call did not fit, or "" if nobody did."""
        set_ones = [one for one in self.limits_set.get(refused.on, ()) if one.unit == refused.unit]
        return set_ones[0].set_by if set_ones else ""

    def time_left_us(
        self, accounts: Accounts, rules: Mapping[str, BudgetRule], *, at: int, final: str | None = None
    ) -> int | None:
        """Returns the longest time that a call may take; None if there is no limit. `final` is the account of the run
        whose final turn it is.
        """
        left: int | None = None
        for account in accounts:
            keeps = account in rules and account != final
            for limit in self.limits(account, rules):
                if limit.unit == "seconds":
                    use = self._use.get(account)
                    spent = 0 if use is None else use.sums(limit.period, day_of(at)).active_us
                    most = limit.amount - (time_reserve_us(limit) if keeps else 0)
                    left = tighter(left, max(most - spent, 1))
        return left

    def keep_for_final(self, account: str, need: Need) -> None:
        """Sets what the runs below a run must leave for its final turn."""
        self._of(account).kept = need

    def counts_usd(self, accounts: Accounts, rules: Mapping[str, BudgetRule]) -> bool:
        """Returns True if a limit in money applies to a call on these accounts."""
        return any(limit.unit == "usd" for account in accounts for limit in self.limits(account, rules))

    def limited(self, accounts: Accounts, rules: Mapping[str, BudgetRule]) -> Accounts:
        """The accounts with limits, which a call is charged to."""
        return tuple([account for account in accounts if account in rules or account in self.limits_set])

    def add(self, bookings: Iterable[Booking]) -> None:
        for one in bookings:
            self._of(one.account).add(one)

    def undo(self, bookings: Iterable[Booking]) -> None:
        """Undoes bookings whose facts are lost."""
        for one in bookings:
            self._of(one.account).add(one.undone)

    def keep_back(self, bookings: Iterable[Booking], *, run: int) -> None:
        """Withholds from others what these bookings give back, until `release` is called with the same bookings."""
        for one in bookings:
            if _gives_back(one):
                self._of(one.account).keep_back(one, run, sign=1)

    def release(self, bookings: Iterable[Booking], *, run: int) -> None:
        """Called when the facts of these bookings are durable, or lost."""
        for one in bookings:
            if _gives_back(one) and one.account in self._use:
                self._use[one.account].keep_back(one, run, sign=-1)

    def forget(self, account: str) -> None:
        """Drops the account of a run that has ended."""
        self._use.pop(account, None)

    def _of(self, account: str) -> _Use:
        found = self._use.get(account)
        if found is None:
            found = self._use[account] = _Use()
        return found


class Account:
    """Where the calls of one run are charged."""

    __slots__ = ("_accounts", "_parent", "_plan", "_thread", "_workspace", "booked", "key", "ledger", "own", "rules")

    def __init__(
        self, ledger: Ledger, *, key: int, workspace: int, thread: int | None, plan: RunPlan, parent: Parent | None
    ) -> None:
        self.ledger, self.key = ledger, key
        self.booked: tuple[Booking, ...] = ()
        """What was booked since it was last taken."""
        self._workspace, self._thread, self._plan, self._parent = workspace, thread, plan, parent
        self._accounts: Accounts | None = None
        rule = plan.limits.budget
        self.own = None if rule is None else run_account(key)
        self.rules: Mapping[str, BudgetRule] = _NO_RULES if parent is None else parent.budgets
        if self.own is not None and rule is not None:
            self.rules = {**self.rules, self.own: rule}

    @property
    def accounts(self) -> Accounts:
        """From the run's own account to its workspace's, whether or not they have limits."""
        if self._accounts is None:
            own = () if self.own is None else (self.own,)
            thread = () if self._thread is None else (thread_account(self._thread),)
            agent = agent_of(self._plan)
            named = () if agent is None else (agent_account(self._workspace, agent),)
            above = () if self._parent is None else self._parent.above
            root = workspace_account(self._workspace)
            self._accounts = tuple(dict.fromkeys((*own, *thread, *named, *above, root)))
        return self._accounts

    @property
    def is_child(self) -> bool:
        return self._parent is not None

    @property
    def active(self) -> bool:
        """True if there may be a limit on the run's calls."""
        return bool(self.rules or self.ledger.limits_set)

    def within(self, limit_s: float, clock: Clock, *, final: bool = False) -> float:
        """Returns how long a call may take whose limit would otherwise be `limit_s`: seconds are not reserved, but they
        bound it.
        """
        if not self.rules and not self.ledger.limits_set:
            return limit_s
        now = clock.now_us()
        left = self.ledger.time_left_us(self.accounts, self.rules, at=now, final=self.own if final else None)
        return limit_s if left is None else min(limit_s, left / 1_000_000)

    def above_child(self) -> tuple[Accounts, dict[str, BudgetRule]]:
        """The accounts that a child's calls are charged to besides its own, and the limits of the runs among them."""
        return self.accounts[:-1], dict(self.rules)

    def took(self, before: State, after: State, head: Fact) -> None:
        """Books what a fact reserves, and what it has used of an earlier reservation."""
        old, new = before.budget.holds, after.budget.holds
        bookings: list[Booking] = []
        for slot, held in new.items():
            if slot not in old:
                bookings += self._bookings(held, NOTHING, 0, holds=1)
        for slot, held in old.items():
            if slot not in new:
                used, active_us = used_by(before, head, held)
                bookings += self._bookings(held, used, active_us, holds=-1)
        self.ledger.add(bookings)
        self.ledger.keep_back(bookings, run=self.key)
        self.booked += tuple(bookings)

    def pop_bookings(self) -> tuple[Booking, ...]:
        """Returns what was booked since the last call."""
        booked, self.booked = self.booked, ()
        return booked

    def take_back(self) -> None:
        """Undoes bookings that were not written: their facts will not be in the log."""
        self.undo(self.pop_bookings())

    def undo(self, bookings: Sequence[Booking]) -> None:
        """Undoes the bookings of a write that is lost."""
        self.ledger.undo(bookings)
        self.ledger.release(bookings, run=self.key)

    def committed(self, bookings: Sequence[Booking]) -> None:
        """Called when the write of these bookings is durable."""
        self.ledger.release(bookings, run=self.key)

    def _bookings(self, held: Held, used: Need, active_us: int, *, holds: int) -> list[Booking]:
        return [
            Booking(
                self._workspace,
                account,
                held.day,
                used.nusd,
                used.tokens,
                active_us,
                used.calls,
                holds * held.nusd,
                holds * held.tokens,
                holds * held.calls,
            )
            for account in held.on
        ]


def _gives_back(one: Booking) -> bool:
    return one.held_tokens < 0 or one.held_calls < 0 or one.held_nusd < 0


def time_reserve_us(limit: Limit) -> int:
    """Returns how much of a run's own limit in seconds is reserved for its final turn."""
    return min(limit.amount // 4, MAX_TIME_RESERVE_US) if limit.on_exceeded == "final_turn" else 0


def used_by(before: State, head: Fact, held: Held) -> tuple[Need, int]:
    """Returns the usage of a call that ends with this fact, and its duration. If nobody knows, it is what was
    reserved.
    """
    match head:
        case TurnCompleted() | AttemptFailed() | ContextCompacted() | CompactionFailed():
            tokens = head.usage.input + head.usage.output
            return Need(held.nusd if head.cost_nusd is None else head.cost_nusd, tokens), max(head.active_us, 0)
        case CallClosed():
            call = before.batch.calls[head.index]
            began = call.stage == "started" or call.client is not None
            return Need(calls=held.calls if began else 0), max(head.active_us, 0)
        case _:
            return Need(held.nusd, held.tokens, held.calls), 0


def agent_of(plan: RunPlan) -> str | None:
    """The agent of a run: the id of a stored one, or the name of one defined in code."""
    if plan.agent_id is not None:
        return plan.agent_id
    return None if plan.code is None else plan.name if plan.path else code_agent(plan.code, plan.name)
