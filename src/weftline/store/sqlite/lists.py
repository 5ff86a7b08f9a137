# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The lists of runs and threads: newest first, a page at a time, on a connection of their own.

A filter without an index of its own (status, agent) walks the workspace's rows; that is why these run in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
from msgspec import Struct
from msgspec.json import decode

from weftline.store.sqlite.connection import connect
from weftline.store.sqlite.reads import RUN_COLUMNS, THREAD_COLUMNS, RunRow, ThreadRow


class Filter(Struct, frozen=True, kw_only=True):
    """What a page has to match, and where it begins: below the key `before`."""

    workspace: int
    before: int | None = None
    limit: int = 50
    statuses: tuple[str, ...] = ()
    """Of runs."""
    ended: bool | None = None
    """Of threads."""
    thread: int | None = None
    agent: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()


def runs(database: Path, wanted: Filter) -> list[RunRow]:
    """Up to `limit` runs."""
    where, values = _common(wanted, "runs", "run")
    if wanted.thread is not None:
        where.append("runs.thread = ?")
        values.append(wanted.thread)
    if wanted.statuses:
        where.append(f"runs.status IN ({','.join('?' * len(wanted.statuses))})")
        values += wanted.statuses
    return [RunRow(*row) for row in _page(database, "runs", RUN_COLUMNS, "run", wanted, where, values)]


def threads(database: Path, wanted: Filter) -> list[ThreadRow]:
    """Up to `limit` threads."""
    where, values = _common(wanted, "threads", "thread")
    if wanted.thread is not None:
        where.append("threads.key = ?")
        values.append(wanted.thread)
    if wanted.ended is not None:
        where.append(f"threads.ended_at IS {'NOT ' if wanted.ended else ''}NULL")
    return [ThreadRow(*row) for row in _page(database, "threads", THREAD_COLUMNS, "thread", wanted, where, values)]


def _common(wanted: Filter, table: str, column: str) -> tuple[list[str], list[int | str]]:
    # With a thread given, its own index has the few rows; the sign keeps the planner from walking the workspace's.
    where = [f"{'+' if wanted.thread is not None else ''}{table}.workspace = ?"]
    values: list[int | str] = [wanted.workspace]
    if wanted.before is not None:
        where.append(f"{f'm0.{column}' if wanted.metadata else f'{table}.key'} < ?")
        values.append(wanted.before)
    if wanted.agent is not None:
        where.append(f"{table}.agent = ?")
        values.append(wanted.agent)
    return where, values


def _page(
    database: Path,
    table: str,
    columns: str,
    column: str,
    wanted: Filter,
    where: list[str],
    values: list[int | str],
) -> list[Any]:
    selected = ", ".join(f"{table}.{name.strip()}" for name in columns.split(","))
    # The index of the first pair has its rows in order, so that the walk ends with the page; cross joins keep the order
    # of the loops, so that a row itself is read only when all pairs match.
    source = "".join(f"{column}_metadata AS m{number} CROSS JOIN " for number in range(len(wanted.metadata))) + table
    for number, (name, value) in enumerate(wanted.metadata):
        where = [*where, f"m{number}.workspace = ?", f"m{number}.name = ?", f"m{number}.value = ?"]
        values = [*values, wanted.workspace, name, value]
        where.append(f"m{number}.{column} = {f'm0.{column}' if number else f'{table}.key'}")
    order = f"m0.{column}" if wanted.metadata else f"{table}.key"
    query = f"SELECT {selected} FROM {source} WHERE {' AND '.join(where)} ORDER BY {order} DESC LIMIT ?"
    with closing(connect(database, read_only=True)) as db:
        return db.execute(query, (*values, wanted.limit)).fetchall()


def metadata_rows(workspace: int, metadata: str, key: int) -> list[tuple[int, str, str, int]]:
    """The index rows of a run or thread with this metadata."""
    if metadata == "{}":
        return []
    return [(workspace, name, value, key) for name, value in decode(metadata, type=dict[str, str]).items()]


def add_thread_metadata(db: apsw.Connection, rows: Sequence[tuple[int, str, str, int]]) -> None:
    for row in rows:
        db.execute("INSERT INTO thread_metadata (workspace, name, value, thread) VALUES (?, ?, ?, ?)", row)


def thread_of_context(db: apsw.Connection, *, workspace: int, agent: str, context: str) -> int | None:
    """The newest open thread of an agent that is tagged with this A2A context."""
    row = db.execute(
        "SELECT threads.key FROM thread_metadata AS tag CROSS JOIN threads ON threads.key = tag.thread"
        " WHERE tag.workspace = ? AND tag.name = 'a2a_context_id' AND tag.value = ? AND threads.agent = ?"
        " AND threads.ended_at IS NULL ORDER BY tag.thread DESC LIMIT 1",
        (workspace, context, agent),
    ).fetchone()
    if row is None:
        return None
    assert isinstance(row[0], int)
    return row[0]
