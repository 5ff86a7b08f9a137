"""Taking turns: what is done for one workspace does not wait until everything is done that another asked for first."""

from __future__ import annotations

from collections import OrderedDict, deque
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

on_behalf_of: ContextVar[int | None] = ContextVar("on_behalf_of", default=None)
"""The workspace whose work this is."""


class RoundRobin(Generic[T]):
    """A queue in which owners take turns, and the topics of an owner among themselves.

    Neither a thousand things about one topic nor a thousand topics of one owner hold up the next owner for more than
    one turn. Not safe for threads.
    """

    def __init__(self) -> None:
        self._owners: OrderedDict[int | None, OrderedDict[int | None, deque[T]]] = OrderedDict()
        """The one whose turn it is first, on both levels."""

    def put(self, item: T, *, owner: int | None, topic: int | None = None) -> None:
        self._owners.setdefault(owner, OrderedDict()).setdefault(topic, deque()).append(item)

    def take(self) -> T:
        """Raises `KeyError` if there is nothing."""
        owner, topics = self._owners.popitem(last=False)
        topic, items = topics.popitem(last=False)
        item = items.popleft()
        if items:
            topics[topic] = items
        if topics:
            self._owners[owner] = topics
        return item
