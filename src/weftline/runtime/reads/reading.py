"""Reads runs and threads, whether they are in memory or not."""

from __future__ import annotations

from weftline.errors import no_such_run
from weftline.runtime.people.grants import LoggedGrant, grants_of
from weftline.runtime.reads.calls import (
    CallName,
    CancelReceipt,
    Contents,
    DoubtPage,
    LoggedCall,
    asked_doubts,
    calls_in_doubt,
    calls_of,
    stored_receipt,
)
from weftline.runtime.reads.finding import StoredNames, row_of
from weftline.runtime.reads.relatives import awaits_of, parent_of
from weftline.runtime.reads.turns import LoggedTurn, turn_of
from weftline.store.base import LogReader
from weftline.store.rows import AwaitFilter, OpenAwait, RunRow


class StoredRuns:
    """Any engine has one, as `Engine.stored`: none of this depends on who drives the runs."""

    def __init__(self, store: LogReader, names: StoredNames) -> None:
        self._log_store = store
        self._names = names

    async def find(self, run_id: str, *, workspace: int) -> RunRow:
        """The run's row. Raises `NotFound` for an unknown id and for a run of another workspace alike."""
        row = await row_of(self._log_store, run_id, workspace=workspace)
        if row is None:
            raise no_such_run()
        return row

    async def receipt(self, key: int) -> CancelReceipt:
        """Returns how the calls of a run were closed, as `Engine.cancel` does."""
        row = await self._log_store.run(key)
        return await stored_receipt(self._log_store, key, "" if row is None else row.status)

    async def asked_doubts(self, row: RunRow) -> tuple[CallName, ...]:
        """The calls of a run that may or may not have happened and about which a person is asked."""
        return await asked_doubts(self._log_store, row)

    async def parent(self, row: RunRow) -> str | None:
        """The id of the run whose call a child run executes."""
        return await parent_of(self._log_store, row)

    async def calls(self, row: RunRow, *, contents: Contents | None = None) -> list[LoggedCall]:
        """The announced calls of a run, in order; `contents` says which of them with arguments and results."""
        return await calls_of(self._log_store, row, store_id=self._log_store.id, contents=contents)

    async def turn(self, row: RunRow, turn: int | None, *, max_bytes: int | None = None) -> LoggedTurn:
        """A turn of a run, or the latest one, as `turn_of` returns it."""
        return await turn_of(self._log_store, row, turn, max_bytes=max_bytes)

    async def grants(self, row: RunRow) -> list[LoggedGrant]:
        """Returns the approvals of a run, in order."""
        return await grants_of(self._log_store, row)

    async def calls_in_doubt(
        self, workspace: int, *, before: int | None, limit: int, contents: bool = False
    ) -> DoubtPage:
        """The calls of a workspace that may or may not have happened, of runs with a key below `before`."""
        store = self._log_store
        return await calls_in_doubt(
            store, workspace=workspace, store_id=store.id, before=before, limit=limit, contents=contents
        )

    @property
    def logs(self) -> LogReader:
        """Whole logs, for callers that need more than these methods return."""
        return self._log_store

    async def row(self, key: int) -> RunRow | None:
        return await self._log_store.run(key)

    async def awaits(self, wanted: AwaitFilter) -> list[OpenAwait]:
        """The open questions to people, by run and id."""
        return await awaits_of(self._log_store, wanted)

    async def session_id(self, thread: int | None) -> str | None:
        """The public session id of a thread."""
        return None if thread is None else await self._names.session(thread)
