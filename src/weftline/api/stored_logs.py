"""The logs of a store that nothing else has open: they can be read and trimmed, but runs get no input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weftline.errors import Conflict
from weftline.kernel.entries import AwaitOutcome
from weftline.plan import RunPlan
from weftline.runtime.creating import add_ended
from weftline.runtime.engine import Resumed
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.reads.calls import CancelReceipt
from weftline.runtime.reads.finding import StoredNames
from weftline.runtime.reads.reading import StoredRuns
from weftline.store.base import Store
from weftline.store.naming import db_option
from weftline.store.rows import IdempotencyKey, Write, Written


class StoredLogs:
    """Stands in for an engine; see `weftline.api.operations.Logs`."""

    def __init__(self, store: Store, *, folder: Path | None = None) -> None:
        self._store = store.log
        self._folder = folder
        self.stored = StoredRuns(store.log, StoredNames(store.records))

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
        return Conflict(
            f"Nothing has this store open, so no run goes on: start `weftline serve{db_option(self._folder)}`, or the"
            f" script with the run's engine, then {what}."
        )

    async def answer_await(self, key: int, await_id: str, answer: AwaitAnswer, **options: Any) -> AwaitOutcome:
        raise self._no_server("answer")

    async def created_before(self, workspace: int, idempotency: IdempotencyKey) -> str | None:
        return None

    async def add_ended(self, write: Write, *, last_key: int) -> Written:
        return await add_ended(self._store, write)

    async def create(self, workspace: int, plan: RunPlan, **details: Any) -> str:
        raise self._no_server("start the run")

    async def resume_all(self) -> Resumed:
        held = self._store.held
        if held:
            await self._store.lift_hold()
        return Resumed(held, await self._store.unfinished())
