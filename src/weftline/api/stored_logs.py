"""The logs of a store without a running server: they can be read and trimmed, but runs get no input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weftline.errors import Conflict
from weftline.kernel.entries import AwaitOutcome
from weftline.plan import RunPlan
from weftline.runtime.added import add_ended
from weftline.runtime.answering import Answer
from weftline.runtime.below import awaits_of
from weftline.runtime.calls import DoubtPage, LoggedCall, calls_in_doubt, calls_of
from weftline.runtime.engine import Resumed
from weftline.runtime.grants import LoggedGrant, grants_of
from weftline.runtime.receipts import CancelReceipt
from weftline.store.awaits import AwaitFilter, OpenAwait
from weftline.store.base import IdempotencyKey, LogReader, LogStore, RunFilter, RunRow, Write, Written
from weftline.store.naming import db_option


class StoredLogs:
    """Stands in for an engine; see `weftline.api.operations.Logs`."""

    def __init__(self, store: LogStore, *, folder: Path | None = None) -> None:
        self._store = store
        self._folder = folder

    async def row(self, key: int) -> RunRow | None:
        return await self._store.run(key)

    async def runs(self, wanted: RunFilter) -> list[RunRow]:
        return await self._store.runs(wanted)

    async def check(self, plan: RunPlan, *, workspace: int, runs_now: bool = True) -> None:
        """Does nothing, as only a server knows its models and tools."""

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]:
        return await self._store.trim(before=before, after=after, workspace=workspace)

    async def cancel(self, key: int, *, requested_by: str = "") -> CancelReceipt:
        raise self._no_server("cancel the run")

    async def pause(self, key: int, **options: Any) -> None:
        raise self._no_server("pause the run")

    async def resume(self, key: int, **options: Any) -> None:
        raise self._no_server("resume the run")

    async def steer(self, key: int, text: str, **options: Any) -> str:
        raise self._no_server("send the message")

    async def follow_up(self, key: int, text: str, **options: Any) -> str:
        raise self._no_server("send the message")

    def _no_server(self, what: str) -> Conflict:
        return Conflict(f"No server has this store open: start `weftline serve{db_option(self._folder)}`, then {what}.")

    async def awaits(self, wanted: AwaitFilter) -> list[OpenAwait]:
        return await awaits_of(self._store, wanted)

    async def answer_await(self, key: int, await_id: str, answer: Answer, *, by: str) -> AwaitOutcome:
        raise self._no_server("answer")

    async def created_before(self, workspace: int, idempotency: IdempotencyKey) -> str | None:
        return None

    async def add_ended(self, write: Write, *, last_key: int) -> Written:
        return await add_ended(self._store, write)

    @property
    def logs(self) -> LogReader:
        return self._store

    async def create(self, workspace: int, plan: RunPlan, **details: Any) -> str:
        raise self._no_server("start the run")

    async def calls(self, row: RunRow) -> list[LoggedCall]:
        return await calls_of(self._store, row, store_id=self._store.id)

    async def grants(self, row: RunRow) -> list[LoggedGrant]:
        return await grants_of(self._store, row)

    async def calls_in_doubt(self, workspace: int, *, before: int | None, limit: int) -> DoubtPage:
        store = self._store
        return await calls_in_doubt(store, workspace=workspace, store_id=store.id, before=before, limit=limit)

    async def resume_all(self) -> Resumed:
        held = self._store.held
        if held:
            await self._store.lift_hold()
        return Resumed(held, await self._store.unfinished())
