"""The events of a run merged with those of all runs below it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeAlias

from weftline.events import AnyEvent, ChildEnded, ChildStarted

Cursor: TypeAlias = Mapping[str, int]
"""A reader's position in several runs: the seq of the last event it has of each, by run id."""


async def with_children(
    run_id: str, events: Callable[[str], AsyncIterator[AnyEvent]], *, after: int | Cursor
) -> AsyncIterator[AnyEvent]:
    """The events of a run after the seq `after`, and those of its children that had not ended by then.

    A child's events come between its parent's `ChildStarted` and `ChildEnded`, and carry the id of the child. A cursor
    gives the position in each run; without one, children are followed from their beginning.
    """
    merged = _Merged(events, {run_id: after} if isinstance(after, int) else after)
    merged.follow(run_id)
    try:
        while (event := await merged.next()) is not None:
            yield event
    finally:
        await merged.close()


class _Merged:
    def __init__(self, events: Callable[[str], AsyncIterator[AnyEvent]], after: Cursor) -> None:
        self._events = events
        self._after = after
        self._queue: asyncio.Queue[AnyEvent | BaseException | None] = asyncio.Queue(maxsize=1)
        """Holds one event, so that a slow reader slows down the reading of the logs."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow(self, run_id: str) -> None:
        first, after = not self._tasks, self._after.get(run_id, 0)
        self._tasks[run_id] = asyncio.create_task(self._root(run_id, after) if first else self._each(run_id, after))

    async def next(self) -> AnyEvent | None:
        event = await self._queue.get()
        if isinstance(event, BaseException):
            raise event
        return event

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _root(self, run_id: str, after: int) -> None:
        try:
            await self._each(run_id, after)
        except Exception as error:
            await self._queue.put(error)
        else:
            await self._queue.put(None)

    async def _each(self, run_id: str, after: int) -> None:
        open_before: dict[str, None] = {}
        """Children that began up to `after` and had not ended by then."""
        async for event in self._events(run_id):
            if event.seq <= after:
                if isinstance(event, ChildStarted):
                    open_before[event.child_id] = None
                elif isinstance(event, ChildEnded):
                    open_before.pop(event.child_id, None)
                if event.seq < after:
                    continue
            for child in open_before:
                self.follow(child)
            open_before = {}
            if event.seq == after:
                continue
            if isinstance(event, ChildEnded) and (child_task := self._tasks.get(event.child_id)) is not None:
                await child_task  # its events come before its end
            await self._queue.put(event)
            if isinstance(event, ChildStarted):
                self.follow(event.child_id)
