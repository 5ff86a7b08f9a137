"""Limits concurrency per workspace; the rest wait for their turn."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class WorkspaceSlots:
    """`async with places.of(workspace):`"""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, workspace: int) -> asyncio.Semaphore:
        found = self._known.get(workspace)
        if found is None:
            found = self._known[workspace] = asyncio.Semaphore(self._limit)
        return found
