# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""OAuth apps, codes, grants and tokens: plain functions over a connection.

Whatever ends is deleted, not marked: a token that is not in its table is no token. Only a code stays until it expires,
so that its second use can be told from a first.
"""

from __future__ import annotations

import secrets
from typing import Any

import apsw
from msgspec import Struct
from msgspec.json import decode, encode

from weftline.errors import NotFound
from weftline.store.sqlite.hashing import Hasher, Minted, prefix_of

CLIENT = "mantyx_oa_"
CLIENT_SECRET = "mantyx_oas_"
ACCESS = "mantyx_at_"
REFRESH = "mantyx_rt_"
CODE = "mantyx_ac_"

_APP = (
    "SELECT a.key, a.client_id, a.workspace, w.slug, a.hash, a.name, a.description, a.logo, a.visibility,"
    " a.redirect_uris, a.scopes, a.client_credentials, a.created_at"
    " FROM oauth_apps a JOIN workspaces w ON w.key = a.workspace"
)
_TOKEN = (
    "SELECT t.key, t.hash, a.client_id, g.id, t.workspace, w.slug, u.id, u.email, t.scopes, t.agents,"
    " t.created_at, t.expires_at,"
    " EXISTS (SELECT 1 FROM features_off f WHERE f.workspace = t.workspace AND f.feature = 'oauthApps')"
    " FROM oauth_tokens t JOIN oauth_apps a ON a.key = t.app JOIN workspaces w ON w.key = t.workspace"
    " LEFT JOIN oauth_grants g ON g.key = t.grant_key LEFT JOIN users u ON u.key = g.user"
)
_GRANT = (
    "SELECT g.key, g.id, g.hash, a.client_id, a.name, u.id, u.email, g.workspace, w.slug, g.scopes, g.agents,"
    " g.created_at FROM oauth_grants g JOIN oauth_apps a ON a.key = g.app JOIN users u ON u.key = g.user"
    " JOIN workspaces w ON w.key = g.workspace"
)


class App(Struct):
    """A registered client, without its secret."""

    key: int
    client_id: str
    workspace: int
    slug: str
    hash: bytes
    name: str
    description: str
    logo: str
    visibility: str
    redirect_uris: tuple[str, ...]
    scopes: tuple[str, ...]
    client_credentials: bool
    created_at: int


class Token(Struct):
    """An access token. `grant`, `user` and `email` are None when an app acts for itself."""

    key: int
    hash: bytes
    client_id: str
    grant: str | None
    workspace: int
    slug: str
    user: str | None
    email: str | None
    scopes: tuple[str, ...]
    agents: tuple[str, ...]
    created_at: int
    expires_at: int
    gated: bool


class Grant(Struct):
    """What a user allowed an app, and its refresh token's hash."""

    key: int
    id: str
    hash: bytes
    client_id: str
    app_name: str
    user: str
    email: str
    workspace: int
    slug: str
    scopes: tuple[str, ...]
    agents: tuple[str, ...]
    created_at: int


class NewApp(Struct, frozen=True):
    name: str
    description: str
    logo: str
    visibility: str
    redirect_uris: tuple[str, ...]
    scopes: tuple[str, ...]
    client_credentials: bool


class NewCode(Struct, frozen=True):
    """A user's consent, on its way to the app."""

    app: int
    user: int
    workspace: int
    scopes: tuple[str, ...]
    agents: tuple[str, ...]
    redirect_uri: str
    challenge: str
    expires_at: int


def create_app(db: apsw.Connection, new: NewApp, *, workspace: int, secret: Minted, now: int) -> App:
    client_id = CLIENT + secrets.token_hex(10)
    db.execute(
        "INSERT INTO oauth_apps (client_id, workspace, prefix, hash, name, description, logo, visibility,"
        " redirect_uris, scopes, client_credentials, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            client_id,
            workspace,
            secret.prefix,
            secret.hash,
            new.name,
            new.description,
            new.logo,
            new.visibility,
            encode(new.redirect_uris).decode(),
            " ".join(new.scopes),
            int(new.client_credentials),
            now,
        ),
    )
    return show_app(db, client_id)


def find_app(db: apsw.Connection, client_id: str) -> App | None:
    row = db.execute(f"{_APP} WHERE a.client_id = ?", (client_id,)).fetchone()
    return _app(row) if row else None


