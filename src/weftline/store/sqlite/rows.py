"""The columns of a run and of its log, and the rows they are read into."""

from __future__ import annotations

from typing import Any

from weftline.store.base import RunRow, Stored
from weftline.store.columns import Columns

RUN_COLUMNS = (
    "runs.key, runs.salt, runs.workspace, runs.thread, runs.name, runs.agent, runs.metadata, runs.status,"
    " runs.created_at, runs.started_at, runs.ended_at, runs.next_seq, runs.version, runs.epoch, runs.due_at,"
    " runs.rules, runs.format, coalesce((SELECT format FROM threads WHERE threads.key = runs.thread), 0),"
    " runs.thread IS NOT NULL AND runs.ended_at IS NULL AND"
    " (SELECT active_run FROM threads WHERE threads.key = runs.thread) IS NOT runs.key,"
    " runs.state, runs.state_seq, runs.fold, runs.suspect, runs.alone, runs.deaths"
)
_QUEUED = 18
"""The position of the one column that is true or false: SQLite has no booleans."""

ENTRY_COLUMNS = "seq, at, kind, head, body, 1"
DELTA_COLUMNS = "seq, at, kind, x'', bodies, count"


RUN_COLUMNS_AS_BYTES = ", ".join(
    f"CAST({column} AS BLOB)" if column in ("runs.name", "runs.agent", "runs.metadata", "runs.status") else column
    for column in RUN_COLUMNS.split(", ")
)
"""For rows with a text that is not UTF-8."""


def run_row(row: Any) -> RunRow:
    """For whoever drives the run, which finds out by itself what it cannot work with."""
    values = list(row)
    values[_QUEUED] = bool(values[_QUEUED])
    return RunRow(*values)


def shown_run_row(row: Any) -> RunRow:
    """For whoever shows it; see `weftline.store.columns`."""
    run, read = run_row(row), Columns()
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


def stored(rows: list[Any]) -> list[Stored]:
    return [Stored(*row) for row in rows]
