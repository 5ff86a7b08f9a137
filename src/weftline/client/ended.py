"""The calls and approvals of runs, and forks of runs that have ended."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from weftline.client.http import Http
from weftline.client.results import LoggedCall, Page, decoded


class GrantUse(Struct, frozen=True, rename="camel"):
    """A call that began with a grant."""

    call_id: str = field(name="toolUseId")
    at: datetime


class LoggedGrant(Struct, frozen=True, rename="camel"):
    """One approval of a call, from the server's log."""

    run_id: str
    await_id: str
    call_id: str = field(name="toolUseId")
    name: str
    args: dict[str, Any]
    """The exact arguments that were approved."""
    digest: str
    by: str
    at: datetime
    expires_at: datetime
    by_name: str | None = None
    """The approver's current display name: the name of the key or app, or the user's address."""
    kind: str = "confirm"
    """Or `doubt`: the approval to repeat a call that a crash interrupted."""
    edited: bool = False
    shown_args: dict[str, Any] = {}
    """The arguments that the approver saw."""
    shown_digest: str = ""
    remember: bool | dict[str, Any] = False
    """Which later calls it covers."""
    labels: dict[str, str] = {}
    used: tuple[GrantUse, ...] = ()
    """The calls that began with it."""


class _Grants(Struct):
    grants: tuple[LoggedGrant, ...]


class _Calls(Struct, rename="camel"):
    calls: tuple[LoggedCall, ...]
    next_cursor: str | None = None


class _Forked(Struct, rename="camel"):
    run_id: str


async def calls(http: Http, path: str, query: Sequence[tuple[str, str]]) -> Page[LoggedCall]:
    page = decoded(await http.call("GET", path, query=query), _Calls)
    return Page(page.calls, page.next_cursor)


async def grants(http: Http, run_id: str) -> tuple[LoggedGrant, ...]:
    return decoded(await http.call("GET", f"{run_path(run_id)}/grants"), _Grants).grants


async def fork(http: Http, run_id: str, changes: Mapping[str, Any]) -> str:
    body = msgspec.json.encode(changes)
    # A key, so that a fork can be requested again if its response got lost.
    sent = await http.call("POST", f"{run_path(run_id)}/fork", body=body, idempotency_key=secrets.token_urlsafe(18))
    return decoded(sent, _Forked).run_id


def run_path(run_id: str) -> str:
    return f"/agent-runs/{quote(run_id, safe='')}"
