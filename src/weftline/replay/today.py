"""What this code would bring to a run: today's tools and prompt, without a network, a key or anybody's deps."""

from __future__ import annotations

from typing import Protocol

from msgspec import UNSET, Struct, UnsetType

from weftline.plan import A2ARef, McpRef, RunPlan, StoredRef
from weftline.runtime.toolbox import EMPTY, RunName, ServerTools, Toolbox
from weftline.tools.builtin import builtin_tools


class Known(Struct):
    """`system` are the instructions of today's agent; unset if it makes them by code, or is not here."""

    toolbox: Toolbox = EMPTY
    complete: bool = True
    """Whether these are all tools of the run. What is not here is taken to be as it was."""
    system: str | UnsetType | None = UNSET


class Today(Protocol):
    async def open(self, plan: RunPlan, run: RunName) -> Known: ...


class NoAgents:
    """Of runs that clients described: their tools are in their plans, except for those of other servers."""

    def __init__(self) -> None:
        self._tools = ServerTools(builtin_tools())

    async def open(self, plan: RunPlan, run: RunName) -> Known:
        toolbox = await self._tools.open(plan, run=run)
        return Known(toolbox, complete=plan.code is None and not has_tools_elsewhere(plan))


def has_tools_elsewhere(plan: RunPlan) -> bool:
    """Whether only other servers, or a store, could tell what tools the plan names."""
    return any(isinstance(ref, StoredRef | A2ARef | McpRef) for ref in plan.tools)
