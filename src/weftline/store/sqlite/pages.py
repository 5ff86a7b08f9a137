# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Pages of a run's log: entries and observations merged by seq, cut by bytes."""

from __future__ import annotations

from typing import Any

import apsw
from msgspec import Struct

from weftline.store.rows import Item, Page
from weftline.store.sqlite.pieces import BODY, BODY_BYTES
from weftline.store.sqlite.rows import DELTA_COLUMNS, ENTRY_COLUMNS, stored_as_bytes


class ReadLimit(Struct, frozen=True):
    """The limit of one read, whatever the page's own limit."""

    bytes: int
    rows: int


ON_THE_LOOP = ReadLimit(256 * 1024, 256)
"""Takes about a millisecond; larger pages are read in a thread."""
IN_A_THREAD = ReadLimit(2**40, 16_384)

_PAGE = (
    f"SELECT {ENTRY_COLUMNS} FROM entries WHERE run = ?1 AND seq > ?2"
    f" UNION ALL SELECT {DELTA_COLUMNS} FROM deltas WHERE run = ?1 AND seq > ?3 ORDER BY seq"
)
# A body that is too large is skipped: SQLite knows its length without reading it.
_SMALL_PAGE = _PAGE.replace(f", {BODY},", f", CASE WHEN {BODY_BYTES} <= ?4 THEN {BODY} END,").replace(
    ", bodies,", ", CASE WHEN length(bodies) <= ?4 THEN bodies END,"
)


class NotOnTheLoop(Exception):
    """The page is larger than may be read on the loop."""


def read_page(db: apsw.Connection, run: int, *, after: int, max_bytes: int, limit: ReadLimit) -> Page | None:
    """None for an unknown run. Raises `NotOnTheLoop` instead of reading more than `limit` on the loop."""
    head: Any = db.execute("SELECT next_seq, ended_at IS NOT NULL, format FROM runs WHERE key = ?", (run,)).fetchone()
    if head is None:
        return None
    upto, ended, format = head[0] - 1, bool(head[1]), head[2]
    if upto < 0:  # the row is damaged; a reader would wait forever
        upto = _last_seq(db, run)
    if after >= upto:
        return Page([], upto, upto, ended, format)
    head = (upto, ended, format)
    try:
        return _read(db, run, after=after, max_bytes=max_bytes, limit=limit, head=head)
    except UnicodeDecodeError:  # a kind that is not UTF-8
        return _read(db, run, after=after, max_bytes=max_bytes, limit=limit, head=head, as_bytes=True)


def _read(
    db: apsw.Connection,
    run: int,
    *,
    after: int,
    max_bytes: int,
    limit: ReadLimit,
    head: tuple[int, bool, int],
    as_bytes: bool = False,
) -> Page:
    upto, ended, format = head
    cursor = _rows(db, run, after, limit, as_bytes=as_bytes)
    items: list[Item] = []
    size = 0
    try:
        for row in cursor:
            if row[3] is None or len(items) == limit.rows:
                break
            item = stored_as_bytes(row) if as_bytes else Item(*row)
            size += item.size
            if items and size > max_bytes:
                return Page(items, items[-1].last_seq, upto, ended, format)
            if size > limit.bytes:
                break
            items.append(item)
        else:
            return Page(items, upto, upto, ended, format)
    finally:
        cursor.close()
    if limit is ON_THE_LOOP:
        raise NotOnTheLoop
    return Page(items, items[-1].last_seq, upto, ended, format)


def _last_seq(db: apsw.Connection, run: int) -> int:
    row: Any = db.execute(
        "SELECT max(coalesce((SELECT max(seq) FROM entries WHERE run = ?1), 0),"
        " coalesce((SELECT max(seq + count - 1) FROM deltas WHERE run = ?1), 0))",
        (run,),
    ).fetchone()
    return row[0]


def _rows(db: apsw.Connection, run: int, after: int, limit: ReadLimit, *, as_bytes: bool) -> Any:
    query, *values = _PAGE, run, after, _before_deltas(db, run, after)
    if limit is not IN_A_THREAD:
        query = _SMALL_PAGE
        values.append(limit.bytes)
    return db.execute(query.replace(" kind,", " CAST(kind AS BLOB),") if as_bytes else query, values)


def _before_deltas(db: apsw.Connection, run: int, after: int) -> int:
    """A seq below the first row of deltas that extends past `after`: such a row may begin before it."""
    if after == 0:
        return 0
    row: Any = db.execute(
        "SELECT seq, count FROM deltas WHERE run = ? AND seq <= ? ORDER BY seq DESC LIMIT 1", (run, after)
    ).fetchone()
    return row[0] - 1 if row and row[0] + row[1] - 1 > after else after
