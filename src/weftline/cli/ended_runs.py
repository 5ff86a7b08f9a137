"""The runs of a store, for commands that read their logs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from weftline.cli.found_runs import StoredRuns
from weftline.replay.refusing import find_run
from weftline.store import open_for_reading
from weftline.store.base import LogReader, ReadStore, RunRow
from weftline.store.records.workspaces import find


class EndedRuns:
    def __init__(self, store: ReadStore, workspace: str | None) -> None:
        self.log: LogReader = store.log
        self._store = store
        self._workspace = workspace

    async def find(self, run_id: str) -> RunRow:
        """By the beginning of its id. Raises `NotFound` for a run of another workspace than the one that was named."""
        whole = await StoredRuns(self._store, workspace=self._workspace).complete(run_id)
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
    """The whole id of a run of the store."""
    store = open_for_reading(db)
    try:
        return await StoredRuns(store, workspace=workspace).complete(run_id)
    finally:
        await store.close()
