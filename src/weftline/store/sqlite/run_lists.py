# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Lists of runs: newest first, a page at a time.

A filter without an index of its own (status, agent) walks the workspace's rows, so these run in a thread.
"""

from __future__ import annotations

from typing import Any

import apsw
from msgspec.structs import replace

from weftline.store.rows import GIVEN, RunFilter, RunRow
from weftline.store.sqlite.rows import RUN_COLUMNS, readable_run_row
from weftline.store.sqlite.texts import rows_of

_RUN = f"SELECT {RUN_COLUMNS} FROM runs WHERE key = ?"
_CHANGED = "coalesce(runs.ended_at, runs.started_at, runs.created_at)"


_IS_GIVEN = f"substr(runs.salt, 1, 1) = '{GIVEN}'"
_AFTER_Z = "{"
"""The character after the last one that an id can have."""
_WITH_ID = f"SELECT key FROM runs WHERE {_IS_GIVEN} AND salt = ? AND workspace = coalesce(?, workspace) ORDER BY key"


def given(db: apsw.Connection, run_id: str, *, workspace: int | None) -> list[int]:
    rows: list[Any] = db.execute(_WITH_ID, (GIVEN + run_id, workspace)).fetchall()
    return [row[0] for row in rows]


def runs(db: apsw.Connection, wanted: RunFilter) -> list[RunRow]:
    """Up to `limit` runs that match."""
    source, values, key = _matching(wanted)
    order = f"{_CHANGED} DESC, {key} DESC" if wanted.by_change else f"{key} DESC"
    query = f"SELECT {RUN_COLUMNS} FROM {source} ORDER BY {order} LIMIT ?"
    return [readable_run_row(row) for row in rows_of(db, query, (*values, wanted.limit))]


def one(db: apsw.Connection, key: int) -> RunRow | None:
    rows = rows_of(db, _RUN, (key,))
    return readable_run_row(rows[0]) if rows else None


def count(db: apsw.Connection, wanted: RunFilter) -> int:
    source, values, _ = _matching(replace(wanted, before=None, before_change=None))
    row: Any = db.execute(f"SELECT count(*) FROM {source}", values).fetchone()
    return row[0]


def _matching(wanted: RunFilter) -> tuple[str, list[int | str], str]:
    """Returns the SQL after FROM, its values, and the expression for the run's key."""
    where: list[str] = []
    values: list[int | str] = []

    def add(condition: str, *given: int | str) -> None:
        where.append(condition)
        values.extend(given)

    key = "m0.run" if wanted.metadata else "runs.key"
    if wanted.workspace is not None:
        # A thread's runs and ids chosen by clients have indexes with fewer rows: `+` keeps the planner off the
        # workspace's.
        few = wanted.thread is not None or wanted.given_prefix is not None
        add(f"{'+' if few else ''}runs.workspace = ?", wanted.workspace)
    if wanted.given_prefix is not None:
        first = GIVEN + wanted.given_prefix
        add(f"{_IS_GIVEN} AND runs.salt >= ? AND runs.salt < ?", first, f"{first}{_AFTER_Z}")
    if wanted.not_given:
        add(f"NOT {_IS_GIVEN}")
    if wanted.before is not None:
        add(f"{key} < ?", wanted.before)
    if wanted.before_change is not None:
        add(f"({_CHANGED}, {key}) < (?, ?)", *wanted.before_change)
    if wanted.changed_since is not None:
        add(f"{_CHANGED} >= ?", wanted.changed_since)
    if wanted.agents:
        add(f"runs.agent IN ({_marks(wanted.agents)})", *wanted.agents)
    if wanted.thread is not None and wanted.with_children:
        add("(runs.thread = ? OR runs.family = ?)", wanted.thread, wanted.thread)
    elif wanted.thread is not None:
        add("runs.thread = ?", wanted.thread)
    if wanted.statuses:
        add(f"runs.status IN ({_marks(wanted.statuses)})", *wanted.statuses)
    # The index of the first pair has its rows in order, so the walk ends with the page. Cross joins keep the order of
    # the loops, so that a row is read only if all pairs match.
    source = "".join(f"run_metadata AS m{number} CROSS JOIN " for number in range(len(wanted.metadata))) + "runs"
    for number, (name, value) in enumerate(wanted.metadata):
        if wanted.workspace is not None:
            add(f"m{number}.workspace = ?", wanted.workspace)
        add(f"m{number}.name = ? AND m{number}.value = ?", name, value)
        add(f"m{number}.run = {'m0.run' if number else 'runs.key'}")
    return f"{source}{' WHERE ' if where else ''}{' AND '.join(where)}", values, key


def _marks(values: tuple[str, ...]) -> str:
    return ",".join("?" * len(values))
