"""Budgets: the limits of accounts, and what is booked on them."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.store.budgets import Booking, Limit, SetLimit
from weftline.store.database import Query, statement

_USE = "workspace, account, day, nusd, tokens, active_us, calls, held_nusd, held_tokens, held_calls"
_LIMIT = "unit, amount, period, on_exceeded, workspace, account, set_by, set_at"


def limits(*, workspace: int | None = None, account: str | None = None) -> Query[list[SetLimit]]:
    """By account; of one workspace or one account, if that is given."""
    rows = yield from statement(
        f"SELECT {_LIMIT} FROM budget_limits WHERE workspace = coalesce($1, workspace)"
        " AND account = coalesce($2, account) ORDER BY account, unit, period",
        workspace,
        account,
    )
    return [SetLimit(*row) for row in rows]


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
    """What is booked on accounts that more may be booked on."""
    rows = yield from statement(f"SELECT {_USE} FROM budget_use WHERE closed = 0")
    return [Booking(*row) for row in rows]


def use(account: str) -> Query[list[Booking]]:
    """By day."""
    rows = yield from statement(f"SELECT {_USE} FROM budget_use WHERE account = $1 ORDER BY day", account)
    return [Booking(*row) for row in rows]
