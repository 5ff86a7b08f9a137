"""People, the workspaces they belong to, and their signed-in sessions. Passwords arrive here as hashes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from weftline.store.database import Query, Row, one, statement
from weftline.store.sealing import SecretHash

_USER = "SELECT u.key, u.id, u.email, u.password, u.created_at FROM users u"


class User(Struct, frozen=True):
    key: int
    id: str
    email: str
    password: str
    created_at: int


class Membership(Struct, frozen=True):
    workspace: int
    slug: str
    name: str
    oauth: bool
    """Whether OAuth apps are switched on for the workspace."""


def insert(*, id: str, email: str, password: str, now: int) -> Query[int | None]:
    """The new user's key, or None if the address is taken."""
    row = yield from one(
        "INSERT INTO users (id, email, password, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT (email) DO NOTHING"
        " RETURNING key",
        id,
        email,
        password,
        now,
    )
    return row[0] if row else None


def by_email(email: str) -> Query[User | None]:
    row = yield from one(f"{_USER} WHERE u.email = $1", email)
    return User(*row) if row else None


def by_id(id: str) -> Query[User | None]:
    row = yield from one(f"{_USER} WHERE u.id = $1", id)
    return User(*row) if row else None


def by_key(key: int) -> Query[User | None]:
    row = yield from one(f"{_USER} WHERE u.key = $1", key)
    return User(*row) if row else None


def all_users() -> Query[list[User]]:
    return _users((yield from statement(f"{_USER} ORDER BY u.email")))


def of_workspace(slug: str) -> Query[list[User]]:
    rows = yield from statement(
        f'{_USER} JOIN memberships m ON m."user" = u.key JOIN workspaces w ON w.key = m.workspace'
        " WHERE w.slug = $1 ORDER BY u.email",
        slug,
    )
    return _users(rows)


def set_password(key: int, password: str) -> Query[None]:
    yield from statement("UPDATE users SET password = $1 WHERE key = $2", password, key)


def delete(key: int) -> Query[None]:
    """Deletes a user with all sessions and memberships. Grants and codes must be deleted first."""
    yield from end_sessions(key)
    yield from statement('DELETE FROM memberships WHERE "user" = $1', key)
    yield from statement("DELETE FROM users WHERE key = $1", key)


# Memberships


def join(user: int, workspace: int) -> Query[None]:
    yield from statement(
        'INSERT INTO memberships ("user", workspace) VALUES ($1, $2) ON CONFLICT ("user", workspace) DO NOTHING',
        user,
        workspace,
    )


def leave(user: int, workspace: int) -> Query[None]:
    yield from statement('DELETE FROM memberships WHERE "user" = $1 AND workspace = $2', user, workspace)


def memberships(user: int) -> Query[list[Membership]]:
    rows = yield from statement(
        "SELECT w.key, w.slug, w.name,"
        " NOT EXISTS (SELECT 1 FROM features_off f WHERE f.workspace = w.key AND f.feature = 'oauth_apps')"
        ' FROM memberships m JOIN workspaces w ON w.key = m.workspace WHERE m."user" = $1 ORDER BY w.slug',
        user,
    )
    return [Membership(key, slug, name, bool(oauth)) for key, slug, name, oauth in rows]


def workspace_name(workspace: int) -> Query[str | None]:
    row = yield from one("SELECT name FROM workspaces WHERE key = $1", workspace)
    return row[0] if row else None


# Sessions


def start_session(user: int, *, secret: SecretHash, now: int, expires_at: int) -> Query[None]:
    yield from statement("DELETE FROM user_sessions WHERE expires_at <= $1", now)
    yield from statement(
        'INSERT INTO user_sessions (prefix, hash, "user", expires_at) VALUES ($1, $2, $3, $4)',
        secret.prefix,
        secret.hash,
        user,
        expires_at,
    )


def by_session(secret: SecretHash, *, now: int) -> Query[User | None]:
    """The user of this session, if it has not expired."""
    rows = yield from statement(
        'SELECT hash, "user" FROM user_sessions WHERE prefix = $1 AND expires_at > $2', secret.prefix, now
    )
    for stored, user in rows:
        if secret.matches(stored):
            return (yield from by_key(user))
    return None


def end_session(secret: SecretHash) -> Query[None]:
    yield from statement("DELETE FROM user_sessions WHERE prefix = $1 AND hash = $2", secret.prefix, secret.hash)


def end_sessions(user: int) -> Query[None]:
    yield from statement('DELETE FROM user_sessions WHERE "user" = $1', user)


def _users(rows: Sequence[Row]) -> list[User]:
    return [User(*row) for row in rows]
