"""Fan-out: delivers what was committed to everyone who follows a run.

A follower is a cursor and a small queue of batches of entries. Its projection of them (SSE frames, MCP progress, Python
events) is computed once per batch and shared. A follower that is too slow loses its queue, not its place: it continues
from the log, a page at a time, taking turns. No reader can delay a flush or another reader, and a reader that takes
nothing keeps only a bounded amount in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

from msgspec import Struct

from weftline.errors import RateLimited
from weftline.kernel.entries import FORMAT
from weftline.runtime import ids
from weftline.runtime.engine import QUIET_BEATS, EntryBatch, Observer
from weftline.store.base import LogStore
from weftline.store.rows import Write
from weftline.work.outcomes import attempt
from weftline.work.turns import LoopQueue

logger = logging.getLogger(__name__)

QUEUE_BYTES = 32 * 1024
"""How much is queued for a reader that is still busy."""
PAGE_BYTES = 32 * 1024
MAX_RECENT_BYTES = 4 * 1024 * 1024
MAX_RECENT_BYTES_PER_RUN = QUEUE_BYTES


class Subscription(Struct, eq=False):
    """Follows one run from a cursor."""

    _hub: Hub
    run: int
    run_id: str
    workspace: int
    last_seq: int
    """The last seq that is or was queued for the reader."""
    taken: int
    """The last seq that the reader has received."""
    behind: bool = True
    """Whether the next batch has to be read from the log."""
    ended: bool = False
    left: bool = False
    """Whether the reader has disconnected."""
    follows_below: bool = False
    _over: bool = False
    """Whether the server is stopping."""
    _announced: int = 0
    _batches: list[EntryBatch] = []
    _size: int = 0
    _tick: bool = False
    _news_below: bool = False
    _quiet: int = 0
    """Beats since the reader was given anything."""
    _waiter: asyncio.Future[None] | None = None

    async def next(self) -> Sequence[EntryBatch] | None:
        """The batches that are due, at least one; an empty list after `QUIET_BEATS` without any; None at the end."""
        while not self.left:
            if self.behind:
                batch = await self._hub.read(self)
                if batch is not None:
                    self.taken, self._quiet = self.last_seq, 0
                    return (batch,)
                continue
            if self._batches:
                batches, self._batches, self._size = self._batches, [], 0
                self.taken, self._tick, self._quiet = self.last_seq, False, 0
                return batches
            if self.ended:
                return None
            if self._tick or self._news_below:
                self._tick = self._news_below = False
                return ()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return None

    @property
    def complete(self) -> bool:
        """True if the reader has everything up to the end of the run."""
        return self.ended and not self._over and not self._batches

    def push(self, batch: EntryBatch) -> None:
        self._announced = batch.last_seq
        if self.behind or batch.last_seq <= self.last_seq:
            pass  # it will find this in the log, or has already found it there
        elif self._size + batch.size > QUEUE_BYTES and (self._waiter is None or self._batches):
            self.rewind(self.taken)
        else:
            self._batches.append(batch)
            self._size += batch.size
            self.last_seq, self.ended = batch.last_seq, batch.ended
        if self._waiter is not None:
            self.wake()

    def rewind(self, seq: int) -> None:
        """Continues after `seq`, which the reader already has; drops what is queued, since the log has it."""
        self._batches, self._size = [], 0
        self.last_seq = self.taken = seq
        if not self._over:
            self.behind, self.ended = True, False

    def caught_up(self, *, upto: int, ended: bool) -> None:
        """Called when the reader has everything up to `upto`, the end of the log at that time; newer batches follow."""
        if upto >= self._announced:
            self.behind, self.ended = False, ended or self._over

    def beat(self) -> None:
        """Wakes a reader that has received nothing for `QUIET_BEATS` beats, so that it can send a keep-alive."""
        self._quiet += 1
        if self._quiet >= QUIET_BEATS and not self.behind and not self._batches:
            self._tick, self._quiet = True, 0
            self.wake()

    def notify_below(self) -> None:
        """Wakes a reader that wants to be notified of the runs below this one."""
        if self.follows_below:
            self._news_below = True
            self.wake()

    def end(self) -> None:
        """Ends the stream after the queued batches, even though the run continues: the server is stopping."""
        self.behind, self.ended, self._over = False, True, True
        self.wake()

    def leave(self) -> None:
        """Called when the reader has disconnected: reading on its behalf must stop."""
        self.left = True
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        self._hub.leave(self)


class ReservedStream(Struct, eq=False):
    """A place among a workspace's streams, which can be reserved before there is a run to follow."""

    _hub: Hub | None
    _workspace: int

    def follow(self, key: int, run_id: str, *, after: int = 0) -> Subscription:
        """Uses the place; the subscription releases it when it is closed."""
        hub, self._hub = self._hub, None
        assert hub is not None
        return hub.subscribe(key, run_id, after=after, workspace=self._workspace)

    def release(self) -> None:
        """Releases a place that was not used."""
        hub, self._hub = self._hub, None
        if hub is not None:
            hub.release(self._workspace)


