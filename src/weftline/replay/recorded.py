"""A recorded run, in a store or in a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from weftline.replay.exporting import history_of
from weftline.replay.format import Offered
from weftline.replay.reading import Export, ExportedRun
from weftline.replay.refusing import children_of, find_run, readable_entries, require_whole
from weftline.runtime import ids
from weftline.store.base import LogReader
from weftline.store.rows import Item, RunRow


class Recorded(Protocol):
    @property
    def run_id(self) -> str: ...

    def facts(self) -> AsyncIterator[Item]:
        """The facts in order, read one at a time."""
        ...

    async def history(self) -> Sequence[bytes]:
        """The messages of its thread when it began."""
        ...

    @property
    def offered(self) -> Offered | None:
        """The tools and instructions of its models, if they were recorded."""
        ...


class StoredRun:
    offered: Offered | None = None

    def __init__(self, log: LogReader, row: RunRow) -> None:
        self.run_id = ids.run_id(row.key, row.salt)
        self._log, self._row = log, row

    async def facts(self) -> AsyncGenerator[Item]:
        async for item in readable_entries(self._log, self._row):
            if item.head:
                yield item

    async def history(self) -> Sequence[bytes]:
        return await history_of(self._log, self._row)


class FileRun:
    def __init__(self, run: ExportedRun) -> None:
        self.run_id, self.offered = run.row.id, run.offered
        self._run = run

    async def facts(self) -> AsyncGenerator[Item]:
        for item in self._run.facts:
            yield item

    async def history(self) -> Sequence[bytes]:
        return self._run.history


async def recorded_in_store(log: LogReader, row: RunRow) -> list[Recorded]:
    """The run and those below it. Raises `Conflict` if one of them has not ended or is incomplete."""
    await require_whole(log, row)
    found: list[Recorded] = [StoredRun(log, row)]
    for child in await children_of(log, row):
        found += await recorded_in_store(log, await find_run(log, child, workspace=row.workspace))
    return found


def recorded_in_file(export: Export) -> list[Recorded]:
    return [FileRun(run) for run in export.runs]