def show_app(db: apsw.Connection, client_id: str, *, workspace: str | None = None) -> App:
    app = find_app(db, client_id)
    if app is None or workspace not in (None, app.slug):
        raise NotFound("There is no such OAuth app.")
    return app


def list_apps(db: apsw.Connection, *, workspace: str) -> list[App]:
    return [_app(row) for row in db.execute(f"{_APP} WHERE w.slug = ? ORDER BY a.key", (workspace,)).fetchall()]


def delete_app(db: apsw.Connection, client_id: str, *, workspace: str | None = None) -> App:
    """Deletes an app and everything that was given to it."""
    app = show_app(db, client_id, workspace=workspace)
    for table in ("oauth_tokens", "oauth_codes", "oauth_grants"):
        db.execute(f"DELETE FROM {table} WHERE app = ?", (app.key,))
    db.execute("DELETE FROM oauth_apps WHERE key = ?", (app.key,))
    return app


def spend(db: apsw.Connection, nonce: str, *, expires_at: int, now: int) -> bool:
    """Uses a one-time token up; False when it was used before."""
    db.execute("DELETE FROM oauth_spent WHERE expires_at <= ?", (now,))
    db.execute("INSERT INTO oauth_spent (nonce, expires_at) VALUES (?, ?) ON CONFLICT DO NOTHING", (nonce, expires_at))
    return db.changes() == 1


def create_code(db: apsw.Connection, new: NewCode, *, code: Minted, now: int) -> None:
    db.execute("DELETE FROM oauth_codes WHERE expires_at <= ?", (now,))
    db.execute(
        "INSERT INTO oauth_codes (prefix, hash, app, user, workspace, scopes, agents, redirect_uri, challenge,"
        " expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            code.prefix,
            code.hash,
            new.app,
            new.user,
            new.workspace,
            " ".join(new.scopes),
            encode(new.agents).decode(),
            new.redirect_uri,
            new.challenge,
            new.expires_at,
        ),
    )


def redeem_code(
    db: apsw.Connection,
    hasher: Hasher,
    code: str,
    *,
    app: int,
    redirect_uri: str,
    challenge: str,
    refresh: Minted,
    access: Minted,
    now: int,
    expires_at: int,
) -> tuple[str, ...] | None:
    """Turns a code into a grant with its first access token; returns the scopes, or None when it is not to be.

    A code that comes a second time has leaked: what it was exchanged for ends too.
    """
    rows = db.execute(
        "SELECT key, hash, user, workspace, scopes, agents, redirect_uri, challenge, expires_at, spent_on"
        " FROM oauth_codes WHERE prefix = ? AND app = ?",
        (prefix_of(code, CODE), app),
    ).fetchall()
    found: Any = next((row for row in rows if _is(hasher, code, row[1])), None)
    if found is None or found[8] <= now:
        return None
    if found[9] is not None:
        end_grant(db, found[9])
        return None
    if found[6] != redirect_uri or found[7] != challenge:
        return None
    db.execute(
        "INSERT INTO oauth_grants (id, prefix, hash, app, user, workspace, scopes, agents, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (f"grant_{secrets.token_hex(8)}", refresh.prefix, refresh.hash, app, found[2], found[3], *found[4:6], now),
    )
    grant = db.last_insert_rowid()
    db.execute("UPDATE oauth_codes SET spent_on = ? WHERE key = ?", (grant, found[0]))
    add_grant_token(db, grant, access=access, scopes=_words(found[4]), now=now, expires_at=expires_at)
    return _words(found[4])


def add_grant_token(
    db: apsw.Connection, grant: int, *, access: Minted, scopes: tuple[str, ...], now: int, expires_at: int
) -> bool:
    """Gives a grant a further access token; False when the grant has ended meanwhile."""
    _sweep(db, now)
    db.execute(
        "INSERT INTO oauth_tokens (prefix, hash, app, grant_key, workspace, scopes, agents, created_at, expires_at)"
        " SELECT ?, ?, app, key, workspace, ?, agents, ?, ? FROM oauth_grants WHERE key = ?",
        (access.prefix, access.hash, " ".join(scopes), now, expires_at, grant),
    )
    return db.changes() == 1


