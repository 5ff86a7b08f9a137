"""Runs for the commands, at a server or in a store: the protocol's JSON, and the client's events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from msgspec import Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from weftline.api.cursors import cursor_of, key_of
from weftline.api.turns import turn_view
from weftline.api.views import awaits_of, receipt_of, run_summary, run_view
from weftline.cli.events import stored_frames
from weftline.client import ApiError, AsyncClient
from weftline.client import NotFound as ClientNotFound
from weftline.client.events import Frame
from weftline.errors import InvalidRequest, NotFound
from weftline.runtime import ids
from weftline.runtime.clock import SystemClock
from weftline.runtime.reads.calls import CallName, CancelReceipt, asked_doubts, stored_receipt
from weftline.runtime.reads.finding import StoredNames, is_prefix, row_of, runs_with_prefix
from weftline.runtime.reads.relatives import awaits_of as stored_awaits
from weftline.runtime.reads.relatives import parent_of
from weftline.runtime.reads.turns import turn_of
from weftline.store.base import ReadStore
from weftline.store.rows import AwaitFilter, Item, OpenAwait, RunFilter, RunRow
from weftline.wire.run_responses import listed_run, snapshot
from weftline.workspace import agents, workspaces
from weftline.workspace.context import Workspaces

_PAGE = 200


def _only(found: list[str], start: str) -> str:
    if not found:
        raise NotFound(f"There is no run whose id begins with {start!r}.")
    if len(found) > 1:
        raise InvalidRequest(f"{start!r} matches several runs, such as {found[0]} and {found[1]}; give more of the id.")
    return found[0]


class RunQuery(Struct, frozen=True, kw_only=True):
    """Which runs to list; all without a `limit`."""

    limit: int | None
    cursor: str | None = None
    status: str | None = None
    agent: str | None = None
    session: str | None = None
    children: bool = False
    """With a session: also the runs of subagents below its runs."""
    in_doubt: bool = False
    """Only those with a call that may or may not have happened. There is no index for these."""

    def page(self, found: int) -> int:
        """Returns how many to request after this many were found."""
        return _PAGE if self.limit is None or self.in_doubt else min(_PAGE, self.limit - found)

    def matching(self, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [run for run in runs if run.get("inDoubt")] if self.in_doubt else list(runs)

    def is_exceeded(self, found: int) -> bool:
        return self.limit is not None and found > self.limit


class RunList(Struct, frozen=True):
    runs: list[dict[str, Any]]
    next_cursor: str | None
    """Where the list continues; None at its end."""


class FoundRuns(Protocol):
    async def list(self, wanted: RunQuery) -> RunList:
        """Lists runs, newest first."""
        ...

    async def complete(self, start: str) -> str:
        """Returns the id that `start` is, or begins. Raises `InvalidRequest` if it matches several runs."""
        ...

    async def show(self, run_id: str) -> dict[str, Any]: ...

    async def turn(self, run_id: str, turn: int | None) -> dict[str, Any]:
        """Returns a turn of the run, or the latest."""
        ...

    def frames(self, run_id: str, *, after: int) -> AsyncGenerator[Frame]:
        """Yields its events, to the end of the run or of its log."""
        ...


class ServerRuns:
    """The runs of one workspace on a server."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self, wanted: RunQuery) -> RunList:
        found: list[dict[str, Any]] = []
        cursor = wanted.cursor
        while wanted.limit is None or len(found) < wanted.limit:
            asked = {
                "limit": str(wanted.page(len(found))),
                "status": wanted.status,
                "agentId": wanted.agent,
                "sessionId": wanted.session,
                "children": "true" if wanted.children else None,
                "cursor": cursor,
            }
            page = await self._page(asked)
            found += wanted.matching(page["runs"])
            if wanted.is_exceeded(len(found)):
                found = found[: wanted.limit]
                up_to = [run["id"] for run in page["runs"]].index(found[-1]["id"]) + 1
                cursor = (await self._page({**asked, "limit": str(up_to)}))["nextCursor"]
                break
            cursor = page["nextCursor"]
            if cursor is None:
                break
        return RunList(found, cursor)

    async def _page(self, asked: dict[str, str | None]) -> dict[str, Any]:
        query = [(name, value) for name, value in asked.items() if value is not None]
        return json.loads(await self._client.http.call("GET", "/agent-runs", query=query))

    async def complete(self, start: str) -> str:
        if not is_prefix(start) or await self._is_whole(start):
            return start  # the server reports any problem with it
        page = await self._page({"idPrefix": start, "limit": "2"})
        # A server without `idPrefix` also lists others.
        return _only([run["id"] for run in page["runs"] if run["id"].startswith(start)], start)

    async def _is_whole(self, start: str) -> bool:
        try:
            await self.show(start)
        except ClientNotFound:
            return False
        except ApiError:
            pass  # a key that may not read can still cancel
        return True

    async def show(self, run_id: str) -> dict[str, Any]:
        return json.loads(await self._client.http.call("GET", f"/agent-runs/{quote(run_id, safe='')}"))

    async def turn(self, run_id: str, turn: int | None) -> dict[str, Any]:
        wanted = "last" if turn is None else str(turn)
        path = f"/agent-runs/{quote(run_id, safe='')}/turns/{wanted}"
        return json.loads(await self._client.http.call("GET", path))

    async def frames(self, run_id: str, *, after: int) -> AsyncGenerator[Frame]:
        # Checked first, as a stream would be reopened until the retries are used up.
        await self.show(run_id)
        async with await self._client.attach(run_id, dispatch=False, last_seq=after) as run:
            async for frame in run.frames(raise_on_failure=False):
                yield frame

    async def cancel(self, run_id: str) -> dict[str, Any]:
        return json.loads(await self._client.http.call("POST", f"/agent-runs/{quote(run_id, safe='')}/cancel"))


