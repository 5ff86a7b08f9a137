"""Stored agents."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from weftline.store.database import Columns, Query, Row, SqlValue, one, statement
from weftline.store.records.pages import RowPage, page_keys

_SUMMARY = "key, id, workspace, slug, name, description, updated_at, system"
_COLUMNS = f"{_SUMMARY}, spec, secrets, metadata, created_at"
_AGENT = f"SELECT {_COLUMNS} FROM agents"


class AgentSummary(Struct, frozen=True):
    """An agent without its large columns."""

    key: int
    id: str
    workspace: int
    slug: str
    name: str
    description: str
    updated_at: int
    system: bool
    """Usable only with credentials that name it in their allow-list."""


class AgentRow(AgentSummary, frozen=True):
    spec: bytes
    """The client's JSON, in the form of a run's spec; header values of tools are `[redacted]`."""
    secrets: bytes | None
    """The encrypted header values."""
    metadata: str
    """A JSON object of strings."""
    created_at: int
    damaged: str = ""
    """The first damaged column, or ""; see `weftline.store.database`."""


class AgentColumns(Struct, frozen=True, kw_only=True):
    """The columns that a definition sets."""

    slug: str
    name: str
    description: str
    spec: bytes
    secrets: bytes | None
    metadata: str
    system: bool


def by_id(id: str, *, workspace: int) -> Query[AgentRow | None]:
    row = yield from one(f"{_AGENT} WHERE id = $1 AND workspace = $2", id, workspace)
    return _agent(row)


def by_slug(slug: str, *, workspace: int) -> Query[AgentRow | None]:
    row = yield from one(f"{_AGENT} WHERE slug = $1 AND workspace = $2", slug, workspace)
    return _agent(row)


def of_workspace(workspace: int) -> Query[list[AgentSummary]]:
    """The agents of a workspace, oldest first."""
    rows = yield from statement(f"SELECT {_SUMMARY} FROM agents WHERE workspace = $1 ORDER BY key", workspace)
    return [_summary(row) for row in rows]


def page(*, workspace: int, after: int, limit: int, ids: tuple[str, ...] = ()) -> Query[RowPage[AgentRow]]:
    """Oldest first; with `ids`, only those."""
    keys, more = yield from page_keys("agents", workspace=workspace, after=after, limit=limit, ids=ids)
    rows: list[Row] = []
    for key in keys:
        rows += yield from statement(f"{_AGENT} WHERE key = $1", key)
    return RowPage([_row(row) for row in rows], more)


def id_by_slug(slug: str, *, workspace: int) -> Query[str | None]:
    row = yield from one("SELECT id FROM agents WHERE slug = $1 AND workspace = $2", slug, workspace)
    return None if row is None else row[0]


def ids_by_slug(slug: str) -> Query[tuple[str, ...]]:
    """The ids of the agents with this slug, in all workspaces."""
    rows = yield from statement("SELECT id FROM agents WHERE slug = $1", slug)
    return tuple([row[0] for row in rows])


def slugs(workspace: int) -> Query[set[str]]:
    rows = yield from statement("SELECT slug FROM agents WHERE workspace = $1", workspace)
    return {row[0] for row in rows}


def insert(id: str, columns: AgentColumns, *, workspace: int, now: int) -> Query[AgentRow | None]:
    """The new agent; None if the workspace already has one with that slug."""
    row = yield from one(
        "INSERT INTO agents (id, workspace, slug, name, description, spec, secrets, metadata, system,"
        " created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10)"
        f" ON CONFLICT (workspace, slug) DO NOTHING RETURNING {_COLUMNS}",
        id,
        workspace,
        *_values(columns),
        now,
    )
    return _agent(row)


def update(key: int, columns: AgentColumns, *, now: int) -> Query[AgentRow | None]:
    row = yield from one(
        "UPDATE agents SET slug = $1, name = $2, description = $3, spec = $4, secrets = $5, metadata = $6,"
        f" system = $7, updated_at = $8 WHERE key = $9 RETURNING {_COLUMNS}",
        *_values(columns),
        now,
        key,
    )
    return _agent(row)


def _values(columns: AgentColumns) -> tuple[SqlValue, ...]:
    written = (columns.slug, columns.name, columns.description, columns.spec, columns.secrets, columns.metadata)
    return *written, int(columns.system)


def delete(key: int) -> Query[None]:
    yield from statement("DELETE FROM agents WHERE key = $1", key)


def _agent(row: Row | None) -> AgentRow | None:
    return None if row is None else _row(row)


def _row(row: Row) -> AgentRow:
    fields = list(row)
    fields[7] = bool(fields[7])
    agent, read = AgentRow(*fields), Columns()
    return replace(
        agent,
        slug=read.text("slug", agent.slug),
        name=read.text("name", agent.name),
        description=read.text("description", agent.description),
        spec=read.json("spec", agent.spec),
        metadata=read.words("metadata", agent.metadata),
        created_at=read.time("created_at", agent.created_at),
        updated_at=read.time("updated_at", agent.updated_at),
        damaged=read.damaged,
    )


def _summary(row: Row) -> AgentSummary:
    fields = list(row)
    fields[7] = bool(fields[7])
    agent, read = AgentSummary(*fields), Columns()
    return replace(
        agent,
        slug=read.text("slug", agent.slug),
        name=read.text("name", agent.name),
        description=read.text("description", agent.description),
    )
