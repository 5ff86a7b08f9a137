# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The columns of a run and of its log: how they are read, also where texts are damaged, and how they are written.

One multi-row statement per table, never row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

import apsw

from weftline.store.database import Columns, SqlValue
from weftline.store.rows import Item, RunRow
from weftline.store.sqlite.pieces import BODY


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


RUN_COLUMNS = (
    "runs.key, runs.salt, runs.workspace, runs.thread, runs.name, runs.agent, runs.metadata, runs.status,"
    " runs.created_at, runs.started_at, runs.ended_at, runs.next_seq, runs.version, runs.epoch, runs.due_at,"
    " runs.rules, runs.format, coalesce((SELECT format FROM threads WHERE threads.key = runs.thread), 0),"
    " runs.thread IS NOT NULL AND runs.ended_at IS NULL AND"
    " (SELECT active_run FROM threads WHERE threads.key = runs.thread) IS NOT runs.key,"
    " runs.state, runs.state_seq, runs.fold, runs.suspect, runs.alone, runs.deaths, runs.family"
)
_QUEUED = 18
"""The position of the only boolean column; SQLite has no booleans."""

_TEXTS = (1, 4, 5, 6, 7)
"""The positions of the salt, the name, the agent, the metadata and the status."""

ENTRY_COLUMNS = f"at, kind, head, {BODY}, 1, seq"
DELTA_COLUMNS = "at, kind, x'', bodies, count, seq"


def run_row(row: Any) -> RunRow:
    """The row for driving the run; damage is found when a value is used."""
    values = list(row)
    for at in _TEXTS:
        if isinstance(values[at], bytes):  # it is not UTF-8; the run does not depend on it
            values[at] = values[at].decode(errors="replace")
    return _row_of(values)


def _row_of(values: list[Any]) -> RunRow:
    values[_QUEUED] = bool(values[_QUEUED])
    return RunRow(*values)


def readable_run_row(row: Any) -> RunRow:
    """The row for displaying the run; see `weftline.store.database`."""
    run, read = _row_of(list(row)), Columns()
    run.salt = read.text("salt", run.salt)
    run.name = read.text("name", run.name)
    run.agent = read.text_or_none("agent", run.agent)
    run.status = read.status(read.text("status", run.status))
    run.metadata = read.words("metadata", run.metadata)
    run.created_at = read.time("created_at", run.created_at)
    run.started_at = read.time_or_none("started_at", run.started_at)
    run.ended_at = read.time_or_none("ended_at", run.ended_at)
    run.next_seq = read.seq("next_seq", run.next_seq)
    run.damaged = read.damaged
    return run


def stored(db: apsw.Connection, sql: str, values: Sequence[SqlValue]) -> list[Item]:
    """The entries that a SELECT of `ENTRY_COLUMNS` finds."""
    try:
        rows: list[Any] = db.execute(sql, tuple(values)).fetchall()
        return [Item(*row) for row in rows]
    except UnicodeDecodeError:
        return [stored_as_bytes(row) for row in rows_of(db, sql, values)]


def stored_as_bytes(row: Any) -> Item:
    """Reads entries of a log in which a kind is not UTF-8; no entry has such a kind."""
    at, kind, *rest = row
    return Item(at, kind if isinstance(kind, str) else kind.decode(errors="replace"), *rest)


Row = TypeVar("Row")

_LARGEST = 256

INSERT_ENTRIES = ("INSERT INTO entries (run, seq, at, kind, head, body) VALUES ", 6, "")
INSERT_SPLIT_ENTRIES = ("INSERT INTO entries (run, seq, at, kind, head, body, size) VALUES ", 7, "")
INSERT_DELTAS = ("INSERT INTO deltas (run, seq, count, at, kind, bodies) VALUES ", 6, "")
INSERT_RUNS = (
    "INSERT INTO runs (key, salt, workspace, thread, place, name, agent, metadata, status, created_at, started_at,"
    " ended_at, next_seq, version, epoch, due_at, rules, fold, state_seq, state, secrets, format, family) VALUES ",
    23,
    "",
)
UPDATE_RUNS = (
    "WITH v (key, base_seq, base_version, next_seq, version, epoch, due_at, status, started_at, ended_at, state, fold,"
    " progress, format) AS (VALUES ",
    14,
    ") UPDATE runs SET format = v.format, next_seq = v.next_seq, version = v.version, epoch = v.epoch,"
    " due_at = CASE WHEN v.due_at = -1 THEN runs.due_at ELSE v.due_at END,"
    " status = v.status, started_at = coalesce(runs.started_at, v.started_at),"
    " ended_at = coalesce(runs.ended_at, v.ended_at),"
    " state = coalesce(v.state, runs.state),"
    " state_seq = CASE WHEN v.state IS NULL THEN runs.state_seq ELSE v.next_seq - 1 END,"
    " fold = CASE WHEN v.state IS NULL THEN runs.fold ELSE v.fold END,"
    " secrets = CASE WHEN v.ended_at IS NULL THEN runs.secrets END,"
    " alone = CASE WHEN v.progress THEN 0 ELSE runs.alone END,"
    " suspect = CASE WHEN v.progress = 2 THEN 0 ELSE runs.suspect END,"
    " trial = CASE WHEN v.progress = 2 THEN 0 ELSE runs.trial END"
    " FROM v WHERE runs.key = v.key AND runs.next_seq = v.base_seq AND runs.version = v.base_version"
    " AND runs.epoch <= v.epoch",
)
INSERT_RUN_METADATA = ("INSERT INTO run_metadata (workspace, name, value, run) VALUES ", 4, "")
INSERT_BLOBS = ("INSERT INTO blobs (workspace, id, data) VALUES ", 3, " ON CONFLICT DO NOTHING")
INSERT_RUN_BLOBS = ("INSERT INTO run_blobs (run, workspace, blob) VALUES ", 3, "")
INSERT_IDEMPOTENCY = ("INSERT INTO idempotency (workspace, route, key, digest, run, at) VALUES ", 6, "")

Statement = tuple[str, int, str]


def run_many(db: apsw.Connection, statement: Statement, rows: Sequence[tuple[SqlValue, ...]]) -> int:
    """Runs a multi-row statement over all rows; returns how many rows it changed."""
    changed = 0
    for chunk in _chunks(rows):
        sql = _sql(statement, len(chunk))
        db.execute(sql, tuple(chain.from_iterable(chunk)))
        changed += db.changes()
    return changed


@lru_cache(maxsize=256)
def _sql(statement: Statement, rows: int) -> str:
    head, columns, tail = statement
    one = "(" + ",".join("?" * columns) + ")"
    return head + ",".join([one] * rows) + tail


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start, left = 0, len(rows)
    while left:
        size = min(_LARGEST, 1 << (left.bit_length() - 1))
        yield rows[start : start + size]
        start += size
        left -= size
