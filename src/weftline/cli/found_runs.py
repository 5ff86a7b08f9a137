"""Runs as the commands see them, wherever they are: JSON of the protocol, and events of the client."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, Protocol
from urllib.parse import quote

from msgspec import Struct
from msgspec.json import decode, encode

from weftline.cli.events import stored_events
from weftline.client import AsyncClient
from weftline.client.events import Event
from weftline.errors import InvalidRequest, NotFound
from weftline.runtime import ids
from weftline.runtime.clock import SystemClock
from weftline.runtime.names import StoredNames
from weftline.server.views import run_view
from weftline.store.base import ReadStore, RunFilter, RunRow, Stored
from weftline.wire.responses import listed_run, snapshot
from weftline.workspace import workspaces
from weftline.workspace.context import Workspaces

_PAGE = 200


class Wanted(Struct, frozen=True, kw_only=True):
    """Which runs to list."""

    limit: int
    status: str | None = None
    agent: str | None = None
    session: str | None = None


class FoundRuns(Protocol):
    async def list(self, wanted: Wanted) -> list[dict[str, Any]]:
        """The newest first."""
        ...

    async def show(self, run_id: str) -> dict[str, Any]: ...

    def events(self, run_id: str, *, after: int) -> AsyncGenerator[Event]:
        """To the end of the run, or as far as its log goes."""
        ...


class ServerRuns:
    """Those of one workspace of a server."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self, wanted: Wanted) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while len(found) < wanted.limit:
            asked = {
                "limit": str(min(_PAGE, wanted.limit - len(found))),
                "status": wanted.status,
                "agentId": wanted.agent,
                "sessionId": wanted.session,
                "cursor": cursor,
            }
            query = [(name, value) for name, value in asked.items() if value is not None]
            page = json.loads(await self._client.http.call("GET", "/agent-runs", query=query))
            found += page["runs"]
            cursor = page["nextCursor"]
            if cursor is None:
                break
        return found

    async def show(self, run_id: str) -> dict[str, Any]:
        return json.loads(await self._client.http.call("GET", f"/agent-runs/{quote(run_id, safe='')}"))

    async def events(self, run_id: str, *, after: int) -> AsyncGenerator[Event]:
        # Asked first: a stream would be opened anew for as long as retries last.
        await self.show(run_id)
        async with await self._client.attach(run_id, dispatch=False, last_seq=after) as run:
            async for event in run.events(raise_on_failure=False):
                yield event

    async def cancel(self, run_id: str) -> dict[str, Any]:
        return json.loads(await self._client.http.call("POST", f"/agent-runs/{quote(run_id, safe='')}/cancel"))


class StoredRuns:
    """Those of a store, of all workspaces unless one is named."""

    def __init__(self, store: ReadStore, *, workspace: str | None) -> None:
        self._store = store
        self._workspace = workspace
        self._names = StoredNames(store.records)

    async def list(self, wanted: Wanted) -> list[dict[str, Any]]:
        statuses = ("running", "paused") if wanted.status == "running" else (wanted.status,) if wanted.status else ()
        thread: int | None = None
        if wanted.session is not None:
            parsed = ids.parse(wanted.session, prefix="ses_")
            if parsed is None:
                raise InvalidRequest(f"{wanted.session!r} is not the id of a session.")
            thread = parsed[0]
        rows = await self._store.log.runs(
            RunFilter(
                workspace=await self._key(),
                limit=wanted.limit,
                statuses=statuses,
                thread=thread,
                agents=(wanted.agent,) if wanted.agent else (),
            )
        )
        return [decode(encode(listed_run(await run_view(self, row), agent_id=row.agent))) for row in rows]

    async def show(self, run_id: str) -> dict[str, Any]:
        return decode(snapshot(await run_view(self, await self._find(run_id))))

    async def events(self, run_id: str, *, after: int) -> AsyncGenerator[Event]:
        row = await self._find(run_id)
        async for event in stored_events(self._store.log, row.key, run_id, after=after):
            yield event

    # What `run_view` reads

    async def entry(self, key: int, seq: int) -> Stored | None:
        return await self._store.log.entry(key, seq)

    async def session_id(self, thread: int | None) -> str | None:
        return None if thread is None else await self._names.session(thread)

    async def _find(self, run_id: str) -> RunRow:
        parsed = ids.parse(run_id, prefix="run_")
        row = await self._store.log.run(parsed[0]) if parsed is not None else None
        key = await self._key()
        if row is None or parsed is None or row.salt != parsed[1] or (key is not None and row.workspace != key):
            raise NotFound(f"There is no run {run_id!r}.")
        return row

    async def _key(self) -> int | None:
        if self._workspace is None:
            return None
        return await workspaces.find(Workspaces(self._store.records, self._store.vault, SystemClock()), self._workspace)
