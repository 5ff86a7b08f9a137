"""The events of a run for Python: of a batch of entries, selected by a profile, and merged with those of child runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from weftline.events import AnyEvent, ChildEnded, ChildStarted, Event, UnknownEvent
from weftline.events.details import AnyDetail
from weftline.events.project import HIDDEN, OBSERVED, project
from weftline.events.project_details import DetailProjection
from weftline.kernel.damage import UNREADABLE
from weftline.runtime.decoding import check_observations, facts_in, require_skippable
from weftline.runtime.engine import EntryBatch
from weftline.store.rows import Item

Cursor: TypeAlias = Mapping[str, int]
"""A reader's position in several runs: the seq of the last event it has of each, by run id."""


def events_of(batch: EntryBatch) -> Iterator[AnyEvent]:
    """Yields the events of a batch: at most one per entry, whatever came before it.

    Raises `StoreError` (`log_damaged`) at an unreadable entry; one of newer code is an `UnknownEvent`, unless it is the
    end of the run: that raises `Conflict` (`unsupported_run`).
    """
    run_id, facts = batch.run_id, facts_in(batch)
    for item in batch.items:
        try:
            if not item.head:
                if batch.heads is None:
                    check_observations(item)
                if (of_kind := OBSERVED.get(item.kind)) is not None:
                    for seq, body in enumerate(item.body.split(b"\n"), item.seq):
                        if batch.after < seq <= batch.last_seq:
                            yield replace(of_kind(body), run_id=run_id, seq=seq)
                continue
            event = project(next(facts), item.body, run_id, item.seq)
        except UNREADABLE:
            require_skippable(batch, item)
            yield from _unknown(batch, item)
            continue
        if event is not None:
            yield event


def profiled_events(
    batch: EntryBatch, projection: DetailProjection, classes: frozenset[type[Event]]
) -> Iterator[AnyEvent | AnyDetail]:
    """Yields the events of a batch that have these classes, each among its details."""
    facts = facts_in(batch)
    for item in batch.items:
        found: list[AnyEvent | AnyDetail] = []
        try:
            if item.head:
                head = next(facts)
                event = project(head, item.body, batch.run_id, item.seq)
                found += projection.around(event, head, item.body, seq=item.seq, at=item.at)
            else:
                if batch.heads is None:
                    check_observations(item)
                for seq, body in enumerate(item.body.split(b"\n"), item.seq):
                    if batch.after < seq <= batch.last_seq:
                        found += projection.of_observation(item.kind, body, seq=seq, at=item.at)
                        if (of_kind := OBSERVED.get(item.kind)) is not None:
                            found.append(replace(of_kind(body), run_id=batch.run_id, seq=seq))
        except UNREADABLE:
            require_skippable(batch, item)
            found = [*_unknown(batch, item)]
        yield from [one for one in found if type(one) in classes]


def _unknown(batch: EntryBatch, item: Item) -> Iterator[UnknownEvent]:
    if item.kind not in HIDDEN:
        for seq in range(max(item.seq, batch.after + 1), min(item.last_seq, batch.last_seq) + 1):
            yield UnknownEvent(run_id=batch.run_id, seq=seq, type=item.kind)


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
