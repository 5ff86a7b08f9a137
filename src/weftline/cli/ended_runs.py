"""The runs of a store, for commands that read their logs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from weftline.cli.run_lookup import stored_id
from weftline.errors import NotFound
from weftline.replay.refusing import find_run
from weftline.runtime import ids
from weftline.runtime.clock import SystemClock
from weftline.store import open_for_reading
from weftline.store.base import LogReader, ReadStore
from weftline.store.records.threads import ThreadRow
from weftline.store.rows import RunRow
from weftline.workspace import threads, workspaces
from weftline.workspace.context import Workspaces


class EndedRuns:
    def __init__(self, store: ReadStore, workspace: str | None) -> None:
        self.log: LogReader = store.log
        self.records = store.records
        self._store = store
        self._workspaces = Workspaces(store.records, store.vault, SystemClock())
        self._workspace = workspace

    async def find_thread(self, session_id: str) -> tuple[ThreadRow, bool]:
        """Returns a thread by its id, and whether code refers to it by its name. Raises `NotFound`."""
        unknown = NotFound(f"There is no session {session_id!r}.")
        parsed = ids.parse(session_id, prefix="ses_")
        if parsed is None:
            raise unknown
        key, salt = parsed
        workspace = await self._key()
        try:
            row = await threads.by_key(self._workspaces, key)
        except NotFound:
            raise unknown from None
        if row.salt != salt or workspace not in (None, row.workspace):
            raise unknown
        return row, await threads.is_named(self._workspaces, row)

    async def find(self, run_id: str) -> RunRow:
        """Returns a run by the beginning of its id.

        Raises `NotFound` for a run of another workspace than the named one.
        """
        workspace = await self._key()
        return await find_run(self.log, await stored_id(self._store, run_id, workspace=workspace), workspace=workspace)

    async def _key(self) -> int | None:
        return None if self._workspace is None else await workspaces.find(self._workspaces, self._workspace)


@asynccontextmanager
async def ended_runs(db: Path, workspace: str | None) -> AsyncGenerator[EndedRuns]:
    store = open_for_reading(db)
    try:
        yield EndedRuns(store, workspace)
    finally:
        await store.close()
