# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Writing a workspace's stored tools: plain functions over a connection, run inside the writer."""

from __future__ import annotations

import secrets
from pathlib import Path

import apsw

from weftline.errors import Conflict, NotFound
from weftline.store.secrets import Vault
from weftline.store.sqlite.reads import Reader, ToolRow

ID_PREFIX = "tool_"


def create_tool(
    db: apsw.Connection, *, workspace: int, name: str, kind: str, spec: bytes, values: dict[str, str], now: int
) -> ToolRow:
    """Creates a tool; `values` are its secrets by name, which are stored sealed.

    Raises:
        Conflict: when the workspace has a tool of that name.
    """
    _refuse_twin(db, workspace=workspace, name=name, key=0)
    identity = ID_PREFIX + secrets.token_hex(12)
    sealed = vault_of(db).seal_values(values, tool=identity)
    db.execute(
        "INSERT INTO tools (id, workspace, name, kind, spec, secrets, created_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (identity, workspace, name, kind, spec, sealed, now, now),
    )
    return _row(db, identity, workspace=workspace)


def update_tool(
    db: apsw.Connection,
    *,
    id: str,
    workspace: int,
    name: str,
    spec: bytes,
    values: dict[str, str | None],
    now: int,
) -> ToolRow:
    """Replaces a tool's name and spec. `values` are secrets to set, or with None to remove; the others stay."""
    row = _row(db, id, workspace=workspace)
    _refuse_twin(db, workspace=workspace, name=name, key=row.key)
    sealed = row.secrets
    if values:
        vault = vault_of(db)
        merged = {**vault.open_values(sealed, tool=id), **values}
        sealed = vault.seal_values({key: value for key, value in merged.items() if value is not None}, tool=id)
    db.execute(
        "UPDATE tools SET name = ?, spec = ?, secrets = ?, updated_at = ? WHERE key = ?",
        (name, spec, sealed, now, row.key),
    )
    return _row(db, id, workspace=workspace)


def delete_tool(db: apsw.Connection, *, id: str, workspace: int) -> None:
    """Removes a tool; runs that have it under way keep it until they are next taken up."""
    row = _row(db, id, workspace=workspace)
    db.execute("DELETE FROM tools WHERE key = ?", (row.key,))


def vault_of(db: apsw.Connection) -> Vault:
    """The vault of the store that a connection writes."""
    return Vault(Path(db.filename).parent)


def no_such_tool() -> NotFound:
    return NotFound("There is no such tool.")


def _row(db: apsw.Connection, id: str, *, workspace: int) -> ToolRow:
    row = Reader(db).tool(id, workspace=workspace)
    if row is None:
        raise no_such_tool()
    return row


def _refuse_twin(db: apsw.Connection, *, workspace: int, name: str, key: int) -> None:
    twin = db.execute(
        "SELECT id FROM tools WHERE workspace = ? AND name = ? AND key != ?", (workspace, name, key)
    ).fetchone()
    if twin is not None:
        raise Conflict(f"This workspace has a tool named {name!r} already: {twin[0]}.")
