"""Administration of keys: the operations, which answer in JSON's own types."""

from __future__ import annotations

from typing import Any

import apsw

from weftline.store.sqlite import keys
from weftline.wire.responses import iso


def shown_key(key: keys.ApiKey) -> dict[str, Any]:
    """A key as the outside sees it: never its secret."""
    return {
        "id": key.id,
        "workspace": key.slug,
        "name": key.name,
        "prefix": key.prefix,
        "usage": key.usage,
        "agentIds": key.agents,
        "createdAt": iso(key.created_at),
        "revokedAt": None if key.revoked_at is None else iso(key.revoked_at),
    }


def list_keys(db: apsw.Connection, *, workspace: str, revoked: bool = False) -> list[dict[str, Any]]:
    keys.known_workspace(db, workspace)
    return [shown_key(key) for key in keys.list_api_keys(db, workspace=workspace, revoked=revoked)]


def show_key(db: apsw.Connection, *, id: str) -> dict[str, Any]:
    return shown_key(keys.show_api_key(db, id=id))


def delete_key(db: apsw.Connection, *, id: str, now: int) -> dict[str, Any]:
    return shown_key(keys.revoke_api_key(db, id=id, now=now))
