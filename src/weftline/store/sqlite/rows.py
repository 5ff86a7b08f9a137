"""The columns of a run and of its log, and the rows they are read into."""

from __future__ import annotations

from typing import Any

from weftline.store.base import RunRow, Stored

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


def run_row(row: Any) -> RunRow:
    values = list(row)
    values[_QUEUED] = bool(values[_QUEUED])
    return RunRow(*values)


def stored(rows: list[Any]) -> list[Stored]:
    return [Stored(*row) for row in rows]
