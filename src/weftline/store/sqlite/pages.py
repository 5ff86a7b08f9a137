# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Pages of a run's log: entries and observations merged by seq, cut by bytes."""

from __future__ import annotations

from typing import Any

import apsw
from msgspec import Struct

from weftline.store.base import Page, Stored
from weftline.store.sqlite.rows import DELTA_COLUMNS, ENTRY_COLUMNS, stored

INLINE_BYTES = 256 * 1024
INLINE_ROWS = 256
"""More than this is read in a thread; a page of this size takes about a millisecond."""

_OVERHEAD = 64

_SIZES = (
    f"SELECT seq, {_OVERHEAD} + length(head) + length(body) FROM entries WHERE run = ?1 AND seq > ?2"
    f" UNION ALL SELECT seq, {_OVERHEAD} + length(bodies) FROM deltas WHERE run = ?1 AND seq > ?3"
    " ORDER BY seq LIMIT ?4"
)
_CONTENT = (
    f"SELECT {ENTRY_COLUMNS} FROM entries WHERE run = ?1 AND seq > ?2 AND seq <= ?4"
    f" UNION ALL SELECT {DELTA_COLUMNS} FROM deltas WHERE run = ?1 AND seq > ?3 AND seq <= ?4 ORDER BY seq"
)


class Plan(Struct, frozen=True):
    """Which rows a page is made of: those above `after` (entries) or `deltas_after` (deltas), up to seq `last`."""

    run: int
    after: int
    deltas_after: int
    last: int
    """The first seq of the last row; 0 when there are no rows."""
    whole: bool
    """Whether the log ends with this page."""
    small: bool
    """Whether it may be read on the loop."""
    upto: int
    ended: bool


def plan(db: apsw.Connection, run: int, *, after: int, max_bytes: int, max_rows: int) -> Plan | None:
    """Looks at the sizes of rows only, which SQLite knows without reading their content. None for an unknown run."""
    head: Any = db.execute("SELECT next_seq, ended_at IS NOT NULL FROM runs WHERE key = ?", (run,)).fetchone()
    if head is None:
        return None
    deltas_after = _before_deltas(db, run, after)
    rows: list[Any] = db.execute(_SIZES, (run, after, deltas_after, max_rows + 1)).fetchall()
    total = last = taken = 0
    for seq, size in rows[:max_rows]:
        if taken and total + size > max_bytes:
            break
        total, last, taken = total + size, seq, taken + 1
    return Plan(
        run,
        after,
        deltas_after,
        last,
        whole=taken == len(rows),
        small=total <= INLINE_BYTES and not taken == max_rows < len(rows),
        upto=head[0] - 1,
        ended=bool(head[1]),
    )


def content(db: apsw.Connection, plan: Plan) -> Page:
    """Reads what was planned, in the same snapshot."""
    items: list[Stored] = []
    if plan.last:
        items = stored(db.execute(_CONTENT, (plan.run, plan.after, plan.deltas_after, plan.last)).fetchall())
    last_seq = plan.upto if plan.whole else items[-1].last_seq
    return Page(items, last_seq, plan.upto, plan.ended)


def _before_deltas(db: apsw.Connection, run: int, after: int) -> int:
    """A seq below the first row of deltas that has something above `after`: it may begin before."""
    if after == 0:
        return 0
    row: Any = db.execute(
        "SELECT seq, count FROM deltas WHERE run = ? AND seq <= ? ORDER BY seq DESC LIMIT 1", (run, after)
    ).fetchone()
    return row[0] - 1 if row and row[0] + row[1] - 1 > after else after
