"""API keys. Only the hash and the first characters of a key's secret are stored."""

from __future__ import annotations

from msgspec import Struct
from msgspec.json import encode

from weftline.store import crashpoints
from weftline.store.database import Columns, Query, Row, one, statement
from weftline.store.records.pages import RowPage, fitting

_KEY = (
    "SELECT k.id, k.workspace, w.slug, k.name, k.prefix, k.usage, k.agents, k.created_at, k.revoked_at, k.made_by,"
    " EXISTS (SELECT 1 FROM features_off f WHERE f.workspace = k.workspace AND f.feature = 'api_keys')"
    " FROM api_keys k JOIN workspaces w ON w.key = k.workspace"
)


class ApiKey(Struct, frozen=True):
    """A key without its secret."""

    id: str
    workspace: int
    slug: str
    name: str
    prefix: str
    usage: str
    agents: tuple[str, ...]
    """The agents that it may use; empty for all."""
    created_at: int
    revoked_at: int | None
    made_by: str = ""
    """The person whose key it counts as; empty if an operator created it. See `weftline.workspace.people`."""
    gated: bool = False
    """Whether its workspace has API keys switched off."""
    damaged: str = ""
    """The first damaged column, or "". A damaged key authenticates nobody, but can be revoked."""


class NewKey(Struct, frozen=True, kw_only=True):
    id: str
    hash: bytes
    prefix: str
    name: str
    usage: str
    agents: tuple[str, ...]
    made_by: str = ""


def by_hash(hash: bytes) -> Query[ApiKey | None]:
    row = yield from one(f"{_KEY} WHERE k.hash = $1", hash)
    return _key(row)


def by_id(id: str) -> Query[ApiKey | None]:
    row = yield from one(f"{_KEY} WHERE k.id = $1", id)
    return _key(row)


def page(*, workspace: int, after: int, limit: int, revoked: bool = False) -> Query[RowPage[ApiKey]]:
    """Oldest first; with `revoked`, including revoked keys."""
    working = "" if revoked else " AND k.revoked_at IS NULL"
    found = yield from statement(
        f"SELECT k.key, length(k.agents) FROM api_keys k WHERE k.workspace = $1 AND k.key > $2{working}"
        " ORDER BY k.key LIMIT $3",
        workspace,
        after,
        limit + 1,
    )
    keys = [row[0] for row in found][: fitting([row[1] for row in found], limit=limit)]
    last = keys[-1] if keys else after
    rows = yield from statement(
        f"{_KEY} WHERE k.workspace = $1 AND k.key > $2 AND k.key <= $3{working} ORDER BY k.key", workspace, after, last
    )
    return RowPage([_row(row) for row in rows], last if len(keys) < len(found) else None)


def has_credentials() -> Query[bool]:
    """Returns True if any key works, or an OAuth app could get a token."""
    row = yield from one(
        "SELECT 1 WHERE EXISTS (SELECT 1 FROM api_keys WHERE revoked_at IS NULL) OR EXISTS (SELECT 1 FROM oauth_apps)"
    )
    return row is not None


def insert(key: NewKey, *, workspace: int, now: int) -> Query[bool]:
    """False if this store already has a key with the same secret."""
    crashpoints.hit(("key.created",), "before")
    row = yield from one(
        "INSERT INTO api_keys (id, workspace, hash, prefix, name, usage, agents, created_at, made_by)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (hash) DO NOTHING RETURNING id",
        key.id,
        workspace,
        key.hash,
        key.prefix,
        key.name,
        key.usage,
        encode(key.agents).decode(),
        now,
        key.made_by,
    )
    return row is not None


def revoke(id: str, *, now: int) -> Query[None]:
    """Revokes a key. The time of an earlier revocation is kept."""
    yield from statement("UPDATE api_keys SET revoked_at = coalesce(revoked_at, $1) WHERE id = $2", now, id)


def _key(row: Row | None) -> ApiKey | None:
    return None if row is None else _row(row)


def _row(row: Row) -> ApiKey:
    id, workspace, slug, name, prefix, usage, agents, created_at, revoked_at, made_by, gated = row
    read = Columns()
    return ApiKey(
        id,
        workspace,
        slug,
        read.text("name", name),
        read.text("prefix", prefix),
        read.text("usage", usage),
        read.texts("agents", agents),
        read.time("created_at", created_at),
        read.time_or_none("revoked_at", revoked_at),
        read.text("made_by", made_by),
        bool(gated),
        read.damaged,
    )
