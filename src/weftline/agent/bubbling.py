"""The events of a run together with those of the runs below it, at any depth."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeAlias

from weftline.events import AnyEvent, ChildEnded, ChildStarted

Cursor: TypeAlias = Mapping[str, int]
"""How far a reader of several runs has come: by the id of each, the seq of the last event that the reader has of it."""


async def with_children(
    run_id: str, events: Callable[[str], AsyncIterator[AnyEvent]], *, after: int | Cursor
) -> AsyncIterator[AnyEvent]:
    """The events of a run after the seq `after`, and those of its children that had not ended by then.

    A child's come between the `ChildStarted` and the `ChildEnded` of its parent; each has the id of its own run. A
    cursor says how far each of them was read; otherwise children are followed from their beginning.
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
        """One at a time: whoever is slow to read slows down the reading of the logs, not more."""
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
        """Children that began up to `after` and have not ended by then."""
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
                await child_task  # what it did comes before the news that it has ended
            await self._queue.put(event)
            if isinstance(event, ChildStarted):
                self.follow(event.child_id)
