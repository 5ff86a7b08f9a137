"""OAuth codes, grants and tokens.

Ended rows are deleted, not marked: a token that is not in its table is not valid. Only a code is kept until it expires,
so that its second use can be detected.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.json import decode, encode

from weftline.store.database import Query, Row, one, statement
from weftline.store.records import apps
from weftline.store.sealing import SecretHash

_TOKEN = (
    "SELECT t.key, t.hash, a.client_id, g.id, t.workspace, w.slug, u.id, u.email, t.scopes, t.agents,"
    " t.created_at, t.expires_at, t.resource,"
    " EXISTS (SELECT 1 FROM features_off f WHERE f.workspace = t.workspace AND f.feature = 'oauth_apps')"
    " FROM oauth_tokens t JOIN oauth_apps a ON a.key = t.app JOIN workspaces w ON w.key = t.workspace"
    ' LEFT JOIN oauth_grants g ON g.key = t.grant_key LEFT JOIN users u ON u.key = g."user"'
)
_GRANT = (
    "SELECT g.key, g.id, g.hash, a.client_id, a.name, u.id, u.email, g.workspace, w.slug, g.scopes, g.agents,"
    ' g.created_at, g.resource FROM oauth_grants g JOIN oauth_apps a ON a.key = g.app JOIN users u ON u.key = g."user"'
    " JOIN workspaces w ON w.key = g.workspace"
)


class NewCode(Struct, frozen=True):
    """A user's consent, on its way to the app."""

    app: int
    user: int
    workspace: int
    scopes: tuple[str, ...]
    agents: tuple[str, ...]
    redirect_uri: str
    challenge: str
    resource: str
    """The path that its tokens are for; empty for the whole server."""
    expires_at: int


class Code(NewCode, frozen=True):
    key: int
    spent_on: int | None
    """The grant that it was exchanged for."""


class Token(Struct, frozen=True):
    """An access token. `grant`, `user` and `email` are None if an app acts for itself."""

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
    resource: str
    gated: bool
    """Whether OAuth apps are switched off for the workspace."""


class NewToken(Struct, frozen=True):
    secret: SecretHash
    scopes: tuple[str, ...]
    resource: str
    created_at: int
    expires_at: int


class Grant(Struct, frozen=True):
    """A user's permission for an app, with the hash of its refresh token."""

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
    resource: str


def spend(nonce: str, *, expires_at: int, now: int) -> Query[bool]:
    """Uses up a one-time token; False if it was used before."""
    yield from statement("DELETE FROM oauth_spent WHERE expires_at <= $1", now)
    row = yield from one(
        "INSERT INTO oauth_spent (nonce, expires_at) VALUES ($1, $2) ON CONFLICT (nonce) DO NOTHING RETURNING nonce",
        nonce,
        expires_at,
    )
    return row is not None


# Codes


def insert_code(new: NewCode, *, secret: SecretHash, now: int) -> Query[None]:
    yield from statement("DELETE FROM oauth_codes WHERE expires_at <= $1", now)
    yield from statement(
        'INSERT INTO oauth_codes (prefix, hash, app, "user", workspace, scopes, agents, redirect_uri, challenge,'
        " resource, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        secret.prefix,
        secret.hash,
        new.app,
        new.user,
        new.workspace,
        " ".join(new.scopes),
        encode(new.agents).decode(),
        new.redirect_uri,
        new.challenge,
        new.resource,
        new.expires_at,
    )


def take_code(secret: SecretHash, *, app: int) -> Query[Code | None]:
    """Finds a code and locks it until the transaction ends, so that of two concurrent exchanges one sees the other's
    mark.
    """
    rows = yield from statement(
        "UPDATE oauth_codes SET prefix = prefix WHERE prefix = $1 AND app = $2"
        ' RETURNING hash, app, "user", workspace, scopes, agents, redirect_uri, challenge, resource, expires_at, key,'
        " spent_on",
        secret.prefix,
        app,
    )
    for row in rows:
        if secret.matches(row[0]):
            return _code(row)
    return None


def mark_code_spent(key: int, *, grant: int) -> Query[None]:
    yield from statement("UPDATE oauth_codes SET spent_on = $1 WHERE key = $2", grant, key)


# Grants


def insert_grant(code: Code, *, id: str, refresh: SecretHash, now: int) -> Query[int]:
    """Creates a grant from the user's code and returns its key."""
    row = yield from one(
        'INSERT INTO oauth_grants (id, prefix, hash, app, "user", workspace, scopes, agents, created_at, resource)'
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING key",
        id,
        refresh.prefix,
        refresh.hash,
        code.app,
        code.user,
        code.workspace,
        " ".join(code.scopes),
        encode(code.agents).decode(),
        now,
        code.resource,
    )
    assert row is not None
    return row[0]


def find_grant(refresh: SecretHash) -> Query[Grant | None]:
    """The grant with this refresh token."""
    rows = yield from statement(f"{_GRANT} WHERE g.prefix = $1", refresh.prefix)
    return next((_grant(row) for row in rows if refresh.matches(row[2])), None)


