"""Round-robin queues, so that work for one workspace does not wait for all earlier work of another."""

from __future__ import annotations

from collections import OrderedDict, deque
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

on_behalf_of: ContextVar[int | None] = ContextVar("on_behalf_of", default=None)
"""The workspace that the current work is for."""


class RoundRobin(Generic[T]):
    """A queue in which owners take turns, and the topics of an owner among themselves.

    Neither a thousand items of one topic nor a thousand topics of one owner delay the next owner by more than one turn.
    Not thread-safe.
    """

    def __init__(self) -> None:
        self._owners: OrderedDict[int | None, OrderedDict[int | None, deque[T]]] = OrderedDict()
        """In the order of turns, on both levels."""

    def __bool__(self) -> bool:
        return bool(self._owners)

    def put(self, item: T, *, owner: int | None, topic: int | None = None) -> None:
        self._owners.setdefault(owner, OrderedDict()).setdefault(topic, deque()).append(item)

    def take(self) -> T:
        """Removes and returns the next item. Raises `KeyError` if there is none."""
        owner, topics = self._owners.popitem(last=False)
        topic, items = topics.popitem(last=False)
        item = items.popleft()
        if items:
            topics[topic] = items
        if topics:
            self._owners[owner] = topics
        return item
