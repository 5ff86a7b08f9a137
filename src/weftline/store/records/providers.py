"""Model providers added by workspaces."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from weftline.store.database import Columns, Query, Row, one, statement
from weftline.store.records import pages
from weftline.store.records.pages import RowPage, page_keys

_COLUMNS = "key, id, workspace, name, spec, secrets, version, created_at, updated_at"
_PROVIDER = f"SELECT {_COLUMNS} FROM providers"


class ProviderRow(Struct, frozen=True):
    key: int
    id: str
    workspace: int
    name: str
    spec: bytes
    """JSON of `weftline.workspace.providers.ProviderSpec`."""
    secrets: bytes | None
    """The encrypted API key and header values."""
    version: int
    """Incremented by every change."""
    created_at: int
    updated_at: int
    damaged: str = ""
    """The first damaged column, or ""; see `weftline.store.database`."""


class ProviderColumns(Struct, frozen=True, kw_only=True):
    name: str
    spec: bytes
    secrets: bytes | None


def of_workspace(workspace: int) -> Query[list[ProviderRow]]:
    """Oldest first."""
    rows = yield from statement(f"{_PROVIDER} WHERE workspace = $1 ORDER BY key", workspace)
    return [_to_row(row) for row in rows]


def find(name: str, *, workspace: int) -> Query[ProviderRow | None]:
    """The provider with this id or this name; both are unique in its workspace."""
    row = yield from one(
        f"{_PROVIDER} WHERE (id = $1 OR name = $1) AND workspace = $2"
        " ORDER BY CASE WHEN id = $1 THEN 0 ELSE 1 END LIMIT 1",
        name,
        workspace,
    )
    return _provider(row)


def by_name(name: str, *, workspace: int) -> Query[ProviderRow | None]:
    row = yield from one(f"{_PROVIDER} WHERE name = $1 AND workspace = $2", name, workspace)
    return _provider(row)


def page(*, workspace: int, after: int, limit: int) -> Query[RowPage[ProviderRow]]:
    """The oldest first."""
    keys, more = yield from page_keys("providers", workspace=workspace, after=after, limit=limit)
    rows: list[Row] = []
    for key in keys:
        rows += yield from statement(f"{_PROVIDER} WHERE key = $1", key)
    return RowPage([_to_row(row) for row in rows], more)


def count(workspace: int) -> Query[int]:
    return pages.count("providers", workspace=workspace)


def specs(workspace: int) -> Query[list[bytes]]:
    rows = yield from statement("SELECT spec FROM providers WHERE workspace = $1", workspace)
    return [row[0] for row in rows]


def insert(id: str, columns: ProviderColumns, *, workspace: int, now: int) -> Query[ProviderRow | None]:
    """The new provider; None if the workspace already has one with that name."""
    row = yield from one(
        "INSERT INTO providers (id, workspace, name, spec, secrets, version, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, 1, $6, $6)"
        f" ON CONFLICT (workspace, name) DO NOTHING RETURNING {_COLUMNS}",
        id,
        workspace,
        columns.name,
        columns.spec,
        columns.secrets,
        now,
    )
    return _provider(row)


def update(key: int, columns: ProviderColumns, *, now: int) -> Query[ProviderRow | None]:
    row = yield from one(
        "UPDATE providers SET name = $1, spec = $2, secrets = $3, version = version + 1, updated_at = $4"
        f" WHERE key = $5 RETURNING {_COLUMNS}",
        columns.name,
        columns.spec,
        columns.secrets,
        now,
        key,
    )
    return _provider(row)


def delete(key: int) -> Query[None]:
    yield from statement("DELETE FROM providers WHERE key = $1", key)


def _provider(row: Row | None) -> ProviderRow | None:
    return None if row is None else _to_row(row)


def _to_row(row: Row) -> ProviderRow:
    provider, read = ProviderRow(*row), Columns()
    return replace(
        provider,
        name=read.text("name", provider.name),
        spec=read.json("spec", provider.spec),
        created_at=read.time("created_at", provider.created_at),
        updated_at=read.time("updated_at", provider.updated_at),
        damaged=read.damaged,
    )
