"""Messages of threads, as an engine has them: with the answer that a model is just giving."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from weftline.kernel.bodies import encode
from weftline.messages import Assistant, Text
from weftline.runtime.conversation import message_id
from weftline.runtime.live import LiveRun
from weftline.store.base import Store
from weftline.store.records import threads
from weftline.store.records.thread_messages import MessageFilter, MessageRow


class ThreadMessages:
    def __init__(
        self, store: Store, resident: Mapping[int, LiveRun], durable: Callable[[LiveRun], Awaitable[None]]
    ) -> None:
        """`resident` has the runs in memory by their keys; `durable` returns when all that a run has appended is."""
        self._store = store
        self._resident = resident
        self._durable = durable

    async def page(self, wanted: MessageFilter, *, within: bool = False) -> tuple[list[MessageRow], int]:
        """Messages of a thread, the latest of which may be pending, and how many match in all.

        `within` its run, everything that the run has said so far is there.
        """
        run = await self._active(wanted.thread)
        if run is not None and within:
            await self._durable(run)
        pending = None if run is None else _pending(run)
        if pending is None or wanted.id not in (None, pending.id):
            return await self._store.log.thread_rows(wanted)
        if wanted.id is not None:
            return [pending], 1
        earlier = wanted
        if wanted.newest_first:
            first = wanted.offset == 0
            earlier = replace(wanted, offset=max(0, wanted.offset - 1), limit=max(0, wanted.limit - first))
        rows, total = await self._store.log.thread_rows(earlier)
        if any(row.id == pending.id for row in rows):
            return rows, total  # it was completed meanwhile
        if wanted.newest_first:
            rows = [pending, *rows] if wanted.offset == 0 and wanted.limit else rows
        elif len(rows) < wanted.limit and wanted.offset <= total:
            rows = [*rows, pending]
        return rows, total + 1

    async def one(self, thread: int, id: str, *, within: bool = False) -> MessageRow | None:
        """A message of a thread; None if the thread has none with this id."""
        rows, _ = await self.page(MessageFilter(thread=thread, id=id, limit=1), within=within)
        return rows[0] if rows else None

    async def _active(self, thread: int) -> LiveRun | None:
        """The run of the thread that may move, if it is in memory."""
        row = await self._store.records.read(threads.by_key(thread))
        return None if row is None or row.active_run is None else self._resident.get(row.active_run)


def _pending(run: LiveRun) -> MessageRow | None:
    """The answer that the model is giving, under the id that it keeps."""
    state, work = run.state, run.work
    if not state.attempt.open or work.conversation.kept is None:
        return None
    text = "" if work.answering is None else work.answering.text
    return MessageRow(
        pos=0,
        run=run.key,
        message=encode(Assistant((Text(text),))),
        id=f"{message_id(work.unique_id)}_{state.turn}",
        depth=0,
        parent=None,
        silent=False,
        status="pending",
        tool_status=None,
        metadata="{}",
        created_at=state.now,
        sent_at=state.now,
        asked_by=None,
    )
