"""The runs of a store, for commands that read their logs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from weftline.cli.run_lookup import LocalRuns
from weftline.errors import NotFound
from weftline.replay.refusing import find_run
from weftline.runtime import ids
from weftline.store import open_for_reading
from weftline.store.base import LogReader, ReadStore, RunRow
from weftline.store.records import threads
from weftline.store.records.threads import ThreadRow
from weftline.store.records.workspaces import find
from weftline.workspace.threads import name_key


class EndedRuns:
    def __init__(self, store: ReadStore, workspace: str | None) -> None:
        self.log: LogReader = store.log
        self.records = store.records
        self._store = store
        self._workspace = workspace

    async def find_thread(self, session_id: str) -> tuple[ThreadRow, bool]:
        """Returns a thread by its id, and whether it has a name from code. Raises `NotFound`."""
        parsed = ids.parse(session_id, prefix="ses_")
        row = None if parsed is None else await self.records.read(threads.by_key(parsed[0]))
        key = None if self._workspace is None else await self.records.read(find(self._workspace))
        if row is None or parsed is None or row.salt != parsed[1] or key not in (None, row.workspace):
            raise NotFound(f"There is no session {session_id!r}.")
        known = await self.records.read(threads.under(name_key(row.name), workspace=row.workspace))
        return row, known is not None and known[1] == row.key

    async def find(self, run_id: str) -> RunRow:
        """Returns a run by the beginning of its id.

        Raises `NotFound` for a run of another workspace than the named one.
        """
        whole = await LocalRuns(self._store, workspace=self._workspace).complete(run_id)
        key = None if self._workspace is None else await self._store.records.read(find(self._workspace))
        return await find_run(self.log, whole, workspace=key)


@asynccontextmanager
async def ended_runs(db: Path, workspace: str | None) -> AsyncGenerator[EndedRuns]:
    store = open_for_reading(db)
    try:
        yield EndedRuns(store, workspace)
    finally:
        await store.close()


async def completed(run_id: str, workspace: str | None, db: Path) -> str:
    """Returns the whole id of a run in the store."""
    store = open_for_reading(db)
    try:
        return await LocalRuns(store, workspace=workspace).complete(run_id)
    finally:
        await store.close()
