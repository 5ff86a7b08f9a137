"""What threads keep besides messages: values, and environment values, which accounts and workspaces have as well."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from weftline.store import crashpoints
from weftline.store.database import Query, one, statement

EnvType: TypeAlias = Literal["text", "secret"]
WORKSPACE = "workspace"
"""The owner of environment values that all threads of a workspace have."""


class EnvRow(Struct, frozen=True):
    owner: str
    name: str
    type: EnvType
    sealed: bytes
    """Encrypted for the place `env:<owner>:<name>`."""
    updated_at: int


class Size(Struct, frozen=True):
    number: int
    bytes: int


def of_thread(thread: int) -> str:
    """The owner of a thread's own environment values."""
    return f"thread:{thread}"


def of_account(user: str) -> str:
    return f"account:{user}"


def value(thread: int, key: str) -> Query[bytes | None]:
    row = yield from one("SELECT value FROM thread_values WHERE thread = $1 AND key = $2", thread, key)
    return None if row is None else row[0]


def values(thread: int, *, after: str, limit: int) -> Query[list[tuple[str, bytes]]]:
    """In the order of their keys."""
    rows = yield from statement(
        "SELECT key, value FROM thread_values WHERE thread = $1 AND key > $2 ORDER BY key LIMIT $3",
        thread,
        after,
        limit,
    )
    return [(row[0], row[1]) for row in rows]


def size_of_values(thread: int, *, without: str) -> Query[Size]:
    """The number and size of all values but this one."""
    row = yield from one(
        "SELECT count(*), coalesce(sum(length(key) + length(value)), 0) FROM thread_values"
        " WHERE thread = $1 AND key <> $2",
        thread,
        without,
    )
    assert row is not None
    return Size(*row)


def set_value(thread: int, key: str, value: bytes) -> Query[None]:
    crashpoints.hit(("value.set",), "before")
    yield from statement(
        "INSERT INTO thread_values (thread, key, value) VALUES ($1, $2, $3)"
        " ON CONFLICT (thread, key) DO UPDATE SET value = $3",
        thread,
        key,
        value,
    )


def copy_values(thread: int, to: int) -> Query[None]:
    yield from statement(
        "INSERT INTO thread_values (thread, key, value) SELECT $1, key, value FROM thread_values WHERE thread = $2",
        to,
        thread,
    )


def delete_value(thread: int, key: str) -> Query[bool]:
    row = yield from one("DELETE FROM thread_values WHERE thread = $1 AND key = $2 RETURNING key", thread, key)
    return row is not None


def env_of(owner: str, *, workspace: int) -> Query[list[EnvRow]]:
    rows = yield from statement(f"{_ENV} WHERE workspace = $1 AND owner = $2 ORDER BY name", workspace, owner)
    return [EnvRow(*row) for row in rows]


def env(owner: str, name: str, *, workspace: int) -> Query[EnvRow | None]:
    row = yield from one(f"{_ENV} WHERE workspace = $1 AND owner = $2 AND name = $3", workspace, owner, name)
    return None if row is None else EnvRow(*row)


def count_env(owner: str, *, workspace: int, without: str) -> Query[int]:
    """The number of all of them but this one."""
    row = yield from one(
        "SELECT count(*) FROM env_values WHERE workspace = $1 AND owner = $2 AND name <> $3", workspace, owner, without
    )
    return 0 if row is None else row[0]


def set_env(owner: str, name: str, type: EnvType, sealed: bytes, *, workspace: int, now: int) -> Query[None]:
    crashpoints.hit(("env.set",), "before")
    yield from statement(
        "INSERT INTO env_values (workspace, owner, name, type, sealed, updated_at) VALUES ($1, $2, $3, $4, $5, $6)"
        " ON CONFLICT (workspace, owner, name) DO UPDATE SET type = $4, sealed = $5, updated_at = $6",
        workspace,
        owner,
        name,
        type,
        sealed,
        now,
    )


def delete_env(owner: str, name: str, *, workspace: int) -> Query[bool]:
    row = yield from one(
        "DELETE FROM env_values WHERE workspace = $1 AND owner = $2 AND name = $3 RETURNING name",
        workspace,
        owner,
        name,
    )
    return row is not None


_ENV = "SELECT owner, name, type, sealed, updated_at FROM env_values"
