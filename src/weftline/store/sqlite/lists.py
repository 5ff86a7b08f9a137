# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The list of runs: newest first, a page at a time, on a connection of its own.

A filter without an index of its own (status, agent) walks the workspace's rows; that is why this runs in a thread.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.json import decode

from weftline.store.sqlite.connection import connect
from weftline.store.sqlite.reads import RUN_COLUMNS, RunRow


class Filter(Struct, frozen=True, kw_only=True):
    """What a page has to match, and where it begins: below the key `before`."""

    workspace: int
    before: int | None = None
    limit: int = 50
    statuses: tuple[str, ...] = ()
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
