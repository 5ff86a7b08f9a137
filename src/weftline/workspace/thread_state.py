"""What a thread keeps besides its messages: values, and environment values of the thread, its account and workspace."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, cast

from msgspec.json import decode

from weftline.errors import QuotaExceeded, invalid_field
from weftline.store.database import Query
from weftline.store.records import thread_state
from weftline.store.records.thread_state import EnvRow, EnvType, of_thread
from weftline.store.records.threads import ThreadRow
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.workspace import threads
from weftline.workspace.context import Workspaces

MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024 * 1024
MAX_VALUES = 10_000
MAX_VALUES_BYTES = 64 * 1024 * 1024
MAX_ENV = 1_000
MAX_ENV_BYTES = 64 * 1024


async def value_of(at: Workspaces, thread: int, key: str) -> Any:
    """The value under this key; None if there is none."""
    stored = await at.records.read(thread_state.value(thread, key))
    return None if stored is None else decode(stored)


async def set_value(at: Workspaces, thread: int, key: str, value: Any) -> bytes | None:
    """Sets a value, or removes it if it is None; returns the JSON that is stored."""
    checked_key(key)
    data = None if value is None else value_json(key, value)

    def query() -> Query[None]:
        yield from threads.open_row(thread)
        yield from put_value(thread, key, data)

    await at.records.write(query())
    return data


def put_value(thread: int, key: str, data: bytes | None) -> Query[None]:
    """Stores a value that was checked. Raises `QuotaExceeded`."""
    if data is None:
        yield from thread_state.delete_value(thread, key)
        return
    size = yield from thread_state.size_of_values(thread, without=key)
    if size.number >= MAX_VALUES:
        raise QuotaExceeded(f"A thread keeps at most {MAX_VALUES:,} values.", limit="values", max=MAX_VALUES)
    if size.bytes + len(key) + len(data) > MAX_VALUES_BYTES:
        raise QuotaExceeded(
            f"The values of a thread have at most {MAX_VALUES_BYTES:,} bytes.", limit="values", max=MAX_VALUES_BYTES
        )
    yield from thread_state.set_value(thread, key, data)


def checked_key(key: str) -> str:
    if not key or len(key.encode()) > MAX_KEY_BYTES:
        raise invalid_field("key", f"must have 1 to {MAX_KEY_BYTES} bytes.")
    return key


def value_json(key: str, value: Any) -> bytes:
    """Returns the JSON of a value.

    Raises `InvalidRequest` for what JSON does not have, `QuotaExceeded` for too much.
    """
    try:
        data = canonical_value(value)
    except NotCanonical as error:
        raise invalid_field("value", f"the value of {key!r} is not JSON: {error}.") from None
    if len(data) > MAX_VALUE_BYTES:
        raise QuotaExceeded(f"A value has at most {MAX_VALUE_BYTES:,} bytes.", limit="value", max=MAX_VALUE_BYTES)
    return data


def json_problem(value: object, path: str = "value", above: tuple[int, ...] = ()) -> str:
    """Returns which part of a value JSON does not have, with its path, or "" if it has all of it."""
    if id(value) in above:
        return f"{path} contains itself"
    inside = (*above, id(value))
    if isinstance(value, dict):
        for key, one in cast("dict[object, object]", value).items():
            if not isinstance(key, str):
                return f"{path} has a key that is no string: {key!r}"
            if problem := json_problem(one, f"{path}.{key}", inside):
                return problem
        return ""
    if isinstance(value, list | tuple):
        items = enumerate(cast("Sequence[object]", value))
        return next((found for index, one in items if (found := json_problem(one, f"{path}[{index}]", inside))), "")
    if isinstance(value, float) and not isfinite(value):
        return f"{path} is {value}"
    if value is None or isinstance(value, str | int | float):
        return ""
    return f"{path} is of the type {type(value).__name__}"


async def set_thread_env(
    at: Workspaces, thread: ThreadRow, name: str, value: str, *, type: EnvType | None = None
) -> None:
    """Sets an environment value of a thread. Without a type it keeps the one it has, or becomes a secret."""
    query = put_env(at, thread.workspace, of_thread(thread.key), name, value, type=type)

    def checked() -> Query[None]:
        yield from threads.open_row(thread.key)
        yield from query

    await at.records.write(checked())


def put_env(
    at: Workspaces, workspace: int, owner: str, name: str, value: str, *, type: EnvType | None = None
) -> Query[None]:
    """Stores an environment value. Checks it at once, before the query is run."""
    checked_name(name)
    if len(value.encode()) > MAX_ENV_BYTES:
        raise QuotaExceeded(
            f"An environment value has at most {MAX_ENV_BYTES:,} bytes.", limit="env", max=MAX_ENV_BYTES
        )
    sealed = at.vault.seal(value.encode(), place=_place(workspace, owner, name))

    def query() -> Query[None]:
        present = yield from thread_state.env(owner, name, workspace=workspace)
        if (yield from thread_state.count_env(owner, workspace=workspace, without=name)) >= MAX_ENV:
            raise QuotaExceeded(f"There are at most {MAX_ENV:,} environment values.", limit="env", max=MAX_ENV)
        kind = type or ("secret" if present is None else present.type)
        yield from thread_state.set_env(owner, name, kind, sealed, workspace=workspace, now=at.clock.now_us())

    return query()


def copy_state(at: Workspaces, origin: ThreadRow, to: ThreadRow) -> Query[None]:
    """Copies the values and the text variables of a thread; its secrets stay with it."""
    yield from thread_state.copy_values(origin.key, to.key)
    for row in (yield from thread_state.env_of(of_thread(origin.key), workspace=origin.workspace)):
        if row.type == "text":
            value = opened(at, origin.workspace, row)
            yield from put_env(at, to.workspace, of_thread(to.key), row.name, value, type="text")


def checked_name(name: str) -> str:
    if not name or len(name.encode()) > MAX_KEY_BYTES or "=" in name or not name.isprintable():
        raise invalid_field("name", f"must have 1 to {MAX_KEY_BYTES} bytes, without = and control characters.")
    return name


def opened(at: Workspaces, workspace: int, row: EnvRow) -> str:
    """The plain value. Raises `StoreError` if its key is lost."""
    return at.vault.open(row.sealed, place=_place(workspace, row.owner, row.name)).decode()


def _place(workspace: int, owner: str, name: str) -> str:
    return f"env:{workspace}:{owner}:{name}"
