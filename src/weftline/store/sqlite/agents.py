# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A workspace's stored agents: plain functions over a connection, writing ones to be run inside the writer."""

from __future__ import annotations

import re
import secrets
from typing import Any

import apsw
from msgspec import Struct

from weftline.errors import Conflict, InvalidRequest, NotFound

ID_PREFIX = "agent_"
SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")


class AgentRow(Struct, frozen=True):
    """`secrets` are sealed; `system` agents are for those credentials alone that name them."""

    key: int
    id: str
    workspace: int
    slug: str
    name: str
    description: str
    spec: bytes
    secrets: bytes | None
    metadata: str
    system: int
    created_at: int
    updated_at: int


_AGENT = (
    "SELECT key, id, workspace, slug, name, description, spec, secrets, metadata, system, created_at, updated_at"
    " FROM agents"
)


def by_id(db: apsw.Connection, id: str, *, workspace: int) -> AgentRow | None:
    return _found(db, f"{_AGENT} WHERE id = ? AND workspace = ?", id, workspace)


def by_slug(db: apsw.Connection, slug: str, *, workspace: int) -> AgentRow | None:
    return _found(db, f"{_AGENT} WHERE slug = ? AND workspace = ?", slug, workspace)


def of_workspace(db: apsw.Connection, workspace: int) -> list[AgentRow]:
    """The oldest first."""
    rows: list[Any] = db.execute(f"{_AGENT} WHERE workspace = ? ORDER BY key", (workspace,)).fetchall()
    return [AgentRow(*row) for row in rows]


def create_agent(
    db: apsw.Connection,
    *,
    workspace: int,
    slug: str,
    name: str,
    description: str,
    spec: bytes,
    metadata: str,
    now: int,
    sealed: bytes | None = None,
    system: bool = False,
) -> AgentRow:
    """`slug` "" makes one of the name.

    Raises:
        Conflict: when the workspace has an agent of that slug.
    """
    slug = slug or _free_slug(db, workspace=workspace, name=name)
    _check_slug(db, workspace=workspace, slug=slug, key=0)
    identity = ID_PREFIX + secrets.token_hex(10)
    db.execute(
        "INSERT INTO agents (id, workspace, slug, name, description, spec, secrets, metadata, system, created_at,"
        " updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (identity, workspace, slug, name, description, spec, sealed, metadata, int(system), now, now),
    )
    return _row(db, identity, workspace=workspace)


def update_agent(
    db: apsw.Connection,
    *,
    id: str,
    workspace: int,
    slug: str,
    name: str,
    description: str,
    spec: bytes,
    metadata: str,
    now: int,
    sealed: bytes | None = None,
    system: bool = False,
) -> AgentRow:
    """Replaces a definition; `slug` "" keeps the present one. Runs and sessions keep what they began with."""
    row = _row(db, id, workspace=workspace)
    slug = slug or row.slug
    _check_slug(db, workspace=workspace, slug=slug, key=row.key)
    db.execute(
        "UPDATE agents SET slug = ?, name = ?, description = ?, spec = ?, secrets = ?, metadata = ?, system = ?,"
        " updated_at = ? WHERE key = ?",
        (slug, name, description, spec, sealed, metadata, int(system), now, row.key),
    )
    return _row(db, id, workspace=workspace)


def delete_agent(db: apsw.Connection, *, id: str, workspace: int) -> None:
    row = _row(db, id, workspace=workspace)
    db.execute("DELETE FROM agents WHERE key = ?", (row.key,))


def no_such_agent() -> NotFound:
    return NotFound("There is no such agent.")


def _row(db: apsw.Connection, id: str, *, workspace: int) -> AgentRow:
    row = by_id(db, id, workspace=workspace)
    if row is None:
        raise no_such_agent()
    return row


def _found(db: apsw.Connection, query: str, *values: int | str) -> AgentRow | None:
    row: Any = db.execute(query, values).fetchone()
    return AgentRow(*row) if row else None


def _free_slug(db: apsw.Connection, *, workspace: int, name: str) -> str:
    base = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:48].strip("-") or "agent"
    slug, number = base, 1
    while by_slug(db, slug, workspace=workspace) is not None:
        number += 1
        slug = f"{base}-{number}"
    return slug


def _check_slug(db: apsw.Connection, *, workspace: int, slug: str, key: int) -> None:
    if not SLUG.fullmatch(slug):
        raise InvalidRequest("slug: use 1 to 64 lowercase letters, digits and -, with no - at an end.")
    twin = by_slug(db, slug, workspace=workspace)
    if twin is not None and twin.key != key:
        raise Conflict(f"This workspace has an agent {slug!r} already: {twin.id}.")
