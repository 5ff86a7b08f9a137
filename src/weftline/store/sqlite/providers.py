# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The model providers that a workspace brought: plain functions over a connection; writing runs inside the writer.

Keys are sealed before they are written and opened only to build a provider.
"""

from __future__ import annotations

import secrets
from typing import Any

import apsw
from msgspec import Struct, json

from weftline.errors import Conflict, NotFound
from weftline.store.secrets import Vault
from weftline.store.sqlite.tools import vault_of

ID_PREFIX = "prov_"
_COLUMNS = "key, id, workspace, name, spec, secrets, version, created_at, updated_at"


class ProviderRow(Struct):
    """A stored provider; `secrets` are sealed."""

    key: int
    id: str
    workspace: int
    name: str
    spec: bytes
    secrets: bytes | None
    version: int
    created_at: int
    updated_at: int


class ProviderSecrets(Struct, frozen=True, omit_defaults=True):
    api_key: str | None = None
    headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return "ProviderSecrets(…)"


_decode_secrets = json.Decoder(ProviderSecrets).decode


def of_workspace(db: apsw.Connection, workspace: int) -> list[ProviderRow]:
    rows = db.execute(f"SELECT {_COLUMNS} FROM providers WHERE workspace = ? ORDER BY key", (workspace,)).fetchall()
    return [_row(row) for row in rows]


def by_id(db: apsw.Connection, id: str, *, workspace: int) -> ProviderRow | None:
    """The provider with this id or, since it is unique in its workspace too, with this name."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM providers WHERE workspace = ? AND (id = ? OR name = ?) ORDER BY id = ? DESC LIMIT 1",
        (workspace, id, id, id),
    ).fetchone()
    return None if row is None else _row(row)


def create_provider(
    db: apsw.Connection, *, workspace: int, name: str, spec: bytes, values: ProviderSecrets, now: int
) -> ProviderRow:
    """Raises `Conflict` when the workspace has a provider of that name."""
    _refuse_twin(db, workspace=workspace, name=name, key=0)
    identity = ID_PREFIX + secrets.token_hex(12)
    db.execute(
        "INSERT INTO providers (id, workspace, name, spec, secrets, version, created_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?, 1, ?, ?)",
        (identity, workspace, name, spec, seal(vault_of(db), values, provider=identity), now, now),
    )
    return known(db, identity, workspace=workspace)


def update_provider(
    db: apsw.Connection, *, row: ProviderRow, name: str, spec: bytes, values: ProviderSecrets, now: int
) -> ProviderRow:
    """Replaces everything but the id."""
    _refuse_twin(db, workspace=row.workspace, name=name, key=row.key)
    db.execute(
        "UPDATE providers SET name = ?, spec = ?, secrets = ?, version = version + 1, updated_at = ? WHERE key = ?",
        (name, spec, seal(vault_of(db), values, provider=row.id), now, row.key),
    )
    return known(db, row.id, workspace=row.workspace)


def delete_provider(db: apsw.Connection, *, id: str, workspace: int) -> str:
    """Removes a provider and returns its id. Calls under way end; later ones of the same runs find no model."""
    row = known(db, id, workspace=workspace)
    db.execute("DELETE FROM providers WHERE key = ?", (row.key,))
    return row.id


def known(db: apsw.Connection, id: str, *, workspace: int) -> ProviderRow:
    row = by_id(db, id, workspace=workspace)
    if row is None:
        raise no_such_provider()
    return row


def no_such_provider() -> NotFound:
    return NotFound("There is no such provider.")


def seal(vault: Vault, values: ProviderSecrets, *, provider: str) -> bytes | None:
    if values.api_key is None and not values.headers:
        return None
    return vault.seal(json.encode(values), place=_place(provider))


def open_secrets(vault: Vault, row: ProviderRow) -> ProviderSecrets:
    """Raises `StoreError` when they were sealed under another key."""
    if row.secrets is None:
        return ProviderSecrets()
    return _decode_secrets(vault.open(row.secrets, place=_place(row.id)))


def _place(provider: str) -> str:
    return f"provider:{provider}"


def _refuse_twin(db: apsw.Connection, *, workspace: int, name: str, key: int) -> None:
    twin = db.execute(
        "SELECT id FROM providers WHERE workspace = ? AND name = ? AND key != ?", (workspace, name, key)
    ).fetchone()
    if twin is not None:
        raise Conflict(f"This workspace has a provider named {name!r} already: {twin[0]}.")


def _row(row: Any) -> ProviderRow:
    return ProviderRow(*row)