class Hub:
    def __init__(self, store: LogStore, *, max_per_workspace: int | None = None) -> None:
        self._store = store
        self._max_per_workspace = max_per_workspace
        self._streams: dict[int, int] = {}
        self._topics: dict[int, list[Subscription]] = {}
        self._recent = Recent()
        self._observers: list[Observer] = []
        self._page_queue = LoopQueue()
        self._closing = False

    def reserve(self, workspace: int) -> ReservedStream:
        """Raises `RateLimited` (`too_many_streams`) if the workspace has its maximum number of streams open.

        Followers that act for no workspace (`workspace` 0) are not limited.
        """
        self._take_place(workspace)
        return ReservedStream(self, workspace)

    def follow(self, run: int, run_id: str, *, after: int, workspace: int = 0) -> Subscription:
        """Raises as `reserve` does."""
        self._take_place(workspace)
        return self.subscribe(run, run_id, after=after, workspace=workspace)

    def _take_place(self, workspace: int) -> None:
        if workspace:
            limit, streams = self._max_per_workspace, self._streams.get(workspace, 0)
            if limit is not None and streams >= limit:
                message = f"{limit} streams of this workspace are already open."
                raise RateLimited(message, code="too_many_streams", retry_after_s=5, limit=limit)
            self._streams[workspace] = streams + 1

    @property
    def open_streams(self) -> int:
        """How many streams of workspaces are open, or reserved."""
        return sum(self._streams.values())

    async def until_ended(self, run: int, run_id: str, *, after: int) -> None:
        """Returns when the run has ended, or the server is stopping. It does not count as one of the workspace's
        streams, because a cancel must be possible however many of those are open.
        """
        follower = self.follow(run, run_id, after=after)
        try:
            while await follower.next() is not None:
                pass
        finally:
            follower.close()

    def subscribe(self, run: int, run_id: str, *, after: int, workspace: int) -> Subscription:
        """Subscribes with a place that is already reserved."""
        after = max(after, 0)
        subscription = Subscription(self, run, run_id, workspace, last_seq=after, taken=after)
        self._topics.setdefault(run, []).append(subscription)
        recent = self._recent.get(run)
        if recent is not None and after == 0:
            subscription.behind = False
            for batch in recent.batches:
                subscription.push(batch)
        if self._closing:
            subscription.end()
        return subscription

    def owner(self, run: int) -> tuple[str, int] | None:
        """The id and workspace of a run whose newest batches are in memory."""
        recent = self._recent.get(run)
        return (recent.batches[0].run_id, recent.workspace) if recent is not None else None

    def leave(self, subscription: Subscription) -> None:
        topic = self._topics.get(subscription.run)
        if topic is None or subscription not in topic:
            return
        topic.remove(subscription)
        self.release(subscription.workspace)
        if subscription.complete:
            self._recent.drop(subscription.run)
        if not topic:
            del self._topics[subscription.run]

    def release(self, workspace: int) -> None:
        """Frees one place of the workspace."""
        left = self._streams.get(workspace, 0) - 1
        if left > 0:
            self._streams[workspace] = left
        else:
            self._streams.pop(workspace, None)

    def beat(self) -> None:
        for topic in self._topics.values():
            for subscription in topic:
                subscription.beat()

    def end_all(self) -> None:
        """Ends all streams, and those that are opened from now on: the server is stopping."""
        self._closing = True
        for topic in self._topics.values():
            for subscription in topic:
                subscription.end()

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Calls `observer` with what was committed, for every run. Returns a function that unsubscribes."""
        self._observers.append(observer)

        def leave() -> None:
            if observer in self._observers:
                self._observers.remove(observer)

        return leave

    def begun(self, child: Write) -> None:
        """Called when a commit of the parent has created a child run."""
        if self._observers and child.new is not None:
            items = child.items
            size = sum([item.size for item in items])
            run_id = ids.run_id(child.key, child.new.salt)
            self._notify_observers(
                EntryBatch(run_id, items, size=size, last_seq=len(items), ended=False, key=child.key)
            )

    def _notify_observers(self, batch: EntryBatch) -> None:
        for observer in tuple(self._observers):
            with attempt(logger, "run %s: an observer failed", batch.run_id):
                observer(batch)

    def publish(self, run: int, batch: EntryBatch, *, workspace: int) -> None:
        """Called once per flush and run, on the loop, after the commit."""
        if self._observers:
            self._notify_observers(batch)
        self._recent.add(run, batch, workspace=workspace)
        topic = self._topics.get(run)
        if topic is not None:
            for subscription in tuple(topic):
                subscription.push(batch)

    def notify_below(self, root: int) -> None:
        """Called when a run below this one has advanced, or its awaits have changed."""
        for subscription in self._topics.get(root, ()):
            subscription.notify_below()

    def forget(self, run: int | None = None) -> None:
        """Drops the run, or all runs, from memory. Readers continue from the log."""
        self._recent.drop(run)

    async def read(self, subscription: Subscription) -> EntryBatch | None:
        """Reads the next page of the log for a reader that is behind; None if there is nothing new."""
        await self._page_queue.take(subscription.workspace)
        after = subscription.last_seq
        page = await self._store.page(subscription.run, after=after, max_bytes=PAGE_BYTES)
        if page is None:
            subscription.behind, subscription.ended = False, True
            return None
        if not page.items and page.last_seq <= after:
            # After a restore, the log may be shorter than what the reader has: it continues from its end.
            subscription.last_seq = subscription.taken = min(after, page.upto)
            subscription.caught_up(upto=page.upto, ended=page.ended)
            return None
        first = max(page.items[0].seq, after + 1) if page.items else page.last_seq + 1
        missing = (after + 1, first - 1) if first > after + 1 else None
        subscription.last_seq = page.last_seq
        if page.last_seq >= page.upto:
            subscription.caught_up(upto=page.upto, ended=page.ended)
        ended = page.ended and page.last_seq >= page.upto
        size = sum([item.size for item in page.items])
        return EntryBatch(
            subscription.run_id,
            page.items,
            size=size,
            last_seq=page.last_seq,
            ended=ended,
            after=after,
            missing=missing,
            newer=page.format > FORMAT,
        )


class _RecentRun(Struct, eq=False, gc=False):
    workspace: int
    batches: list[EntryBatch] = []
    size: int = 0


class Recent:
    """The batches of new, short runs, so that opening the stream right after creating a run reads nothing from disk.

    A bounded cache of the log, never the only copy of anything. A run is removed once a reader has all of it: most runs
    have one reader, and memory that is reused at once stays in the CPU's caches.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[int, _RecentRun] = OrderedDict()
        self._size = 0

    def get(self, run: int) -> _RecentRun | None:
        return self._runs.get(run)

    def add(self, run: int, batch: EntryBatch, *, workspace: int) -> None:
        kept = self._runs.get(run)
        if kept is None:
            if not batch.items or batch.items[0].seq != 1:
                return
            kept = self._runs[run] = _RecentRun(workspace)
        size = batch.size
        kept.batches.append(batch)
        kept.size += size
        self._size += size
        if kept.size > MAX_RECENT_BYTES_PER_RUN:
            self.drop(run)
        while self._size > MAX_RECENT_BYTES:
            self.drop(next(iter(self._runs)))

    def drop(self, run: int | None = None) -> None:
        if run is None:
            self._runs.clear()
            self._size = 0
        elif (kept := self._runs.pop(run, None)) is not None:
            self._size -= kept.size
