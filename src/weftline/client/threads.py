"""Threads: conversations that last, with an agent, values and variables."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec import Struct

from weftline.client.errors import warn_of
from weftline.client.http import Http
from weftline.client.results import Page, decoded

EnvType: TypeAlias = Literal["text", "secret"]


class Thread(Struct, frozen=True, rename="camel"):
    """A thread. `session_id` names it for `client.session`."""

    id: str
    session_id: str
    name: str = ""
    agent_id: str | None = None
    """The agent that speaks now."""
    user_id: str | None = None
    """Whose account's variables it has."""
    tags: tuple[str, ...] = ()
    status: str = "active"
    """`active`, or `terminated`."""
    created_at: datetime | None = None
    last_used_at: datetime | None = None
    terminated_at: datetime | None = None
    parent_id: str | None = None
    """The thread that created it."""
    depth: int = 0


class EnvValue(Struct, frozen=True, rename="camel"):
    """A variable. `value` is None for a secret, which nobody reads back."""

    name: str
    type: str
    updated_at: datetime | None = None
    value: str | None = None


class _Response(Struct):
    warnings: Any = None


class _Threads(Struct, rename="camel"):
    threads: tuple[Thread, ...]
    next_cursor: str | None = None


class _Value(Struct):
    key: str
    value: Any = None


class _Values(Struct):
    values: tuple[_Value, ...]


class _Env(Struct):
    env: tuple[EnvValue, ...]


class AsyncThreads:
    """The threads of a workspace: `client.threads`. A thread is named by either of its ids."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def create(
        self,
        agent_id: str,
        *,
        user_id: str | None = None,
        name: str = "",
        tags: Sequence[str] = (),
        values: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Thread:
        """Creates a thread of an agent.

        Args:
            user_id: Whose account's variables it has.
            values: Values that its tools find.
            env: Variables, which are secrets.
            idempotency_key: The same key returns the same thread.
        """
        given = {"agentId": agent_id, "userId": user_id, "name": name, "tags": list(tags), "values": values, "env": env}
        body = msgspec.json.encode({field: value for field, value in given.items() if value})
        # A key, so that a request can be sent again if its response got lost.
        key = idempotency_key or secrets.token_urlsafe(18)
        made = await self._http.call("POST", "/threads", body=body, idempotency_key=key)
        warn_of(decoded(made, _Response).warnings)
        return decoded(made, Thread)

    async def list(
        self,
        *,
        agent_id: str | None = None,
        user_id: str | None = None,
        tag: str | None = None,
        status: Literal["active", "terminated"] | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """Returns threads, newest first. `cursor` is the `next_cursor` of the previous page."""
        given = {"agentId": agent_id, "userId": user_id, "tag": tag, "status": status, "limit": limit, "cursor": cursor}
        query = [(field, str(value)) for field, value in given.items() if value is not None]
        page = decoded(await self._http.call("GET", "/threads", query=query), _Threads)
        return Page(page.threads, page.next_cursor)

    async def get(self, thread_id: str) -> Thread:
        return decoded(await self._http.call("GET", _path(thread_id)), Thread)

    async def delete(self, thread_id: str) -> None:
        """Terminates a thread: its runs are cancelled, and it takes nothing more. It can still be read."""
        await self._http.call("DELETE", _path(thread_id))

    async def values(self, thread_id: str) -> dict[str, Any]:
        """Returns all values of a thread, by key."""
        found = decoded(await self._http.call("GET", f"{_path(thread_id)}/values"), _Values)
        return {one.key: one.value for one in found.values}

    async def value(self, thread_id: str, key: str) -> Any:
        """Returns one value. Raises `NotFound` if there is none."""
        return decoded(await self._http.call("GET", _path(thread_id, "values", key)), _Value).value

    async def set_value(self, thread_id: str, key: str, value: Any) -> None:
        """Sets a value, any JSON; None removes it."""
        await self._http.call("PUT", _path(thread_id, "values", key), body=msgspec.json.encode({"value": value}))

    async def env(self, thread_id: str) -> tuple[EnvValue, ...]:
        """Returns the variables that were set for a thread itself, without the values of secrets."""
        return decoded(await self._http.call("GET", f"{_path(thread_id)}/env"), _Env).env

    async def set_env(self, thread_id: str, name: str, value: str, *, type: EnvType | None = None) -> EnvValue:
        """Sets a variable. Without a type it keeps the one it has; a new one is a secret."""
        body = msgspec.json.encode({"value": value} if type is None else {"value": value, "type": type})
        return decoded(await self._http.call("PUT", _path(thread_id, "env", name), body=body), EnvValue)

    async def delete_env(self, thread_id: str, name: str) -> None:
        await self._http.call("DELETE", _path(thread_id, "env", name))


def _path(thread_id: str, *below: str) -> str:
    return "/".join(["/threads", *[quote(one, safe="") for one in (thread_id, *below)]])
