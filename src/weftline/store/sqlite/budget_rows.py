# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false
"""What the runs of a flush have spent and reserved: added to their accounts in the same transaction.

Accounts are records; the log in memory uses this too.
"""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from weftline.store.base import Write
from weftline.store.database import SqlValue
from weftline.store.sqlite import statements as sql

_ADD = (
    "INSERT INTO budget_use (workspace, account, day, nusd, tokens, active_us, calls, held_nusd, held_tokens,"
    " held_calls) VALUES ",
    10,
    " ON CONFLICT (account, day) DO UPDATE SET nusd = nusd + excluded.nusd, tokens = tokens + excluded.tokens,"
    " active_us = active_us + excluded.active_us, calls = calls + excluded.calls,"
    " held_nusd = held_nusd + excluded.held_nusd, held_tokens = held_tokens + excluded.held_tokens,"
    " held_calls = held_calls + excluded.held_calls",
)


def keep(db: apsw.Connection, writes: Iterable[Write]) -> None:
    """Adds the bookings of these writes to their accounts, in the caller's transaction."""
    sums: dict[tuple[int, str, int], list[int]] = {}
    closed: list[str] = []
    for write in writes:
        for one in write.bookings:
            added = sums.setdefault((one.workspace, one.account, one.day), [0] * 7)
            amounts = (one.nusd, one.tokens, one.active_us, one.calls, one.held_nusd, one.held_tokens, one.held_calls)
            for place, amount in enumerate(amounts):
                added[place] += amount
        if write.closes is not None:
            closed.append(write.closes)
    rows: list[tuple[SqlValue, ...]] = [(*place, *amounts) for place, amounts in sums.items() if any(amounts)]
    if rows:
        sql.run_many(db, _ADD, rows)
    for account in closed:
        db.execute("UPDATE budget_use SET closed = 1 WHERE account = ?", (account,))