def find_spent(refresh: SecretHash) -> Query[int | None]:
    """The key of the grant that had this refresh token before the current one."""
    rows = yield from statement("SELECT key, spent_hash FROM oauth_grants WHERE spent_prefix = $1", refresh.prefix)
    return next((row[0] for row in rows if refresh.matches(row[1])), None)


def rotate(key: int, *, old: SecretHash, new: SecretHash) -> Query[bool]:
    """Gives a grant a new refresh token; False if it has ended, or has been rotated already."""
    row = yield from one(
        "UPDATE oauth_grants SET prefix = $1, hash = $2, spent_prefix = prefix, spent_hash = hash"
        " WHERE key = $3 AND hash = $4 RETURNING key",
        new.prefix,
        new.hash,
        key,
        old.hash,
    )
    return row is not None


def grant_by_id(id: str) -> Query[Grant | None]:
    row = yield from one(f"{_GRANT} WHERE g.id = $1", id)
    return _grant(row) if row else None


def grants_of(user: int) -> Query[list[Grant]]:
    rows = yield from statement(f"{_GRANT} WHERE u.key = $1 ORDER BY g.key", user)
    return [_grant(row) for row in rows]


def end_grant(key: int) -> Query[None]:
    """Deletes a grant with all its tokens: the grant first, so that no further tokens are issued."""
    yield from statement("DELETE FROM oauth_grants WHERE key = $1", key)
    yield from statement("DELETE FROM oauth_tokens WHERE grant_key = $1", key)


def end_grants_of(user: int, *, workspace: int | None = None) -> Query[None]:
    """Ends what a user has allowed, in one workspace or in all: codes first, because they turn into grants."""
    where, values = '"user" = $1', (user,)
    if workspace is not None:
        where, values = f"{where} AND workspace = $2", (user, workspace)
    yield from statement(f"DELETE FROM oauth_codes WHERE {where}", *values)
    for (key,) in (yield from statement(f"DELETE FROM oauth_grants WHERE {where} RETURNING key", *values)):
        yield from statement("DELETE FROM oauth_tokens WHERE grant_key = $1", key)


# Tokens


def add_grant_token(grant: int, token: NewToken) -> Query[bool]:
    """Gives a grant another access token; False if the grant has ended."""
    row = yield from one("UPDATE oauth_grants SET id = id WHERE key = $1 RETURNING app, workspace, agents", grant)
    if row is None:
        return False
    app, workspace, agents = row
    yield from _insert_token(token, app=app, grant=grant, workspace=workspace, agents=agents)
    return True


def add_app_token(app: int, token: NewToken) -> Query[bool]:
    """Gives an app its own access token for its owner's workspace; False if the app has been deleted."""
    workspace = yield from apps.lock(app)
    if workspace is None:
        return False
    yield from _insert_token(token, app=app, grant=None, workspace=workspace, agents="[]")
    return True


def find_token(secret: SecretHash) -> Query[Token | None]:
    """The access token, even if it has expired."""
    rows = yield from statement(f"{_TOKEN} WHERE t.prefix = $1", secret.prefix)
    return next((_token(row) for row in rows if secret.matches(row[1])), None)


def delete_token(key: int) -> Query[None]:
    yield from statement("DELETE FROM oauth_tokens WHERE key = $1", key)


def _insert_token(new: NewToken, *, app: int, grant: int | None, workspace: int, agents: str) -> Query[None]:
    # Every new token deletes some expired ones, so that the table stays small.
    yield from statement(
        "DELETE FROM oauth_tokens WHERE key IN"
        " (SELECT key FROM oauth_tokens WHERE expires_at <= $1 ORDER BY expires_at LIMIT 50)",
        new.created_at,
    )
    yield from statement(
        "INSERT INTO oauth_tokens (prefix, hash, app, grant_key, workspace, scopes, agents, created_at, expires_at,"
        " resource) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        new.secret.prefix,
        new.secret.hash,
        app,
        grant,
        workspace,
        " ".join(new.scopes),
        agents,
        new.created_at,
        new.expires_at,
        new.resource,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _list(text: str) -> tuple[str, ...]:
    return tuple(decode(text, type=list[str]))


def _code(row: Row) -> Code:
    _, app, user, workspace, scopes, agents, *rest = row
    fields: Row = (app, user, workspace, _words(scopes), _list(agents), *rest)
    return Code(*fields)


def _token(row: Row) -> Token:
    *columns, scopes, agents, created_at, expires_at, resource, gated = row
    fields: Row = (*columns, _words(scopes), _list(agents), created_at, expires_at, resource, bool(gated))
    return Token(*fields)


def _grant(row: Row) -> Grant:
    *columns, scopes, agents, created_at, resource = row
    fields: Row = (*columns, _words(scopes), _list(agents), created_at, resource)
    return Grant(*fields)
