"""Budgets: the limits of accounts, and what is charged to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import add
from typing import cast, get_args

from weftline.kernel.policy import OnExceeded, Period, Unit
from weftline.store.budgets import Booking, Limit, SetLimit
from weftline.store.database import Columns, Query, SqlValue, Statement, insert_many, statement

_USE = "workspace, account, day, nusd, tokens, active_us, calls, held_nusd, held_tokens, held_calls"
_ADDED = ("nusd", "tokens", "active_us", "calls", "held_nusd", "held_tokens", "held_calls")
_INSERT = f"INSERT INTO budget_use ({_USE})"
_ADD = " ON CONFLICT (account, day) DO UPDATE SET " + ", ".join(
    [f"{column} = budget_use.{column} + excluded.{column}" for column in _ADDED]
)
_ACCOUNT = re.compile(r"(workspace|thread|run):[0-9]{1,19}|agent:[0-9]{1,19}:.+")
_LAST_DAY = 2_932_896
"""The last day of the year 9999."""
_LIMIT = "unit, amount, period, on_exceeded, workspace, account, set_by, set_at"


def limits(*, workspace: int | None = None, account: str | None = None) -> Query[list[SetLimit]]:
    """Limits by account; only of one workspace or one account, if given."""
    rows = yield from statement(
        f"SELECT {_LIMIT} FROM budget_limits WHERE workspace = coalesce($1, workspace)"
        " AND account = coalesce($2, account) ORDER BY account, unit, period",
        workspace,
        account,
    )
    return [one for row in rows if (one := _limit(*row)) is not None]


def set_limits(account: str, wanted: Sequence[Limit], *, workspace: int, by: str, now: int) -> Query[None]:
    """Replaces the limits of an account."""
    yield from statement("DELETE FROM budget_limits WHERE account = $1", account)
    for one in wanted:
        yield from statement(
            f"INSERT INTO budget_limits ({_LIMIT}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
            " ON CONFLICT (account, unit, period) DO UPDATE SET amount = excluded.amount",
            one.unit,
            one.amount,
            one.period,
            one.on_exceeded,
            workspace,
            account,
            by,
            now,
        )


def open_use() -> Query[list[Booking]]:
    """Returns the charges to accounts that are still open."""
    rows = yield from statement(f"SELECT {_USE} FROM budget_use WHERE closed = 0")
    return [_booking(*row) for row in rows]


def use(account: str) -> Query[list[Booking]]:
    """The bookings of an account, by day."""
    rows = yield from statement(f"SELECT {_USE} FROM budget_use WHERE account = $1 ORDER BY day", account)
    return [_booking(*row) for row in rows]


def book(bookings: Sequence[Booking], *, closed: Sequence[str] = ()) -> Query[None]:
    """Adds bookings to their accounts, and closes the accounts of runs that have ended. Part of a commit of the log."""
    sums: dict[tuple[int, str, int], tuple[int, ...]] = {}
    for one in bookings:
        place = (one.workspace, one.account, one.day)
        amounts = (one.nusd, one.tokens, one.active_us, one.calls, one.held_nusd, one.held_tokens, one.held_calls)
        sums[place] = tuple(map(add, sums[place], amounts)) if place in sums else amounts
    rows: list[tuple[SqlValue, ...]] = [(*place, *amounts) for place, amounts in sums.items() if any(amounts)]
    yield from insert_many(_INSERT, rows, _ADD)
    for account in closed:
        yield Statement("UPDATE budget_use SET closed = 1 WHERE account = $1", (account,))


def _limit(
    unit: str | bytes,
    amount: int,
    period: str | bytes,
    on_exceeded: str | bytes,
    workspace: int,
    account: str | bytes,
    set_by: str | bytes,
    set_at: int,
) -> SetLimit | None:
    """None if the account cannot be read.

    If the limit itself cannot be read, nothing may be spent: an unknown limit must not become unlimited.
    """
    if not isinstance(account, str) or not _ACCOUNT.fullmatch(account):
        return None
    read = Columns()
    read.one_of("unit", unit, get_args(Unit))
    read.one_of("period", period, get_args(Period))
    read.one_of("on_exceeded", on_exceeded, get_args(OnExceeded))
    broken = bool(read.damaged) or amount < 0
    by, at = read.text("set_by", set_by), read.time("set_at", set_at)
    if broken:
        return SetLimit("tokens", 0, "total", "stop", workspace, account, by, at)
    return SetLimit(
        cast(Unit, unit), amount, cast(Period, period), cast(OnExceeded, on_exceeded), workspace, account, by, at
    )


def _booking(workspace: int, account: str | bytes, day: int, *amounts: int) -> Booking:
    """A booking. An impossible day becomes day 0, so that the amounts still count in totals."""
    name = account if isinstance(account, str) else account.decode(errors="replace")
    return Booking(workspace, name, day if 0 <= day <= _LAST_DAY else 0, *amounts)
