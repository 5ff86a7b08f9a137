# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The columns of a run and of its log, and the rows they are read into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from weftline.store.columns import Columns
from weftline.store.database import SqlValue
from weftline.store.rows import Item, RunRow
from weftline.store.sqlite.pieces import BODY
from weftline.store.sqlite.texts import rows_of

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
    """The row for displaying the run; see `weftline.store.columns`."""
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
