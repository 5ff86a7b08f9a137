"""The calls and approvals of runs, at a server or in a store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from weftline.cli.admin import administer, listed
from weftline.cli.ended_runs import completed
from weftline.cli.run_lookup import ServerRuns
from weftline.cli.target import connected

_PAGE = "200"


def find_calls(run_id: str | None, *, url: str | None, workspace: str | None, db: Path) -> list[dict[str, Any]]:
    """Returns the calls of a run, or without one those in doubt, with arguments and results."""
    if url is not None:
        return asyncio.run(_at_server(run_id, url, workspace))
    if run_id is not None:
        run = asyncio.run(completed(run_id, workspace, db))
        return [*listed(db, "calls.list", run=run, workspace=workspace)]
    slugs = [workspace] if workspace is not None else administer(db, "workspaces.list")
    found: list[dict[str, Any]] = []
    for slug in slugs:
        before: int | None = None
        while True:
            page = administer(db, "calls.in_doubt", workspace=slug, before=before)
            found += page["items"]
            before = page["after"]
            if before is None:
                break
    return found


def find_grants(run_id: str, *, url: str | None, workspace: str | None, db: Path) -> list[dict[str, Any]]:
    if url is None:
        return administer(db, "grants.list", run=asyncio.run(completed(run_id, workspace, db)), workspace=workspace)
    return asyncio.run(_grants_at_server(run_id, url, workspace))


async def _grants_at_server(run_id: str, url: str, workspace: str | None) -> list[dict[str, Any]]:
    async with connected(url, workspace) as client:
        path = f"/agent-runs/{quote(await ServerRuns(client).complete(run_id), safe='')}/grants"
        return json.loads(await client.http.call("GET", path))["grants"]


async def _at_server(run_id: str | None, url: str, workspace: str | None) -> list[dict[str, Any]]:
    async with connected(url, workspace) as client:
        path = "/calls"
        if run_id is not None:
            path = f"/agent-runs/{quote(await ServerRuns(client).complete(run_id), safe='')}/calls"
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            query = [("limit", _PAGE), ("contents", "true"), *([] if cursor is None else [("cursor", cursor)])]
            page = json.loads(await client.http.call("GET", path, query=query))
            found += page["calls"]
            cursor = page["nextCursor"]
            if cursor is None:
                return found
