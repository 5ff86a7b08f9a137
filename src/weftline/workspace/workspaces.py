"""Workspaces and the features they have."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, get_args

from weftline.errors import InvalidRequest, NotFound
from weftline.store.database import Query
from weftline.store.records import workspaces
from weftline.workspace.context import Change, Workspaces

Feature: TypeAlias = Literal["api_keys", "oauth_apps"]
FEATURES: tuple[Feature, ...] = get_args(Feature)
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?")


async def ensure(at: Workspaces, slug: str) -> int:
    """Returns the workspace's key, creating the workspace if it is new."""
    return await at.records.write(ensured(slug, now=at.clock.now_us()))


async def find(at: Workspaces, slug: str) -> int:
    """The workspace's key. Raises `NotFound`."""
    return await at.records.read(existing(slug))


async def slugs(at: Workspaces) -> list[str]:
    return await at.records.read(workspaces.slugs())


async def slug_of(at: Workspaces, workspace: int) -> str | None:
    return await at.records.read(workspaces.slug_of(workspace))


async def features(at: Workspaces, slug: str) -> dict[Feature, bool]:
    """Every feature, and whether it is on."""
    return await at.records.read(_read_features(slug))


async def set_feature(at: Workspaces, slug: str, feature: Feature, *, on: bool) -> dict[Feature, bool]:
    """Switches a feature and returns all of them."""

    def switch() -> Query[dict[Feature, bool]]:
        key = yield from existing(slug)
        yield from workspaces.switch_on(key, feature) if on else workspaces.switch_off(key, feature)
        return (yield from _read_features(slug))

    switched = await at.records.write(switch())
    await at.changed(Change("credentials"))
    return switched


def is_slug(text: str) -> bool:
    """Returns True if a workspace may have this slug."""
    return _SLUG.fullmatch(text) is not None


def ensured(slug: str, *, now: int) -> Query[int]:
    """`ensure` as part of a larger transaction."""
    if not is_slug(slug):
        raise InvalidRequest(
            f"{slug!r} is not a workspace slug: use 1 to 64 lowercase letters, digits, - and _,"
            " beginning and ending with a letter or digit."
        )
    return (yield from workspaces.ensure(slug, now=now))


def existing(slug: str) -> Query[int]:
    """`find` as part of a larger transaction."""
    key = yield from workspaces.find(slug)
    if key is None:
        raise NotFound(f"There is no workspace {slug!r}.")
    return key


def _read_features(slug: str) -> Query[dict[Feature, bool]]:
    key = yield from existing(slug)
    off = yield from workspaces.features_off(key)
    return {feature: feature not in off for feature in FEATURES}