class LocalRuns:
    """The runs of a store, in all workspaces unless one is named."""

    def __init__(self, store: ReadStore, *, workspace: str | None) -> None:
        self._store = store
        self._workspace = workspace
        self._workspaces = Workspaces(store.records, store.vault, SystemClock())
        self._names = StoredNames(store.records)

    async def list(self, wanted: RunQuery) -> RunList:
        statuses = ("running", "paused") if wanted.status == "running" else (wanted.status,) if wanted.status else ()
        thread: int | None = None
        if wanted.session is not None:
            parsed = ids.parse(wanted.session, prefix="ses_")
            if parsed is None:
                raise InvalidRequest(f"{wanted.session!r} is not the id of a session.")
            thread = parsed[0]
        matching = RunFilter(
            workspace=await self._key(),
            statuses=statuses,
            thread=thread,
            with_children=wanted.children,
            agents=(wanted.agent, *await agents.ids_by_slug(self._workspaces, wanted.agent)) if wanted.agent else (),
        )
        before = None if wanted.cursor is None else key_of(wanted.cursor)
        found: list[dict[str, Any]] = []
        while True:
            left = wanted.page(len(found))
            rows = await self._store.log.runs(replace(matching, before=before, limit=left + 1))
            for row in rows[:left]:
                if wanted.is_exceeded(len(found) + 1):
                    return RunList(found, cursor_of(before or 0))
                found += wanted.matching([await self._describe(row)])
                before = row.key
            if len(rows) <= left:
                return RunList(found, None)
            if wanted.limit is not None and len(found) >= wanted.limit:
                return RunList(found, cursor_of(before or 0))

    async def complete(self, start: str) -> str:
        key = await self._key()
        if await row_of(self._store.log, start, workspace=key) is not None:
            return start
        if not is_prefix(start):
            raise NotFound(f"There is no run {start!r}.")
        rows = await runs_with_prefix(self._store.log, start, RunFilter(workspace=key, limit=2))
        return _only([ids.run_id(row.key, row.salt) for row in rows], start)

    async def show(self, run_id: str) -> dict[str, Any]:
        row = await self._find(run_id)
        view = await run_view(self, row)
        return decode(snapshot(view, receipt=await receipt_of(self, row), awaits=await awaits_of(self, row)))

    async def turn(self, run_id: str, turn: int | None) -> dict[str, Any]:
        return decode(encode(turn_view(await turn_of(self._store.log, await self._find(run_id), turn))))

    async def frames(self, run_id: str, *, after: int) -> AsyncGenerator[Frame]:
        row = await self._find(run_id)
        async for frame in stored_frames(self._store.log, row.key, run_id, after=after):
            yield frame

    async def _describe(self, row: RunRow) -> dict[str, Any]:
        return decode(encode(listed_run(await run_summary(self, row), agent_id=row.agent)))

    # Methods of a `RunSource` and an `AwaitSource`

    async def entry(self, key: int, seq: int, *, max_bytes: int | None = None) -> Item | None:
        return await self._store.log.entry(key, seq, max_bytes=max_bytes)

    async def parent(self, row: RunRow) -> str | None:
        return await parent_of(self._store.log, row)

    async def newest_facts(self, key: int, *, kinds: Sequence[str], limit: int, max_bytes: int) -> list[Item]:
        return await self._store.log.newest_facts(key, kinds=kinds, limit=limit, max_bytes=max_bytes)

    async def session_id(self, thread: int | None) -> str | None:
        return None if thread is None else await self._names.session(thread)

    async def receipt(self, key: int) -> CancelReceipt:
        return await stored_receipt(self._store.log, key, "")

    async def asked_doubts(self, row: RunRow) -> tuple[CallName, ...]:
        return await asked_doubts(self._store.log, row)

    async def awaits(self, wanted: AwaitFilter) -> list[OpenAwait]:
        return await stored_awaits(self._store.log, wanted)

    async def _find(self, run_id: str) -> RunRow:
        row = await row_of(self._store.log, run_id, workspace=await self._key())
        if row is None:
            raise NotFound(f"There is no run {run_id!r}.")
        return row

    async def _key(self) -> int | None:
        if self._workspace is None:
            return None
        return await workspaces.find(self._workspaces, self._workspace)