def add_app_token(
    db: apsw.Connection, app: int, *, access: Minted, scopes: tuple[str, ...], now: int, expires_at: int
) -> bool:
    """Gives an app an access token of its own, for its owner's workspace; False when the app has been deleted."""
    _sweep(db, now)
    db.execute(
        "INSERT INTO oauth_tokens (prefix, hash, app, grant_key, workspace, scopes, agents, created_at, expires_at)"
        " SELECT ?, ?, key, NULL, workspace, ?, '[]', ?, ? FROM oauth_apps WHERE key = ? AND client_credentials",
        (access.prefix, access.hash, " ".join(scopes), now, expires_at, app),
    )
    return db.changes() == 1


def find_token(db: apsw.Connection, hasher: Hasher, secret: str) -> Token | None:
    """The access token, also when it has expired."""
    rows = db.execute(f"{_TOKEN} WHERE t.prefix = ?", (prefix_of(secret, ACCESS),)).fetchall()
    return next((_token(row) for row in rows if _is(hasher, secret, row[1])), None)


def find_grant(db: apsw.Connection, hasher: Hasher, secret: str) -> Grant | None:
    """The grant that a refresh token stands for."""
    rows = db.execute(f"{_GRANT} WHERE g.prefix = ?", (prefix_of(secret, REFRESH),)).fetchall()
    return next((_grant(row) for row in rows if _is(hasher, secret, row[2])), None)


def list_grants(db: apsw.Connection, *, user: str) -> list[Grant]:
    return [_grant(row) for row in db.execute(f"{_GRANT} WHERE u.id = ? ORDER BY g.key", (user,)).fetchall()]


def delete_grant(db: apsw.Connection, id: str, *, user: str | None = None) -> None:
    """Ends a grant with all its tokens."""
    row = db.execute(f"{_GRANT} WHERE g.id = ? AND u.id = coalesce(?, u.id)", (id, user)).fetchone()
    if row is None:
        raise NotFound("There is no such grant.")
    end_grant(db, row[0])


def workspace_name(db: apsw.Connection, key: int) -> str:
    row = db.execute("SELECT name FROM workspaces WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row else ""


def end_grant(db: apsw.Connection, key: Any) -> None:
    db.execute("DELETE FROM oauth_tokens WHERE grant_key = ?", (key,))
    db.execute("DELETE FROM oauth_grants WHERE key = ?", (key,))


def delete_token(db: apsw.Connection, key: int) -> None:
    db.execute("DELETE FROM oauth_tokens WHERE key = ?", (key,))


def delete_grants_of(db: apsw.Connection, *, user: int, workspace: int | None = None) -> None:
    """Ends everything that a user allowed, in one workspace or in all."""
    where, values = "user = ? AND workspace = coalesce(?, workspace)", (user, workspace)
    for (grant,) in db.execute(f"SELECT key FROM oauth_grants WHERE {where}", values).fetchall():
        end_grant(db, grant)
    db.execute(f"DELETE FROM oauth_codes WHERE {where}", values)


def _sweep(db: apsw.Connection, now: int) -> None:
    """Some of what has expired goes with every new token, so that the table does not grow for ever."""
    db.execute(
        "DELETE FROM oauth_tokens WHERE key IN"
        " (SELECT key FROM oauth_tokens WHERE expires_at <= ? ORDER BY expires_at LIMIT 50)",
        (now,),
    )


def _is(hasher: Hasher, secret: str, stored: Any) -> bool:
    return hasher.matches(secret, stored)


def _words(text: Any) -> tuple[str, ...]:
    return tuple(text.split())


def _list(text: Any) -> tuple[str, ...]:
    return tuple(decode(text, type=list[str]))


def _app(row: Any) -> App:
    fields: list[Any] = [*row[:9], _list(row[9]), _words(row[10]), bool(row[11]), row[12]]
    return App(*fields)


def _token(row: Any) -> Token:
    fields: list[Any] = [*row[:8], _words(row[8]), _list(row[9]), row[10], row[11], bool(row[12])]
    return Token(*fields)


def _grant(row: Any) -> Grant:
    fields: list[Any] = [*row[:9], _words(row[9]), _list(row[10]), row[11]]
    return Grant(*fields)
