"""The logins of workspaces at the MCP servers that they use."""

from __future__ import annotations

from msgspec import Struct

from weftline.store.database import Query, one, statement

_LOGIN = "SELECT key, workspace, digest, url, secrets, created_at, updated_at FROM mcp_logins"


class LoginRow(Struct, frozen=True):
    key: int
    workspace: int
    digest: str
    """Digest of the server's whole address."""
    url: str
    """The address without secrets, for display."""
    secrets: bytes
    """Encrypted JSON of `weftline.tools.mcp.login.Login`."""
    created_at: int
    updated_at: int


def find(digest: str, *, workspace: int) -> Query[LoginRow | None]:
    row = yield from one(f"{_LOGIN} WHERE digest = $1 AND workspace = $2", digest, workspace)
    return LoginRow(*row) if row else None


def of_workspace(workspace: int) -> Query[list[LoginRow]]:
    rows = yield from statement(f"{_LOGIN} WHERE workspace = $1 ORDER BY key", workspace)
    return [LoginRow(*row) for row in rows]


def save(digest: str, *, workspace: int, url: str, secrets: bytes, now: int) -> Query[None]:
    """Stores a login, replacing any other of the workspace at this server."""
    yield from statement(
        "INSERT INTO mcp_logins (workspace, digest, url, secrets, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $5)"
        " ON CONFLICT (workspace, digest) DO UPDATE SET url = $3, secrets = $4, updated_at = $5",
        workspace,
        digest,
        url,
        secrets,
        now,
    )


def renew(key: int, *, old: bytes, secrets: bytes, now: int) -> Query[bool]:
    """Replaces the encrypted tokens; False if the login has been deleted or replaced in the meantime."""
    row = yield from one(
        "UPDATE mcp_logins SET secrets = $1, updated_at = $2 WHERE key = $3 AND secrets = $4 RETURNING key",
        secrets,
        now,
        key,
        old,
    )
    return row is not None


def delete(digest: str, *, workspace: int) -> Query[bool]:
    row = yield from one("DELETE FROM mcp_logins WHERE digest = $1 AND workspace = $2 RETURNING key", digest, workspace)
    return row is not None
