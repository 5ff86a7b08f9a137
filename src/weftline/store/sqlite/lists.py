# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Lists of runs, newest first, and of open questions to people, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
from msgspec.structs import replace

from weftline.store.database import Columns, SqlValue
from weftline.store.rows import GIVEN, KINDS, AwaitFilter, OpenAwait, RunFilter, RunRow, Write
from weftline.store.sqlite import database as sql
from weftline.store.sqlite.database import RUN_COLUMNS, readable_run_row, rows_of

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


_INSERT = (
    "INSERT INTO open_awaits (workspace, run, id, root, kind, tool, opened_at, deadline_at, body) VALUES ",
    9,
    "",
)
_COLUMNS = (
    "a.run, r.salt, a.id, a.workspace, a.root, coalesce(top.salt, ''), coalesce(r.thread, top.thread),"
    " coalesce(r.agent, top.agent), r.name, a.kind, a.opened_at,"
    " a.deadline_at, a.key, length(a.body)"
)


def keep(db: apsw.Connection, writes: Sequence[Write]) -> None:
    """Adds the awaits that these writes open, and removes those that they answer, in the caller's transaction."""
    rows: list[tuple[SqlValue, ...]] = [
        (new.workspace, write.key, new.id, new.root, new.kind, new.tool, new.opened_at, new.deadline_at, new.body)
        for write in writes
        for new in write.awaits
        if new.id not in write.answered
    ]
    if rows:
        sql.run_many(db, _INSERT, rows)
    for write in writes:
        for id in write.answered:
            db.execute(
                "DELETE FROM open_awaits WHERE run = ? AND id = ?"
                " AND workspace = (SELECT workspace FROM runs WHERE key = ?)",
                (write.key, id, write.key),
            )


def awaits(db: apsw.Connection, wanted: AwaitFilter) -> list[OpenAwait]:
    where, values = ["a.workspace = ?", "(a.run, a.id) > (?, ?)"], list[SqlValue]([wanted.workspace, *wanted.after])

    def add(condition: str, *given: SqlValue) -> None:
        where.append(condition)
        values.extend(given)

    if wanted.id is not None:
        add("a.id = ?", wanted.id)
    if wanted.run is not None:
        add("a.run = ?", wanted.run)
    if wanted.root is not None:
        add("(a.root = ? OR a.run = ?)", wanted.root, wanted.root)
    if wanted.thread is not None:
        add("coalesce(r.thread, top.thread) = ?", wanted.thread)
    if wanted.agents:
        add(f"coalesce(r.agent, top.agent) IN ({','.join('?' * len(wanted.agents))})", *wanted.agents)
    if wanted.kinds:
        add(f"a.kind IN ({','.join('?' * len(wanted.kinds))})", *wanted.kinds)
    if wanted.due_before is not None:
        add("a.deadline_at < ?", wanted.due_before)
    if wanted.tool is not None:
        add("a.tool = ?", wanted.tool)
    if wanted.opened_until is not None:
        add("a.opened_at <= ?", wanted.opened_until)
    query = (
        f"SELECT {_COLUMNS} FROM open_awaits AS a JOIN runs AS r ON r.key = a.run"
        f" LEFT JOIN runs AS top ON top.key = a.root WHERE {' AND '.join(where)} ORDER BY a.run, a.id LIMIT ?"
    )
    rows = rows_of(db, query, (*values, wanted.limit))
    left = wanted.max_bytes
    found: list[OpenAwait] = []
    for *columns, key, size in rows:
        reads = left is None or size <= left or (not found and wanted.max_bytes != 0)
        # One by one, so that bodies beyond the page are not read.
        body: Any = db.execute("SELECT body FROM open_awaits WHERE key = ?", (key,)).fetchone() if reads else (b"",)
        found.append(_open_await(columns, body[0], unread=not reads))
        if left is not None:
            left = left - size if reads else 0
    return found


def _open_await(columns: Sequence[Any], body: bytes, *, unread: bool) -> OpenAwait:
    run, salt, id, workspace, root, root_salt, thread, agent, name, kind, opened_at, deadline_at = columns
    read = Columns()
    return OpenAwait(
        run,
        read.text("salt", salt),
        id,
        workspace,
        root,
        read.text("salt", root_salt),
        thread,
        read.text_or_none("agent", agent),
        read.text("name", name),
        read.one_of("kind", kind, KINDS),
        read.time("opened_at", opened_at),
        read.time_or_none("deadline_at", deadline_at),
        body,
        unread=unread,
        damaged=read.damaged,
    )
