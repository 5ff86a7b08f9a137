"""Taking turns: the only place for fairness between workspaces (owners).

RoundRobin      what waits, in the order in which it is served
Places          how many may be under way, in all and of one owner
Turns           the two together: what waits until its owner has a place
FairSemaphore   `Turns` for tasks
LoopQueue       one task per iteration of the event loop
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

on_behalf_of: ContextVar[int | None] = ContextVar("on_behalf_of", default=None)
"""The workspace that the current work is for."""


class Caller(Protocol):
    """Whoever waits for the current work, if they may go away before it is done.

    Work that has begun is finished for a caller who is gone, so that it does not depend on how quickly somebody leaves.
    Only a wait that may be long looks here.
    """

    def then(self, call: Callable[[], object]) -> None:
        """Calls `call` when the caller goes away, or at once if it has."""
        ...


current_caller: ContextVar[Caller | None] = ContextVar("current_caller", default=None)


class RoundRobin(Generic[T]):
    """A queue in which owners take turns, and the topics of an owner among themselves.

    Neither a thousand items of one topic nor a thousand topics of one owner delay the next owner by more than one turn.
    An item is known by its identity, and waits at most once. Not thread-safe.
    """

    def __init__(self) -> None:
        self._owners: OrderedDict[Hashable, OrderedDict[Hashable, OrderedDict[int, T]]] = OrderedDict()
        """In the order of turns, on all levels."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        """All items, owner by owner."""
        for topics in self._owners.values():
            for items in topics.values():
                yield from items.values()

    @property
    def owners(self) -> list[Hashable]:
        """Those with something that waits, in the order of turns."""
        return list(self._owners)

    def waiting(self, owner: Hashable) -> int:
        """How many items of an owner wait."""
        topics = self._owners.get(owner)
        return 0 if topics is None else sum([len(items) for items in topics.values()])

    def first(self, owner: Hashable) -> T:
        """Returns the item of an owner whose turn is next, without removing it."""
        items = next(iter(self._owners[owner].values()))
        return next(iter(items.values()))

    def put(self, item: T, *, owner: Hashable, topic: Hashable = None) -> None:
        self._owners.setdefault(owner, OrderedDict()).setdefault(topic, OrderedDict())[id(item)] = item
        self._size += 1

    def take(self, may: Callable[[Hashable], bool] | None = None) -> T:
        """Removes and returns the next item, of the first owner who `may`. Raises `KeyError` if there is none."""
        if may is None:
            owner, topics = self._owners.popitem(last=False)
        else:
            owner = next((one for one in self._owners if may(one)), _NOBODY)
            topics = self._owners.pop(owner)
        topic, items = topics.popitem(last=False)
        _, item = items.popitem(last=False)
        if items:
            topics[topic] = items
        if topics:
            self._owners[owner] = topics
        self._size -= 1
        return item

    def withdraw(self, item: T, *, owner: Hashable, topic: Hashable = None) -> bool:
        """Removes an item; returns False if it does not wait."""
        topics = self._owners.get(owner)
        items = topics.get(topic) if topics is not None else None
        if items is None or items.pop(id(item), None) is None:
            return False
        self._drop_empty(owner, topic)
        return True

    def take_last(self, owner: Hashable) -> T:
        """Removes and returns the item of an owner that came last to the topic whose turn is last."""
        topics = self._owners[owner]
        topic, items = next(reversed(topics.items()))
        _, item = items.popitem()
        self._drop_empty(owner, topic)
        return item

    def withdraw_all(self, owner: Hashable) -> list[T]:
        """Removes and returns all items of an owner."""
        topics = self._owners.pop(owner, None)
        found = [] if topics is None else [item for items in topics.values() for item in items.values()]
        self._size -= len(found)
        return found

    def _drop_empty(self, owner: Hashable, topic: Hashable) -> None:
        """Counts one item less of a topic, and drops what has none left."""
        self._size -= 1
        topics = self._owners[owner]
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._owners[owner]


_NOBODY = object()


class Places:
    """Counts what is under way: at most `limit` in all and `per_owner` of one owner; None is no limit."""

    def __init__(self, limit: int | None = None, *, per_owner: int | None = None) -> None:
        self.limit = limit
        self.per_owner = per_owner
        self.taken = 0
        self._by_owner: Counter[Hashable] = Counter()

    def of(self, owner: Hashable) -> int:
        return self._by_owner[owner]

    def has_room(self, owner: Hashable) -> bool:
        return (self.limit is None or self.taken < self.limit) and (
            self.per_owner is None or self._by_owner[owner] < self.per_owner
        )

    def add(self, owner: Hashable) -> None:
        self._by_owner[owner] += 1
        self.taken += 1

    def remove(self, owner: Hashable) -> None:
        self.taken -= 1
        self._by_owner[owner] -= 1
        if not self._by_owner[owner]:
            del self._by_owner[owner]


class Turns(Generic[T]):
    """Items that wait until their owner has a place.

    turns.queue.put(item, owner=workspace)
    while (admitted := turns.admit()) is not None:
        begin(admitted)
    ...
    turns.places.remove(workspace)  # when it has ended; then admit again
    """

    def __init__(
        self, owner_of: Callable[[T], Hashable], *, limit: int | None = None, per_owner: int | None = None
    ) -> None:
        self._owner_of = owner_of
        self.queue: RoundRobin[T] = RoundRobin()
        self.places = Places(limit, per_owner=per_owner)

    def admit(self) -> T | None:
        """Gives the next item a place; returns None if nothing waits, or whoever waits has no room."""
        try:
            item = self.queue.take(self.places.has_room)
        except KeyError:
            return None
        self.places.add(self._owner_of(item))
        return item


class FairSemaphore:
    """A semaphore with `limit` places, `per_owner` for one owner, who is not held up by floods of others."""

    def __init__(self, limit: int | None = None, *, per_owner: int | None = None) -> None:
        self._turns: Turns[_Turn] = Turns(lambda turn: turn.owner, limit=limit, per_owner=per_owner)

    def is_full(self, owner: Hashable) -> bool:
        """Whether `owner` would have to wait."""
        return not self._turns.places.has_room(owner)

    def waiting(self, owner: Hashable = None) -> int:
        """How many wait, of one owner or in all."""
        return len(self._turns.queue) if owner is None else self._turns.queue.waiting(owner)

    @asynccontextmanager
    async def place(self, owner: Hashable) -> AsyncGenerator[None]:
        await self.acquire(owner)
        try:
            yield
        finally:
            self.release(owner)

    async def acquire(self, owner: Hashable) -> None:
        # Whoever waits while there is room waits for a place of their own, so that nobody is overtaken here.
        if not self.is_full(owner):
            self._turns.places.add(owner)
            return
        turn = _Turn(owner)
        self._turns.queue.put(turn, owner=owner)
        try:
            await turn.came
        except asyncio.CancelledError:
            self._turns.queue.withdraw(turn, owner=owner)
            if turn.came.done() and not turn.came.cancelled() and turn.came.exception() is None:
                self.release(owner)  # it was our turn, and we will not use it
            raise

    def release(self, owner: Hashable) -> None:
        self._turns.places.remove(owner)
        while (turn := self._turns.admit()) is not None:
            if turn.came.done():  # cancelled, and its task has not run yet
                self._turns.places.remove(turn.owner)
            else:
                turn.came.set_result(None)

    def turn_away(self, error: Exception, *, more_than: int) -> bool:
        """Raises `error` for the last one in the longest line, if that is longer than `more_than`."""
        queue = self._turns.queue
        owner = max(queue.owners, key=queue.waiting)
        if queue.waiting(owner) <= more_than:
            return False
        turn = queue.take_last(owner)
        if not turn.came.done():
            turn.came.set_exception(error)
        return True


class _Turn:
    __slots__ = ("came", "owner")

    def __init__(self, owner: Hashable) -> None:
        self.owner = owner
        self.came: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class LoopQueue:
    """One piece of work per iteration of the event loop, workspace by workspace.

    Reading a page of a log takes the loop up to a millisecond. A thousand readers that all want one would be served
    before anyone else; here each waits for its turn, and a workspace with many readers waits longer than one with few.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: RoundRobin[asyncio.Future[None]] = RoundRobin()
        self._taken = False
        """Whether this loop iteration is already taken."""

    async def take(self, workspace: int) -> None:
        """Returns when it is this workspace's turn; at once if the loop iteration is still free."""
        if not self._taken:
            self._taken = True
            self._loop.call_soon(self._next)
            return
        turn = self._loop.create_future()
        self._waiting.put(turn, owner=workspace)
        await turn

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.take()
            if not turn.done():
                turn.set_result(None)
                self._loop.call_soon(self._next)
                return
        self._taken = False
