"""What is remembered about the tasks of A2A peers: questions that wait for an answer, and tasks to be cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, TypeAlias

from msgspec import Struct

logger = logging.getLogger(__name__)

CANCEL_S = 5.0
_REMEMBERED = 4096


class OpenTask(Struct, frozen=True):
    """A peer's task that waits for an answer."""

    id: str
    context_id: str | None


Asker: TypeAlias = tuple[str, str]
"""A run, and the tool by which it asks the peer."""


class A2ATasks:
    """Kept in memory: after a restart, the answer to a question starts a new task."""

    def __init__(self) -> None:
        self._open: OrderedDict[Asker, OpenTask] = OrderedDict()
        self._giving_up: set[asyncio.Task[None]] = set()

    def waiting(self, asker: Asker) -> OpenTask | None:
        return self._open.get(asker)

    def remember(self, asker: Asker, task: OpenTask) -> None:
        self._open[asker] = task
        self._open.move_to_end(asker)
        if len(self._open) > _REMEMBERED:
            self._open.popitem(last=False)

    def forget(self, asker: Asker) -> None:
        self._open.pop(asker, None)

    def give_up(self, cancel: Coroutine[Any, Any, object]) -> None:
        """Sends a cancellation, for which its caller, being cancelled itself, cannot wait."""
        task = asyncio.get_running_loop().create_task(_within(cancel), name="cancel an A2A task")
        self._giving_up.add(task)
        task.add_done_callback(self._giving_up.discard)

    async def aclose(self) -> None:
        if self._giving_up:
            await asyncio.wait(self._giving_up, timeout=CANCEL_S)


async def _within(cancel: Coroutine[Any, Any, object]) -> None:
    try:
        async with asyncio.timeout(CANCEL_S):
            await cancel
    except Exception as error:
        logger.info("a task of an A2A agent could not be cancelled: %s", type(error).__name__)
