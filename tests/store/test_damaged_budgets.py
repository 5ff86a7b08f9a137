# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""Rows of budgets with something in them that nobody wrote: they are read as something harmless."""

from __future__ import annotations

from typing import Any

import pytest

from weftline.runtime.budgets.ledger import Ledger
from weftline.store.budgets import Limit, workspace_account
from weftline.store.database import Query
from weftline.store.records import budgets
from weftline.store.sqlite.database import SqliteDatabase, records_in_memory

ACCOUNT = workspace_account(1)


class Records:
    def __init__(self) -> None:
        self.db = records_in_memory()
        self.db.execute("INSERT INTO workspaces (key, slug, name, created_at) VALUES (1, 'acme', 'Acme', 0)")
        self.db.execute("INSERT INTO workspaces (key, slug, name, created_at) VALUES (2, 'beta', 'Beta', 0)")

    def read(self, query: Query[Any]) -> Any:
        from weftline.store.sqlite.database import run_query

        return run_query(self.db, query)


async def not_written(job: object) -> Any:
    raise AssertionError


@pytest.mark.parametrize(
    "damage",
    [
        "unit = CAST(x'ff' AS TEXT)",
        "unit = '{}'",
        "period = 'week'",
        "on_exceeded = CAST(x'fffe' AS TEXT)",
        "amount = -9223372036854775808",
    ],
)
def test_unreadable_limit_blocks_spending_until_it_is_set_again(damage: str) -> None:
    records = Records()
    for account, workspace in ((ACCOUNT, 1), (workspace_account(2), 2)):
        records.read(budgets.set_limits(account, [Limit("calls", 9)], workspace=workspace, by="key:1", now=5))
    records.db.execute(f"UPDATE budget_limits SET {damage} WHERE workspace = 1")
    own, other = records.read(budgets.limits())
    assert (own.account, own.unit, own.amount, own.on_exceeded) == (ACCOUNT, "tokens", 0, "stop")
    assert (other.unit, other.amount) == ("calls", 9)
    records.read(budgets.set_limits(ACCOUNT, [Limit("calls", 9)], workspace=1, by="key:1", now=5))
    assert [one.amount for one in records.read(budgets.limits())] == [9, 9]


@pytest.mark.parametrize("damage", ["set_by = CAST(x'ff' AS TEXT)", "set_at = -1", "set_at = 9223372036854775807"])
def test_limit_holds_although_its_author_cannot_be_read(damage: str) -> None:
    records = Records()
    records.read(budgets.set_limits(ACCOUNT, [Limit("usd", 7, "day")], workspace=1, by="key:1", now=5))
    records.db.execute(f"UPDATE budget_limits SET {damage}")
    (one,) = records.read(budgets.limits())
    assert (one.unit, one.amount, one.period) == ("usd", 7, "day") and 0 <= one.set_at < 10


@pytest.mark.parametrize("account", ["'zz'", "'run:x'", "''", "'run:'", "CAST(x'ff' AS TEXT)"])
def test_a_limit_of_nobody_is_left_out(account: str) -> None:
    records = Records()
    records.read(budgets.set_limits(ACCOUNT, [Limit("usd", 7)], workspace=1, by="key:1", now=5))
    records.db.execute(f"UPDATE budget_limits SET account = {account}")
    assert records.read(budgets.limits()) == []


@pytest.mark.parametrize("day", [-(2**63), -1, 2**63 - 1])
async def test_spending_on_an_invalid_day_counts_in_all(day: int) -> None:
    records = Records()
    records.db.execute(
        "INSERT INTO budget_use (workspace, account, day, nusd, tokens, active_us, calls, held_nusd, held_tokens,"
        " held_calls) VALUES (1, ?, ?, 1, 2, 3, 4, 0, 0, 0), (1, ?, 20000, 1, 2, 3, 4, 0, 0, 0)",
        (ACCOUNT, day, ACCOUNT),
    )
    ledger = Ledger()
    await ledger.open(SqliteDatabase(records.db, not_written))
    assert sum(one.calls for one in records.read(budgets.use(ACCOUNT))) == 8
