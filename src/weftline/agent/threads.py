"""A conversation that several runs of an engine share, under a name that the caller chooses."""

# pyright: reportPrivateUsage=false
# A thread and its engine know each other.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from weftline.agent.events import Cursor, with_children
from weftline.errors import NotFound
from weftline.events import AnyEvent
from weftline.kernel.bodies import decode_message
from weftline.messages import Message
from weftline.runtime import ids
from weftline.runtime.engine import Engine, EntryBatch, Observer
from weftline.store.records.threads import ThreadRow
from weftline.store.rows import IdempotencyKey, RunFilter, RunRow
from weftline.workspace import threads
from weftline.workspace.context import Workspaces
from weftline.workspace.threads import ThreadDraft

T = TypeVar("T")


class ThreadEngine(Protocol):
    """The engine of a thread, as the thread needs it."""

    async def runtime(self) -> Engine: ...

    async def _on_engine_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs `work` on the engine's event loop."""
        ...

    def _events_of(self, run_id: str) -> AsyncIterator[AnyEvent]:
        """Yields the events of a run, from the log and then live."""
        ...

    async def observe(self, observer: Observer) -> Callable[[], None]: ...

    async def _state_of(self, row: ThreadRow) -> Any:
        """The state of a thread, for its agent's code."""
        ...

    @property
    def workspaces(self) -> Workspaces: ...

    _workspace: int


_PAGE = 200


class RunCreatedSignal:
    """Notifies waiters, on their own loops, when a run is created."""

    def __init__(self) -> None:
        self.count = 0
        """How many runs were created."""
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def __call__(self, batch: EntryBatch) -> None:
        if batch.items and batch.items[0].seq == 1:
            self._loop.call_soon_threadsafe(self._note)

    def _note(self) -> None:
        self.count += 1
        self._changed.set()

    async def wait(self, *, beyond: int) -> None:
        while self.count <= beyond:
            self._changed.clear()
            await self._changed.wait()


async def runs_of(host: Engine, thread: int, *, after: int) -> list[RunRow]:
    """Returns the runs of a thread that are newer than the key `after`, oldest first."""
    found: list[RunRow] = []
    before: int | None = None
    while rows := await host.stored.logs.runs(RunFilter(thread=thread, before=before, limit=_PAGE)):
        before = rows[-1].key
        newer = [row for row in rows if row.key > after]
        found += newer
        if len(newer) < len(rows) or len(rows) < _PAGE:
            break
    return found[::-1]


class Thread:
    """A durable conversation, created at first use. Its runs execute one at a time, in order."""

    def __init__(self, engine: ThreadEngine, name: str) -> None:
        self.name = name
        self._engine = engine

    def __repr__(self) -> str:
        return f"<Thread {self.name}>"

    async def messages(self) -> list[Message]:
        """The messages of all runs, oldest first; of a run that failed those of its finished turns."""
        return await self._engine._on_engine_loop(self._read)

    async def _read(self) -> list[Message]:
        host = await self._engine.runtime()
        return [decode_message(message) for message in await host.stored.logs.thread_messages(await self.key())]

    async def events(self, *, after: Cursor | None = None, live: bool = True) -> AsyncIterator[AnyEvent]:
        """The events of all runs of the thread and of their children, one run after the other, as one stream.

        `run_id` says which run an event belongs to. To continue where you left off, note the `seq` of the last event of
        each run, and pass all of them as `after={run_id: seq, …}`. It continues with runs that start later, unless
        `live` is
        False: then it ends after the last existing run.
        """
        key, seen = await self.key(), 0
        host = await self._engine.runtime()
        news = RunCreatedSignal()
        leave = await self._engine.observe(news) if live else None
        try:
            while True:
                begun = news.count
                for row in await runs_of(host, key, after=seen):
                    seen = row.key
                    run_id = ids.run_id(row.key, row.salt)
                    async for event in with_children(run_id, self._engine._events_of, after=after or {}):
                        yield event
                if not live:
                    return
                await news.wait(beyond=begun)
        finally:
            if leave is not None:
                leave()

    async def end(self, *, by: str = "") -> None:
        """Ends the conversation: its unfinished runs are cancelled, and no new ones are accepted."""

        async def work() -> None:
            host, at = await self._engine.runtime(), self._engine.workspaces
            await threads.end(at, host, await threads.by_key(at, await self.key()), requested_by=by)

        await self._engine._on_engine_loop(work)

    async def state(self) -> Any:
        """The thread's state, a `weftline.threads.ThreadState`, for code outside of runs.

        It belongs to the engine's event loop. Raises `InvalidRequest` unless its agent is one of a folder.
        """

        async def work() -> Any:
            row = await threads.by_key(self._engine.workspaces, await self.key())
            return await self._engine._state_of(row)

        return await self._engine._on_engine_loop(work)

    async def key(self) -> int:
        """Returns the key of the thread. Raises `NotFound` for an unknown id; an unknown name creates a thread."""
        if (given := ids.parse(self.name, prefix="ses_")) is not None:
            row = await threads.by_key(self._engine.workspaces, given[0])
            if row.salt != given[1] or row.workspace != self._engine._workspace:
                raise NotFound(f"There is no thread {self.name!r}.")
            return row.key
        once = IdempotencyKey("library", threads.name_key(self.name), threads.BY_NAME)
        draft = ThreadDraft(name=self.name, agent=None, spec=b"{}", keeps="all")
        row = await threads.create(self._engine.workspaces, self._engine._workspace, draft, idempotency=once)
        return row.key
