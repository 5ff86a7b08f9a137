"""Where the tools and the code of agents' runs come from: the agents that this process knows, by name."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeGuard, cast

from weftline.agent.calling import Hook, Hooks
from weftline.agent.code import AgentCode, Planner
from weftline.agent.context import RunInfo
from weftline.agent.definition import AgentTool, Definition
from weftline.agent.subagents import Subagent
from weftline.errors import Conflict, InvalidRequest
from weftline.kernel.entries import Parent
from weftline.plan import RunPlan
from weftline.runtime.toolbox import RunName, ServerTools, Toolbox, ToolSource
from weftline.tools.base import Tool, Toolset
from weftline.tools.function import tool as make_tool

logger = logging.getLogger(__name__)

NO_DEPS = object()


class Setup:
    """What one run, or all runs of a name, are carried by."""

    def __init__(self, agent: Definition[Any, Any], *, deps: object = NO_DEPS, hooks: Sequence[Hook[Any]] = ()) -> None:
        self.agent = agent
        self.deps = deps
        self.hooks = tuple(hooks)


class AgentTools:
    """The tools of agents, besides those of `others`."""

    def __init__(self, others: ToolSource | None = None) -> None:
        self.others: ToolSource = others or ServerTools({})
        self._setups: dict[str, Setup] = {}
        self._opened: dict[int, tuple[Toolset, Sequence[Tool]]] = {}
        self.running: dict[str, AgentCode] = {}
        """By run: the code of those that are in memory."""
        self.planner: Planner | None = None
        """Makes the plans of subagents' runs."""

    def register(self, name: str, setup: Setup) -> None:
        present = self._setups.get(name)
        if present is not None and present.agent is not setup.agent:
            raise Conflict(f"There are two agents named {name!r}.")
        self._setups[name] = setup

    def forget(self, name: str) -> None:
        self._setups.pop(name, None)

    def find(self, name: str) -> Definition[Any, Any] | None:
        setup = self._setups.get(name)
        return None if setup is None else setup.agent

    @property
    def agents(self) -> dict[str, Definition[Any, Any]]:
        """By the name that they are registered under."""
        return {name: setup.agent for name, setup in self._setups.items()}

    async def close(self) -> None:
        opened, self._opened = list(self._opened.values()), {}
        for toolset, _ in opened:
            await toolset.close()

    # As `ToolSource`

    def knows(self, plan: RunPlan) -> bool:
        return plan.code is None or plan.code in self._setups

    async def check(self, plan: RunPlan, *, workspace: int) -> None:
        await self.others.check(plan, workspace=workspace)
        agent = None if plan.code is None else self.find(plan.code)
        own = set[str]() if agent is None else {as_tool(one).spec.name for one in agent.tools if not is_toolset(one)}
        for index, ref in enumerate(plan.tools):
            # What is only known when it is opened is found out then.
            name = getattr(ref, "name", None)
            if name in own:
                raise InvalidRequest(f"tools[{index}].name: the agent {plan.code!r} has a tool {name!r} of its own.")

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        base = await self.others.open(plan, run=run, secrets=secrets)
        if plan.code is None:
            return base
        setup = self._setups[plan.code]
        agent = setup.agent
        parent = run.parent
        above = self._above(parent)
        resources = AsyncExitStack()
        tools, deps, problem = dict[str, Tool](base.tools), None, ""
        info = RunInfo(id=run.id)
        try:
            agent, only = await self._walk(setup.agent, plan.path)
            if agent is not setup.agent:
                setup = Setup(agent)
            info = RunInfo(
                id=run.id,
                agent=agent.name,
                thread_id=run.session_id,
                workspace=run.workspace_slug,
                metadata=plan.metadata,
                parent=None if parent is None else parent.run,
                depth=0 if parent is None else parent.depth,
            )
            await self._add(agent.tools, tools)
            if only is not None:
                tools = {name: tool for name, tool in tools.items() if name in only}
            if above and setup.deps is NO_DEPS and isinstance(agent.deps, type):
                deps = above[0].context.deps  # there is no other way to give it any
            else:
                deps = await _deps(setup, info, resources)
        except Exception as error:
            # The same would happen in the next try: the run ends with it, and the error is in its log.
            logger.exception("run %s: what the agent %s needs could not be made", run.id, plan.code)
            problem = f"What the agent needs could not be made: {type(error).__name__}: {error}"
        code = AgentCode(
            info,
            hooks=Hooks([*agent.hooks, *setup.hooks]),
            output=None if plan.output_schema is None else agent.output_type,
            instructions=None if isinstance(agent.instructions, str) or plan.system is not None else agent.instructions,
            deps=deps,
            resources=resources,
            problem=problem,
            plan=plan,
            planner=self.planner,
            above=above,
            on_left=self._left,
        )
        self.running[run.id] = code
        return Toolbox(tools, code=code)

    def _above(self, parent: Parent | None) -> tuple[AgentCode, ...]:
        """The code of the runs above a child, the nearest first."""
        code = None if parent is None else self.running.get(parent.run)
        return () if code is None else (code, *code.above)

    async def _walk(
        self, agent: Definition[Any, Any], path: Sequence[str]
    ) -> tuple[Definition[Any, Any], frozenset[str] | None]:
        """The agent that a path of subagents leads to, and which of its tools it has; None for all."""
        only: frozenset[str] | None = None
        for step in path:
            tools: dict[str, Tool] = {}
            await self._add(agent.tools, tools)
            found = tools.get(step)
            if not isinstance(found, Subagent):
                raise LookupError(f"the agent {agent.name or 'above'} has no subagent {step!r} any more")
            if found.agent is not None:
                agent, only = found.agent, None
            elif found.only is not None:
                only = found.only if only is None else only & found.only
        return agent, only

    def _left(self, code: AgentCode) -> None:
        if self.running.get(code.info.id) is code:  # the run may be back in memory, with code of its own
            del self.running[code.info.id]

    async def _add(self, given: Sequence[AgentTool], tools: dict[str, Tool]) -> None:
        for one in given:
            for found in await self._tools_of(one):
                name = found.spec.name
                if name in tools:
                    raise Conflict(f"Two tools of the agent are named {name!r}.")
                tools[name] = found

    async def _tools_of(self, one: AgentTool) -> Sequence[Tool]:
        if is_toolset(one):
            known = self._opened.get(id(one))
            if known is None:
                known = self._opened[id(one)] = (one, await one.open())
            return known[1]
        return (as_tool(one),)


def require_durable(agent: Definition[Any, Any], name: str) -> None:
    """Raises `InvalidRequest` for an agent whose runs the next process could not carry on."""
    if isinstance(agent.deps, type):
        raise InvalidRequest(
            f"The deps of the agent {name!r} are a type. Values cannot be stored: give a factory that makes them."
        )


def as_tool(one: AgentTool) -> Tool:
    """A tool as it is; a function is made one, once."""
    if hasattr(one, "spec") and hasattr(one, "prepare"):
        return cast("Tool", one)
    if inspect.isroutine(one):
        made = _MADE.get(one)
        if made is None:
            made = _MADE[one] = make_tool(one)
        return made
    raise TypeError(f"{one!r} is neither a tool nor a function")


_MADE: dict[Callable[..., Any], Tool] = {}


def is_toolset(one: AgentTool) -> TypeGuard[Toolset]:
    return hasattr(one, "open") and hasattr(one, "close") and not hasattr(one, "spec")


async def _deps(setup: Setup, info: RunInfo, resources: AsyncExitStack) -> object:
    if setup.deps is not NO_DEPS:
        return setup.deps
    factory = setup.agent.deps
    if factory is None or isinstance(factory, type):
        return None
    return await resources.enter_async_context(factory(info))
