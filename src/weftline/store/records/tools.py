"""Stored tools."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from weftline.store.database import Columns, Query, Row, one, statement
from weftline.store.records import pages
from weftline.store.records.pages import RowPage, page_keys

_COLUMNS = "key, id, workspace, name, kind, spec, secrets, created_at, updated_at"
_TOOL = f"SELECT {_COLUMNS} FROM tools"


class ToolRow(Struct, frozen=True):
    key: int
    id: str
    workspace: int
    name: str
    kind: str
    spec: bytes
    """JSON of `weftline.tools.http.HttpSpec`."""
    secrets: bytes | None
    """Encrypted values by name."""
    created_at: int
    updated_at: int
    damaged: str = ""
    """The first damaged column, or ""; see `weftline.store.database`."""


class ToolColumns(Struct, frozen=True, kw_only=True):
    name: str
    spec: bytes
    secrets: bytes | None


def by_id(id: str, *, workspace: int) -> Query[ToolRow | None]:
    row = yield from one(f"{_TOOL} WHERE id = $1 AND workspace = $2", id, workspace)
    return _tool(row)


def by_name(name: str, *, workspace: int) -> Query[ToolRow | None]:
    row = yield from one(f"{_TOOL} WHERE name = $1 AND workspace = $2", name, workspace)
    return _tool(row)


def page(*, workspace: int, after: int, limit: int) -> Query[RowPage[ToolRow]]:
    """Oldest first."""
    keys, more = yield from page_keys("tools", workspace=workspace, after=after, limit=limit)
    rows: list[Row] = []
    for key in keys:
        rows += yield from statement(f"{_TOOL} WHERE key = $1", key)
    return RowPage([_to_row(row) for row in rows], more)


def count(workspace: int) -> Query[int]:
    return pages.count("tools", workspace=workspace)


def insert(id: str, columns: ToolColumns, *, workspace: int, kind: str, now: int) -> Query[ToolRow | None]:
    """The new tool; None if the workspace already has one with that name."""
    row = yield from one(
        "INSERT INTO tools (id, workspace, name, kind, spec, secrets, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $7)"
        f" ON CONFLICT (workspace, name) DO NOTHING RETURNING {_COLUMNS}",
        id,
        workspace,
        columns.name,
        kind,
        columns.spec,
        columns.secrets,
        now,
    )
    return _tool(row)


def update(key: int, columns: ToolColumns, *, now: int) -> Query[ToolRow | None]:
    row = yield from one(
        f"UPDATE tools SET name = $1, spec = $2, secrets = $3, updated_at = $4 WHERE key = $5 RETURNING {_COLUMNS}",
        columns.name,
        columns.spec,
        columns.secrets,
        now,
        key,
    )
    return _tool(row)


def delete(key: int) -> Query[None]:
    yield from statement("DELETE FROM tools WHERE key = $1", key)


def _tool(row: Row | None) -> ToolRow | None:
    return None if row is None else _to_row(row)


def _to_row(row: Row) -> ToolRow:
    tool, read = ToolRow(*row), Columns()
    return replace(
        tool,
        name=read.text("name", tool.name),
        kind=read.text("kind", tool.kind),
        spec=read.json("spec", tool.spec),
        created_at=read.time("created_at", tool.created_at),
        updated_at=read.time("updated_at", tool.updated_at),
        damaged=read.damaged,
    )
