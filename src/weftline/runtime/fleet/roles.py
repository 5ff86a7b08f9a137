"""The needs of timers, lineage, recovery and commits from the parts that load and advance runs.

`Loader` and `Dispatcher` implement these protocols. Those two refer to the other parts in turn, so the protocols have a
module of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weftline.runtime.live import Draft, LiveRun


class RunLoader(Protocol):
    def resident(self, key: int) -> LiveRun | None:
        """The run, if it is in memory."""
        ...

    async def load(self, key: int) -> LiveRun:
        """The run in memory; a parked one is read from the store.

        Raises `NotFound`, `Conflict` for a newer run, and `StoreError` if it cannot be read.
        """
        ...

    async def load_with_retry(self, key: int) -> LiveRun:
        """Like `load`, for callers that will not retry: waits until the store can be read."""
        ...


class RunMover(Protocol):
    @property
    def stopping(self) -> bool: ...

    @property
    def halted(self) -> bool:
        """True if nothing may run: the server is stopping, or its store is held."""
        ...

    def consider(self, run: LiveRun) -> None:
        """Called after an append to a run: ends it here, wakes its driver, or schedules it."""
        ...

    def take(self, run: LiveRun, fact: Draft) -> None:
        """Appends a fact from another run, if the run still accepts it, and continues the run."""
        ...

    def fire(self, run: LiveRun, now: int) -> None:
        """Appends the current time to the run."""
        ...

    def move_up(self, run: LiveRun) -> None:
        """Called when no earlier run of its thread is left."""
        ...

    def end_by_force(self, run: LiveRun, facts: Sequence[Draft]) -> None:
        """Ends a run without its driver. The last fact is the terminal one."""
        ...
