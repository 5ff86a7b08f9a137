"""Observers that read the logs of an agent's runs when they have ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from weftline.agent.context import RunInfo
from weftline.store.rows import Item

FactsOf: TypeAlias = Callable[[str, Sequence[str]], Awaitable[Sequence[Item]]]
"""Returns the facts of a run, given its id and their kinds, oldest first."""


class RunObserver(Protocol):
    """An observer in `Agent.observers`, such as the one that `weftline.agent.tracing.trace` adds."""

    @property
    def traces(self) -> bool:
        """True if it emits spans of the runs."""
        ...

    async def ended(self, run: RunInfo, facts_of: FactsOf) -> None:
        """Called when a run of the agent, and all runs below it, have ended. Exceptions are logged."""
        ...
