"""The tools and prompts of agents for a replay: without connections, deps or hooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from weftline.agent.agent_tools import is_toolset
from weftline.agent.definition import Definition
from weftline.agent.engine.open_toolsets import Notify, OpenToolsets
from weftline.agent.planning.sources import AgentTools, Setup
from weftline.agent.skills.toolset import Skills
from weftline.plan import RunPlan
from weftline.replay.present_code import NoAgents, PresentCode, has_remote_tools, missing_tools
from weftline.runtime.tool_calls.toolbox import RunName
from weftline.tools.base import Tool, Toolset


class AgentsToday:
    """Implements `weftline.replay.present_code.CodeSource` with the agents of this process, by name."""

    def __init__(self, agents: Iterable[Definition[Any, Any]], *, tools: Mapping[str, Tool] | None = None) -> None:
        self._tools = _OfflineTools()
        self._others = NoAgents(tools)
        for agent in agents:
            if agent.name is not None:
                self._tools.register(agent.name, Setup(agent, deps=None))

    async def open(self, plan: RunPlan, run: RunName) -> PresentCode:
        if plan.code is None:
            return await self._others.open(plan, run)
        name = self._tools.registered(plan.code)
        if name is None:
            return PresentCode(complete=False)
        return await self._tools.present(name, plan, run)


class _OfflineTools(AgentTools):
    def __init__(self) -> None:
        super().__init__()
        self._opened = _OnlySkills()

    def registered(self, code: str) -> str | None:
        """Returns the name of the registered agent for a code name, which has a number appended for a run in memory."""
        plain, _, number = code.rpartition(" ")
        return code if code in self.agents else plain if number.isdigit() and plain in self.agents else None

    async def present(self, name: str, plan: RunPlan, run: RunName) -> PresentCode:
        agent, found = self.agents[name], None
        for step in plan.path:
            found = await self._subagent(agent, step)
            if found is None:
                return PresentCode(complete=False)
            agent = found.agent or agent
        toolbox = await self.open(replace(plan, code=name), run=run)
        outside = [one for one in agent.tools if is_toolset(one) and not isinstance(one, Skills)]
        # A subagent without an agent of its own may have been given other instructions.
        own = found is None or found.agent is not None
        words = agent.instructions
        system = words if own and (words is None or isinstance(words, str)) else UNSET
        missing = missing_tools(plan, toolbox)
        complete = not outside and not missing and not has_remote_tools(plan)
        return PresentCode(toolbox, complete=complete, system=system, missing=missing)

    async def _walk(self, setup: Setup, path: Sequence[str]) -> tuple[Setup, frozenset[str] | None, bool]:
        found, only, _ = await super()._walk(setup, path)
        return Setup(found.agent, deps=None, behavior=found.behavior), only, False  # replays are not observed


class _OnlySkills(OpenToolsets):
    """Opens skills only, since they are files. Other toolsets may need a connection."""

    async def warm(self, toolsets: Iterable[Toolset], notify: Notify) -> None:
        """Does nothing: skills are opened when their tools are needed."""

    async def tools(self, toolset: Toolset) -> Sequence[Tool]:
        return await super().tools(toolset) if isinstance(toolset, Skills) else ()
