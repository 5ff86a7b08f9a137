"""The tools and the prompt that the current code would provide to a run, without a network, a key or anybody's deps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from weftline.plan import A2ARef, McpRef, RunPlan, ServerRef, StoredRef
from weftline.runtime.tool_calls.toolbox import EMPTY, RunName, ServerTools, Toolbox
from weftline.tools.base import Tool
from weftline.tools.builtin import builtin_tools


class PresentCode(Struct):
    """`system` are the instructions of the current agent; unset if it builds them in code, or is not here."""

    toolbox: Toolbox = EMPTY
    complete: bool = True
    """Whether these are all tools of the run. Missing ones are assumed to be unchanged."""
    system: str | UnsetType | None = UNSET
    missing: tuple[str, ...] = ()
    """The tools of the run's server that are not here."""


class CodeSource(Protocol):
    async def open(self, plan: RunPlan, run: RunName) -> PresentCode: ...


class NoAgents:
    """For runs that clients described: their tools are in their plans, except those of other servers."""

    def __init__(self, tools: Mapping[str, Tool] | None = None) -> None:
        """`tools` are those of the run's server that are available here."""
        named = {**builtin_tools(), **(tools or {})}
        self._tools = ServerTools(named)

    async def open(self, plan: RunPlan, run: RunName) -> PresentCode:
        refs = [replace(ref, name=own_name(ref)) if isinstance(ref, ServerRef) else ref for ref in plan.tools]
        toolbox = await self._tools.open(replace(plan, tools=tuple(refs)), run=run)
        missing = missing_tools(plan, toolbox)
        complete = plan.code is None and not missing and not has_remote_tools(plan)
        return PresentCode(toolbox, complete=complete, missing=missing)


def own_name(ref: ServerRef) -> str:
    """The name of a tool that may be referred to as `@file/tool-name`: the file may have another name here."""
    return ref.name.rpartition("/")[2].replace("-", "_") if ref.name.startswith("@") else ref.name


def missing_tools(plan: RunPlan, toolbox: Toolbox) -> tuple[str, ...]:
    """The tools of the run's server that a toolbox does not have."""
    refs = [ref for ref in plan.tools if isinstance(ref, ServerRef)]
    return tuple([ref.name for ref in refs if toolbox.get(own_name(ref)) is None])


def has_remote_tools(plan: RunPlan) -> bool:
    """Returns True if the plan has tools that only other servers, or a store, can resolve."""
    return any(isinstance(ref, StoredRef | A2ARef | McpRef) for ref in plan.tools)
