# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Rows with texts that are not UTF-8: SQLite stores any bytes as a text, and a store has no checksums.

One such text would fail the whole list that it is in. It is read as bytes instead; `weftline.store.columns` replaces it
by something harmless, and the other rows are unaffected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from weftline.store.database import SqlValue


def rows_of(db: apsw.Connection, sql: str, values: Sequence[SqlValue] = ()) -> list[Any]:
    """All rows of a statement. Rows of a SELECT have bytes where a text is not UTF-8."""
    try:
        return db.execute(sql, tuple(values)).fetchall()
    except UnicodeDecodeError:
        if not sql.startswith("SELECT"):
            raise  # a statement that has changed something is not run a second time
        return _as_stored(db, sql, values)


def _as_stored(db: apsw.Connection, sql: str, values: Sequence[SqlValue]) -> list[Any]:
    cursor = db.execute(sql, tuple(values))
    count = len(cursor.get_description())
    cursor.close(True)
    names = [f"c{number}" for number in range(count)]
    cells = [f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in names]
    kinds = [f"typeof({name}) = 'text'" for name in names]
    rows: list[Any] = db.execute(
        f"WITH q ({', '.join(names)}) AS ({sql}) SELECT {', '.join(cells + kinds)} FROM q", tuple(values)
    ).fetchall()
    return [tuple(_text(row[at]) if row[count + at] else row[at] for at in range(count)) for row in rows]


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
