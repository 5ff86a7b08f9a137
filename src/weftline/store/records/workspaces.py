"""Workspaces, and the features that are switched off for them."""

from __future__ import annotations

from weftline.store.database import Query, one, statement


def ensure(slug: str, *, now: int) -> Query[int]:
    """Returns the workspace's key, creating the workspace if it is new."""
    key = yield from find(slug)
    if key is None:
        yield from statement(
            "INSERT INTO workspaces (slug, name, created_at) VALUES ($1, $1, $2) ON CONFLICT (slug) DO NOTHING",
            slug,
            now,
        )
        key = yield from find(slug)
    assert key is not None
    return key


def find(slug: str) -> Query[int | None]:
    row = yield from one("SELECT key FROM workspaces WHERE slug = $1", slug)
    return None if row is None else row[0]


def slug_of(key: int) -> Query[str | None]:
    row = yield from one("SELECT slug FROM workspaces WHERE key = $1", key)
    return None if row is None else row[0]


def slugs() -> Query[list[str]]:
    """The slugs of all workspaces, in alphabetical order."""
    rows = yield from statement("SELECT slug FROM workspaces ORDER BY slug")
    return [row[0] for row in rows]


def features_off(key: int) -> Query[set[str]]:
    rows = yield from statement("SELECT feature FROM features_off WHERE workspace = $1", key)
    return {row[0] for row in rows}


def switch_on(key: int, feature: str) -> Query[None]:
    yield from statement("DELETE FROM features_off WHERE workspace = $1 AND feature = $2", key, feature)


def switch_off(key: int, feature: str) -> Query[None]:
    yield from statement(
        "INSERT INTO features_off (workspace, feature) VALUES ($1, $2) ON CONFLICT DO NOTHING", key, feature
    )
