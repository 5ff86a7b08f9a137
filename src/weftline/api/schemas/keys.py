"""API keys as JSON: everything but the key itself, which is returned once, when it is created."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from weftline.store.records.keys import ApiKey
from weftline.wire.errors import error_code
from weftline.wire.responses import Time, iso


class NewKey(Struct, rename="camel"):
    """The body that creates a key."""

    name: str | None = None
    usage: str | None = None
    agent_ids: list[str] | None = None


class Key(Struct, rename="camel"):
    id: str
    workspace: str
    name: str
    prefix: str
    usage: str
    agent_ids: tuple[str, ...]
    created_at: Time
    revoked_at: Time | None
    error_code: str | UnsetType = UNSET
    """`log_damaged` if its stored data is unreadable, so that it does not work; left out otherwise."""


class CreatedKey(Key, rename="camel", kw_only=True):
    key: str


class Keys(Struct, rename="camel"):
    keys: list[Key]
    next_cursor: str | None


def key_json(key: ApiKey) -> Key:
    return Key(*_fields(key), error_code(key.damaged))


def created_key_json(key: ApiKey, secret: str) -> CreatedKey:
    return CreatedKey(*_fields(key), key=secret)


def _fields(key: ApiKey) -> tuple[str, str, str, str, str, tuple[str, ...], str, str | None]:
    return (
        key.id,
        key.slug,
        key.name,
        key.prefix,
        key.usage,
        key.agents,
        iso(key.created_at),
        None if key.revoked_at is None else iso(key.revoked_at),
    )
