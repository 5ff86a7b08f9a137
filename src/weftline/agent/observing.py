"""Who reads the logs of an agent's runs when they have ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from weftline.agent.context import RunInfo
from weftline.store.base import Stored

FactsOf: TypeAlias = Callable[[str, Sequence[str]], Awaitable[Sequence[Stored]]]
"""The facts of a run, by its id, that are of these kinds, from the first on."""


class RunObserver(Protocol):
    """Made by somebody else and added to `Agent.observers`, such as `weftline.agent.tracing.trace` does."""

    @property
    def traces(self) -> bool:
        """Whether it emits spans of the runs."""
        ...

    async def ended(self, run: RunInfo, facts_of: FactsOf) -> None:
        """A run of the agent has ended, and all runs below it. What is raised is logged."""
        ...
