"""Replays runs with the agents of this process, for an engine, a command or a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from weftline.agent.agent_tools import is_toolset
from weftline.agent.definition import Definition
from weftline.agent.planning.sources import AgentTools, Setup
from weftline.agent.running.deps import Notify, OpenToolsets
from weftline.agent.skills.toolset import Skills
from weftline.plan import RunPlan
from weftline.replay.format import Offered
from weftline.replay.present_code import CodeSource, NoAgents, PresentCode, has_remote_tools, missing_tools
from weftline.replay.reading import read_export
from weftline.replay.recorded import Recorded, recorded_in_file, recorded_in_store
from weftline.replay.refusing import find_run
from weftline.replay.replaying import Replayed, offered_now, replay_runs
from weftline.runtime.tool_calls.toolbox import RunName
from weftline.store.base import LogReader
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


def today(agents: Iterable[Definition[Any, Any]] | None, *, tools: Mapping[str, Tool] | None = None) -> CodeSource:
    """`tools` are the server's tools that runs described by clients may name."""
    return NoAgents(tools) if agents is None else AgentsToday(agents, tools=tools)


async def replay_stored(
    log: LogReader, run_id: str, *, workspace: int, agents: Iterable[Definition[Any, Any]]
) -> Replayed:
    """Replays a stored run. Raises `NotFound`, or `Conflict` for a run that has not ended or is incomplete."""
    row = await find_run(log, run_id, workspace=workspace)
    return await replay_runs(await recorded_in_store(log, row), today(agents))


async def replay_file(path: Path, *, agents: Iterable[Definition[Any, Any]] | None) -> Replayed:
    """Replays the runs of an exported file. Raises `InvalidRequest` (`bad_export`)."""
    return await replay_runs(recorded_in_file(read_export(path)), today(agents))


async def offers(runs: Iterable[Recorded], now: CodeSource) -> dict[str, Offered]:
    """Returns what each run's models would be offered, by run."""
    return {recorded.run_id: await offered_now(recorded, now) for recorded in runs}
