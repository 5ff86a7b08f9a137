"""Registered OAuth apps."""

from __future__ import annotations

from msgspec import Struct
from msgspec.json import encode

from weftline.store.database import Columns, Query, Row, one, statement
from weftline.store.records import pages
from weftline.store.sealing import SecretHash

VISIBILITIES = ("private", "public")
_APP = (
    "SELECT a.key, a.client_id, a.workspace, COALESCE(w.slug, ''), a.hash, a.name, a.description, a.logo, a.visibility,"
    " a.redirect_uris, a.scopes, a.client_credentials, a.created_at, a.public, a.registered, a.made_by"
    " FROM oauth_apps a LEFT JOIN workspaces w ON w.key = a.workspace"
)


class StoredApp(Struct, frozen=True):
    """A registered client, without its secret."""

    key: int
    client_id: str
    workspace: int | None
    """None for a client that registered itself."""
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
    public: bool
    """Whether it has no secret, because it could not keep one."""
    registered: bool
    """Whether it registered itself."""
    made_by: str = ""
    """The person whose app it counts as; empty if an operator created it. See `weftline.workspace.people`."""


class NewApp(Struct, frozen=True):
    name: str
    description: str
    logo: str
    visibility: str
    redirect_uris: tuple[str, ...]
    scopes: tuple[str, ...]
    client_credentials: bool
    public: bool = False
    registered: bool = False


def insert(
    new: NewApp, *, client_id: str, workspace: int | None, secret: SecretHash, now: int, made_by: str = ""
) -> Query[None]:
    yield from statement(
        "INSERT INTO oauth_apps (client_id, workspace, prefix, hash, name, description, logo, visibility,"
        " redirect_uris, scopes, client_credentials, created_at, public, registered, made_by)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
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
        int(new.public),
        int(new.registered),
        made_by,
    )


def by_client_id(client_id: str) -> Query[StoredApp | None]:
    row = yield from one(f"{_APP} WHERE a.client_id = $1", client_id)
    return _app(row) if row else None


def of_workspace(slug: str) -> Query[list[StoredApp]]:
    rows = yield from statement(f"{_APP} WHERE w.slug = $1 ORDER BY a.key", slug)
    return [_app(row) for row in rows]


def count(workspace: int) -> Query[int]:
    return pages.count("oauth_apps", workspace=workspace)


def registered() -> Query[list[StoredApp]]:
    """The clients that registered themselves."""
    rows = yield from statement(f"{_APP} WHERE a.registered = 1 ORDER BY a.key")
    return [_app(row) for row in rows]


def expired(*, unused_before: int, idle_before: int) -> Query[list[int]]:
    """The keys of some clients that registered themselves and were never used, or not for a long time and have no
    grant.
    """
    rows = yield from statement(
        "SELECT a.key FROM oauth_apps a WHERE a.registered = 1"
        " AND ((a.used_at IS NULL AND a.created_at <= $1) OR (a.used_at <= $2"
        " AND NOT EXISTS (SELECT 1 FROM oauth_grants g WHERE g.app = a.key))) ORDER BY a.created_at LIMIT 50",
        unused_before,
        idle_before,
    )
    return [row[0] for row in rows]


def unused() -> Query[tuple[int, int, int]]:
    """Returns the number of clients that registered themselves and were never used, the key of the oldest, and when it
    registered.
    """
    row = yield from one("SELECT COUNT(*) FROM oauth_apps WHERE registered = 1 AND used_at IS NULL")
    oldest = yield from one(
        "SELECT key, created_at FROM oauth_apps WHERE registered = 1 AND used_at IS NULL"
        " ORDER BY created_at, key LIMIT 1"
    )
    assert row is not None
    key, created_at = oldest or (0, 0)
    return row[0], key, created_at


def describe(key: int, *, name: str, redirect_uris: tuple[str, ...]) -> Query[None]:
    """Updates a client that is described by its own document."""
    uris = encode(redirect_uris).decode()
    yield from statement("UPDATE oauth_apps SET name = $1, redirect_uris = $2 WHERE key = $3", name, uris, key)


def use(key: int, *, now: int) -> Query[bool]:
    """Records that a user has approved an app; False if it has been deleted."""
    row = yield from one("UPDATE oauth_apps SET used_at = $1 WHERE key = $2 RETURNING key", now, key)
    return row is not None


def lock(key: int) -> Query[int | None]:
    """Locks an app until the transaction ends, and returns its workspace; None if it has been deleted.

    Both databases lock a row that is written, and no other kind of locking has the same syntax in both.
    """
    row = yield from one("UPDATE oauth_apps SET name = name WHERE key = $1 RETURNING workspace", key)
    return row[0] if row else None


def delete(key: int) -> Query[None]:
    """Deletes an app and everything issued to it: codes first, because they turn into grants."""
    yield from lock(key)
    yield from statement("DELETE FROM oauth_codes WHERE app = $1", key)
    yield from statement("DELETE FROM oauth_grants WHERE app = $1", key)
    yield from statement("DELETE FROM oauth_tokens WHERE app = $1", key)
    yield from statement("DELETE FROM oauth_apps WHERE key = $1", key)


def _app(row: Row) -> StoredApp:
    key, client_id, workspace, slug, hash, name, description, logo, visibility, *more = row
    redirect_uris, scopes, client_credentials, created_at, public, registered, made_by = more
    read = Columns()
    return StoredApp(
        key,
        client_id,
        workspace,
        slug,
        hash,
        read.text("name", name),
        read.text("description", description),
        read.text("logo", logo),
        read.one_of("visibility", visibility, VISIBILITIES),
        read.texts("redirect_uris", redirect_uris),
        tuple(read.text("scopes", scopes).split()),
        bool(client_credentials),
        read.time("created_at", created_at),
        bool(public),
        bool(registered),
        read.text("made_by", made_by),
    )
