"""The budget tree in the store: the limits that were set, and what was spent, by account and day.

Use is a projection of the logs: each write of a run carries the bookings of its facts, in the same transaction.
"""

from __future__ import annotations

from datetime import date, timedelta

from msgspec import Struct

from weftline.kernel.policy import BudgetRule, Level, OnExceeded, Period, Unit

_EPOCH = date(1970, 1, 1)
_DAY_US = 86_400_000_000


class Booking(Struct, frozen=True):
    """An addition to an account. Reserved amounts are added when a call begins and subtracted when it ends."""

    workspace: int
    account: str
    day: int
    nusd: int = 0
    tokens: int = 0
    active_us: int = 0
    calls: int = 0
    held_nusd: int = 0
    held_tokens: int = 0
    held_calls: int = 0

    @property
    def undone(self) -> Booking:
        return Booking(
            self.workspace,
            self.account,
            self.day,
            -self.nusd,
            -self.tokens,
            -self.active_us,
            -self.calls,
            -self.held_nusd,
            -self.held_tokens,
            -self.held_calls,
        )


class Limit(Struct, frozen=True):
    """The most that an account may have spent and reserved, in the unit's smallest part."""

    unit: Unit
    amount: int
    period: Period = "total"
    on_exceeded: OnExceeded = "final_turn"


class SetLimit(Limit, frozen=True):
    """A limit as somebody set it."""

    workspace: int = 0
    account: str = ""
    set_by: str = ""
    set_at: int = 0


class Sums(Struct):
    """The sums of an account, for one day or for all days."""

    nusd: int = 0
    tokens: int = 0
    active_us: int = 0
    calls: int = 0
    held_nusd: int = 0
    held_tokens: int = 0
    held_calls: int = 0

    def add(self, one: Booking | Sums) -> None:
        self.nusd += one.nusd
        self.tokens += one.tokens
        self.active_us += one.active_us
        self.calls += one.calls
        self.held_nusd += one.held_nusd
        self.held_tokens += one.held_tokens
        self.held_calls += one.held_calls

    def of(self, unit: Unit) -> tuple[int, int]:
        """Returns the spent and the reserved amount in this unit."""
        match unit:
            case "usd":
                return self.nusd, self.held_nusd
            case "tokens":
                return self.tokens, self.held_tokens
            case "seconds":
                return self.active_us, 0
            case "calls":
                return self.calls, self.held_calls


def limits_of(rule: BudgetRule) -> list[Limit]:
    """The limits that came with a run."""
    given: tuple[tuple[Unit, int | None], ...] = (
        ("usd", rule.nusd),
        ("tokens", rule.tokens),
        ("seconds", rule.active_us),
        ("calls", rule.calls),
    )
    return [Limit(unit, amount, "total", rule.on_exceeded) for unit, amount in given if amount is not None]


def run_account(key: int) -> str:
    return f"run:{key}"


def thread_account(key: int) -> str:
    return f"thread:{key}"


def agent_account(workspace: int, agent: str) -> str:
    return f"agent:{workspace}:{agent}"


def workspace_account(key: int) -> str:
    return f"workspace:{key}"


def level_of(account: str) -> Level:
    match account.partition(":")[0]:
        case "workspace":
            return "workspace"
        case "agent":
            return "agent"
        case "thread":
            return "thread"
        case _:
            return "run"


def day_of(at: int) -> int:
    return at // _DAY_US


def first_day(day: int, period: Period) -> int:
    """The first day of the period that contains a day."""
    if period == "day":
        return day
    return day - (_EPOCH + timedelta(days=day)).day + 1
