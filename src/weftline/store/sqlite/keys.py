# apsw's stubs name a type that Python 3.11 does not have.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""API keys and the features that a workspace has: plain functions over a connection."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import Any

import apsw
from msgspec import Struct
from msgspec.json import decode, encode

from weftline.errors import InvalidRequest, NotFound
from weftline.store import crashpoints
from weftline.store.sqlite.accounts import workspace_key

KEY_PREFIX = "weft_"
USAGES = ("developer_api", "mcp", "a2a")
FEATURES = ("apiKeys", "oauthApps")
NAME_LIMIT = 256
_AGENT = re.compile(r"[A-Za-z0-9_-]{1,128}")
_AGENTS_LIMIT = 1000

_KEY = (
    "SELECT k.id, k.workspace, w.slug, k.name, k.prefix, k.usage, k.agents, k.created_at, k.revoked_at,"
    " EXISTS (SELECT 1 FROM features_off f WHERE f.workspace = k.workspace AND f.feature = 'apiKeys')"
    " FROM api_keys k JOIN workspaces w ON w.key = k.workspace"
)


class ApiKey(Struct):
    """A key without its secret. `gated` says that its workspace's plan has no API keys."""

    id: str
    workspace: int
    slug: str
    name: str
    prefix: str
    usage: str
    agents: tuple[str, ...]
    created_at: int
    revoked_at: int | None
    gated: bool = False


def hash_secret(secret: str) -> bytes:
    """Keys are long and random, so a plain hash is enough to find and to protect them."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def create_api_key(
    db: apsw.Connection,
    *,
    workspace: str,
    now: int,
    name: str = "",
    usage: str = "developer_api",
    agents: Sequence[str] = (),
) -> tuple[str, str]:
    """Creates a key and returns its id and the secret, which is told this once and stored nowhere."""
    if usage not in USAGES:
        raise InvalidRequest(f"usage: {usage!r} is none; there are {', '.join(USAGES)}.")
    if len(name) > NAME_LIMIT:
        raise InvalidRequest(f"name: may have {NAME_LIMIT} characters.")
    listed = checked_agents(agents)
    crashpoints.hit(("key.created",), "before")
    key = workspace_key(db, workspace, now=now)
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    identity = "key_" + secrets.token_hex(8)
    db.execute(
        "INSERT INTO api_keys (id, workspace, hash, prefix, name, usage, agents, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            identity,
            key,
            hash_secret(secret),
            secret[: len(KEY_PREFIX) + 4],
            name,
            usage,
            encode(listed).decode(),
            now,
        ),
    )
    return identity, secret


def import_api_key(db: apsw.Connection, *, workspace: str, secret: str, now: int, name: str = "") -> str:
    """Takes over a key that clients hold already; returns its id. Its length is all that protects it."""
    if not 20 <= len(secret) <= 512 or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise InvalidRequest("secret: must have 20 to 512 printable ASCII characters without blanks.")
    if secret.startswith("mantyx_at_"):
        raise InvalidRequest("secret: the prefix mantyx_at_ marks OAuth access tokens.")
    key = workspace_key(db, workspace, now=now)
    hashed = hash_secret(secret)
    if find_api_key(db, hashed) is not None:
        raise InvalidRequest("secret: is a key of this store already.")
    identity = "key_" + secrets.token_hex(8)
    db.execute(
        "INSERT INTO api_keys (id, workspace, hash, prefix, name, usage, agents, created_at)"
        " VALUES (?, ?, ?, ?, ?, 'developer_api', '[]', ?)",
        (identity, key, hashed, secret[:8], name, now),
    )
    return identity


def checked_agents(agents: Sequence[str]) -> list[str]:
    """An allow-list without doubles, in the order given."""
    listed = list(dict.fromkeys(agents))
    if len(listed) > _AGENTS_LIMIT:
        raise InvalidRequest(f"agents: at most {_AGENTS_LIMIT}.")
    for agent in listed:
        if not _AGENT.fullmatch(agent):
            raise InvalidRequest(f"agents: {agent[:200]!r} is no agent id.")
    return listed


def find_api_key(db: apsw.Connection, hashed: bytes) -> ApiKey | None:
    row = db.execute(f"{_KEY} WHERE k.hash = ?", (hashed,)).fetchone()
    return _key(row) if row else None


def list_api_keys(db: apsw.Connection, *, workspace: str, revoked: bool = False) -> list[ApiKey]:
    """The workspace's keys, oldest first; with `revoked` those too that no longer work."""
    rows = db.execute(
        f"{_KEY} WHERE w.slug = ? AND (? OR k.revoked_at IS NULL) ORDER BY k.key", (workspace, revoked)
    ).fetchall()
    return [_key(row) for row in rows]


def show_api_key(db: apsw.Connection, *, id: str, workspace: str | None = None) -> ApiKey:
    row = db.execute(f"{_KEY} WHERE k.id = ? AND w.slug = coalesce(?, w.slug)", (id, workspace)).fetchone()
    if row is None:
        raise NotFound("There is no such API key.")
    return _key(row)


def revoke_api_key(db: apsw.Connection, *, id: str, now: int, workspace: str | None = None) -> ApiKey:
    """Ends a key for good; ending it again changes nothing."""
    show_api_key(db, id=id, workspace=workspace)
    db.execute("UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?", (now, id))
    return show_api_key(db, id=id)


def set_feature(db: apsw.Connection, *, workspace: str, feature: str, on: bool) -> dict[str, bool]:
    """Switches a feature of a workspace and returns all of them."""
    if feature not in FEATURES:
        raise InvalidRequest(f"{feature!r} is no feature; there are {', '.join(FEATURES)}.")
    key = known_workspace(db, workspace)
    if on:
        db.execute("DELETE FROM features_off WHERE workspace = ? AND feature = ?", (key, feature))
    else:
        db.execute("INSERT INTO features_off (workspace, feature) VALUES (?, ?) ON CONFLICT DO NOTHING", (key, feature))
    return features(db, workspace=workspace)


def features(db: apsw.Connection, *, workspace: str) -> dict[str, bool]:
    key = known_workspace(db, workspace)
    off = {row[0] for row in db.execute("SELECT feature FROM features_off WHERE workspace = ?", (key,)).fetchall()}
    return {feature: feature not in off for feature in FEATURES}


def list_workspaces(db: apsw.Connection) -> list[str]:
    return [str(row[0]) for row in db.execute("SELECT slug FROM workspaces ORDER BY slug").fetchall()]


def known_workspace(db: apsw.Connection, slug: str) -> int:
    row = db.execute("SELECT key FROM workspaces WHERE slug = ?", (slug,)).fetchone()
    if row is None:
        raise NotFound(f"There is no workspace {slug!r}.")
    assert isinstance(row[0], int)
    return row[0]


def _key(row: Any) -> ApiKey:
    found = ApiKey(*row)
    found.agents = tuple(decode(row[6], type=list[str]))
    found.gated = bool(row[9])
    return found
