"""The tasks of A2A peers: questions that wait for an answer, and tasks to be cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, MutableMapping
from typing import Any

import msgspec
from msgspec import Struct

logger = logging.getLogger(__name__)

CANCEL_S = 5.0


class OpenTask(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A peer's task that waits for an answer. The run remembers it, even after a restart."""

    id: str
    context_id: str | None = None


class OpenTasks:
    """The open tasks of one run, in its state."""

    def __init__(self, memory: MutableMapping[str, Any], *, tool: str) -> None:
        self._memory = memory
        self._key = f"weftline:a2a:{tool}"

    def waiting(self) -> OpenTask | None:
        try:
            return msgspec.convert(self._memory.get(self._key), OpenTask | None)
        except msgspec.ValidationError:  # written by something else
            return None

    def remember(self, task: OpenTask) -> None:
        self._memory[self._key] = msgspec.to_builtins(task)

    def forget(self) -> None:
        self._memory.pop(self._key, None)


class Cancellations:
    """Sends cancellations on behalf of callers that cannot wait because they are cancelled themselves."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[None]] = set()

    def send(self, cancel: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(_within(cancel), name="cancel an A2A task")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def aclose(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CANCEL_S)


async def _within(cancel: Coroutine[Any, Any, object]) -> None:
    try:
        async with asyncio.timeout(CANCEL_S):
            await cancel
    except Exception as error:
        logger.info("a task of an A2A agent could not be cancelled: %s", type(error).__name__)
