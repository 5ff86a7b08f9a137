# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""People and their signed-in sessions: plain functions over a connection. Passwords arrive here as hashes."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

import apsw
from msgspec import Struct

from weftline.errors import Conflict, InvalidRequest, NotFound
from weftline.store.records import workspaces
from weftline.store.sqlite import oauth
from weftline.store.sqlite.accounts import workspace_key
from weftline.store.sqlite.database import run_query
from weftline.store.sqlite.hashing import Hasher, Minted, prefix_of

SESSION = "weft_us_"
_EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,190}")
_USER = "SELECT key, id, email, password, created_at FROM users"


class User(Struct):
    key: int
    id: str
    email: str
    password: str
    created_at: int


class Membership(Struct):
    workspace: int
    slug: str
    name: str
    oauth: bool
    """Whether the workspace has OAuth apps."""


def create_user(db: apsw.Connection, *, email: str, password: str, workspaces: Sequence[str], now: int) -> str:
    """Creates a user and returns the id. `password` is its argon2 hash; workspaces that are new are created."""
    address = _address(email)
    if _find(db, "email", address) is not None:
        raise Conflict(f"There is a user {address!r} already.")
    identity = f"usr_{secrets.token_hex(8)}"
    db.execute(
        "INSERT INTO users (id, email, password, created_at) VALUES (?, ?, ?, ?)", (identity, address, password, now)
    )
    user = db.last_insert_rowid()
    for slug in workspaces:
        _join(db, user, workspace_key(db, slug, now=now))
    return identity


def join_workspace(db: apsw.Connection, *, email: str, workspace: str, now: int) -> None:
    _join(db, show_user(db, email=email).key, workspace_key(db, workspace, now=now))


def leave_workspace(db: apsw.Connection, *, email: str, workspace: str) -> None:
    """Takes a user out of a workspace; what they allowed apps to do there ends."""
    user, key = show_user(db, email=email).key, run_query(db, workspaces.find(workspace))
    if key is None:
        raise NotFound(f"There is no workspace {workspace!r}.")
    db.execute("DELETE FROM memberships WHERE user = ? AND workspace = ?", (user, key))
    oauth.delete_grants_of(db, user=user, workspace=key)


def set_password(db: apsw.Connection, *, email: str, password: str) -> None:
    """Sets another password and signs the user out everywhere."""
    user = show_user(db, email=email)
    db.execute("UPDATE users SET password = ? WHERE key = ?", (password, user.key))
    db.execute("DELETE FROM user_sessions WHERE user = ?", (user.key,))


def delete_user(db: apsw.Connection, *, email: str) -> None:
    """Deletes a user with all sessions, grants and tokens."""
    user = show_user(db, email=email)
    oauth.delete_grants_of(db, user=user.key)
    for table in ("user_sessions", "memberships"):
        db.execute(f"DELETE FROM {table} WHERE user = ?", (user.key,))
    db.execute("DELETE FROM users WHERE key = ?", (user.key,))


def show_user(db: apsw.Connection, *, email: str) -> User:
    user = find_user(db, email)
    if user is None:
        raise NotFound(f"There is no user {email!r}.")
    return user


def find_user(db: apsw.Connection, email: str) -> User | None:
    return _find(db, "email", email.strip().lower())


def list_users(db: apsw.Connection, *, workspace: str | None = None) -> list[User]:
    rows = db.execute(
        f"{_USER} WHERE ?1 IS NULL OR key IN (SELECT m.user FROM memberships m"
        " JOIN workspaces w ON w.key = m.workspace WHERE w.slug = ?1) ORDER BY email",
        (workspace,),
    ).fetchall()
    return [_user(row) for row in rows]


def memberships(db: apsw.Connection, user: int) -> list[Membership]:
    rows = db.execute(
        "SELECT w.key, w.slug, w.name,"
        " NOT EXISTS (SELECT 1 FROM features_off f WHERE f.workspace = w.key AND f.feature = 'oauthApps')"
        " FROM memberships m JOIN workspaces w ON w.key = m.workspace WHERE m.user = ? ORDER BY w.slug",
        (user,),
    ).fetchall()
    return [_membership(row) for row in rows]


def sign_in(db: apsw.Connection, *, user: int, session: Minted, now: int, expires_at: int) -> None:
    db.execute("DELETE FROM user_sessions WHERE expires_at <= ?", (now,))
    db.execute(
        "INSERT INTO user_sessions (prefix, hash, user, expires_at) VALUES (?, ?, ?, ?)",
        (session.prefix, session.hash, user, expires_at),
    )


def sign_out(db: apsw.Connection, hasher: Hasher, secret: str) -> None:
    db.execute("DELETE FROM user_sessions WHERE hash = ?", (hasher.hash(secret),))


def signed_in(db: apsw.Connection, hasher: Hasher, secret: str, *, now: int) -> User | None:
    """Whose session this is, while it lasts."""
    rows: list[Any] = db.execute(
        "SELECT hash, user FROM user_sessions WHERE prefix = ? AND expires_at > ?", (prefix_of(secret, SESSION), now)
    ).fetchall()
    for stored, user in rows:
        if hasher.matches(secret, stored):
            return _find(db, "key", user)
    return None


def _join(db: apsw.Connection, user: int, workspace: int) -> None:
    db.execute("INSERT INTO memberships (user, workspace) VALUES (?, ?) ON CONFLICT DO NOTHING", (user, workspace))


def _address(email: str) -> str:
    address = email.strip().lower()
    if not _EMAIL.fullmatch(address):
        raise InvalidRequest(f"{email[:200]!r} is no e-mail address.")
    return address


def _find(db: apsw.Connection, column: str, value: str | int) -> User | None:
    row = db.execute(f"{_USER} WHERE {column} = ?", (value,)).fetchone()
    return _user(row) if row else None


def _user(row: Any) -> User:
    return User(*row)


def _membership(row: Any) -> Membership:
    return Membership(row[0], row[1], row[2], bool(row[3]))
