"""Open questions to people, at a server or in a store that a server has open."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from weftline.cli.admin import administer
from weftline.cli.run_lookup import LocalRuns, ServerRuns
from weftline.cli.target import connected
from weftline.client import AsyncClient
from weftline.errors import InvalidRequest, NotFound
from weftline.store import open_for_reading

_PAGE = "200"


def open_awaits(
    url: str | None, workspace: str | None, db: Path, filters: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    """Returns the open awaits. Each has a `ref`, by which the commands that answer identify it."""
    at_server = url is not None
    found = asyncio.run(_at_server(url, workspace, filters)) if at_server else _in_store(workspace, db, filters)
    return [{"ref": f"{one['runId']}/{one['id']}", **one} for one in found]


def _in_store(workspace: str | None, db: Path, filters: Mapping[str, str | None]) -> list[dict[str, Any]]:
    if (run := filters.get("run")) is not None:
        filters = {**filters, "run": asyncio.run(_completed(run, workspace, db))}
    slugs = [workspace] if workspace is not None else administer(db, "workspaces.list")
    found: list[dict[str, Any]] = []
    for slug in slugs:
        after: list[Any] | None = None
        while True:
            page = administer(db, "awaits.list", workspace=slug, after=after, **filters)
            found += page["items"]
            after = page["after"]
            if after is None:
                break
    return found


async def _completed(run: str, workspace: str | None, db: Path) -> str:
    store = open_for_reading(db)
    try:
        return await LocalRuns(store, workspace=workspace).complete(run)
    finally:
        await store.close()


async def _at_server(url: str, workspace: str | None, filters: Mapping[str, str | None]) -> list[dict[str, Any]]:
    async with connected(url, workspace) as client:
        if (run := filters.get("run")) is not None:
            filters = {**filters, "run": await ServerRuns(client).complete(run)}
        return await _asked(client, filters)


async def _asked(client: AsyncClient, filters: Mapping[str, str | None]) -> list[dict[str, Any]]:
    names = {"run": "runId", "agent": "agentId"}
    query = [(names.get(name, name), value) for name, value in filters.items() if value is not None]
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        more = [] if cursor is None else [("cursor", cursor)]
        page = json.loads(await client.http.call("GET", "/awaits", query=[*query, ("limit", _PAGE), *more]))
        found += page["awaits"]
        cursor = page["nextCursor"]
        if cursor is None:
            return found


def answer(ref: str, body: dict[str, Any], *, url: str | None, workspace: str | None, db: Path) -> dict[str, Any]:
    """Answers an await. `ref` is from the list, or a run that asks only one thing."""
    if url is not None:
        return asyncio.run(_answer_at_server(ref, body, url, workspace))
    run, _, id = ref.partition("/")
    if not id:
        run, id = _only(_in_store(workspace, db, {"run": run}), ref)
    else:
        run = asyncio.run(_completed(run, workspace, db))
    return administer(db, "awaits.answer", run=run, id=id, body=body, workspace=workspace)


async def _answer_at_server(ref: str, body: dict[str, Any], url: str, workspace: str | None) -> dict[str, Any]:
    async with connected(url, workspace) as client:
        start, _, id = ref.partition("/")
        run = await ServerRuns(client).complete(start)
        if not id:
            run, id = _only(await _asked(client, {"run": run}), ref)
        path = f"/agent-runs/{quote(run, safe='')}/awaits/{quote(id, safe='')}"
        sent = json.dumps(body).encode()
        return json.loads(await client.http.call("POST", path, body=sent, idempotency_key=secrets.token_urlsafe(18)))


def _only(found: list[dict[str, Any]], ref: str) -> tuple[str, str]:
    if not found:
        raise NotFound(f"{ref} has no open questions.")
    if len(found) > 1:
        refs = ", ".join(f"{one['runId']}/{one['id']}" for one in found[:5])
        raise InvalidRequest(f"{ref} has several open questions; name one of {refs}.")
    return found[0]["runId"], found[0]["id"]
