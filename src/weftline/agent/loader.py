"""Loads the agents of a Python file, folder or module, for `weftline serve shop.agents` and `weftline chat app.py`."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from weftline.agent.agent import Agent
from weftline.agent.engine.logs import facts_around
from weftline.agent.planning.code_agents import AgentModels, code_agents
from weftline.agent.planning.plans import ChildPlans
from weftline.agent.planning.sources import AgentTools, Setup, require_durable
from weftline.api.planning import code_spec
from weftline.providers.catalog import Catalog
from weftline.runtime.clock import SystemClock
from weftline.runtime.engine import Engine
from weftline.runtime.tool_calls.toolbox import ToolSource
from weftline.tools.function import FunctionTool
from weftline.tools.loader import Project, bad_file, imported, tools_of, where

logger = logging.getLogger(__name__)


class LoadedAgents(Struct, frozen=True):
    agents: dict[str, Agent[Any, Any]]
    """By name, in the order of the code."""
    tools: dict[str, FunctionTool]


def load_agents(given: str | Path) -> LoadedAgents:
    """Returns the agents and tools of the code that a command was given; see `weftline.tools.loader.imported`.

    Agents are found under public names, or under the names in a module's `__all__`, including imported ones. An agent
    without a name is named after its variable. Tools that share a name are only available to their agents.

    Raises:
        WeftlineError: with code `bad_tools_file` and one sentence that says what is wrong.
    """
    with imported(given) as project:
        agents: dict[str, Agent[Any, Any]] = {}
        for module in project.modules:
            for variable, value in project.public(module).items():
                if not isinstance(value, Agent):
                    continue
                agent = cast("Agent[Any, Any]", value)
                if agent.name is None:
                    agent.name = variable
                if agents.setdefault(agent.name, agent) is not agent:
                    raise bad_file(f"{where(module)} has two agents named {agent.name!r}.")
        if not agents:
            raise project.without("agents", "assign a weftline.Agent to a public global name")
        of_all = project if project.only is None else Project(project.given, project.modules)
        return LoadedAgents(agents, tools_of(of_all, unique=False))


class ServedAgents:
    """The agents and tools of Python code. The agents' own model objects are added to `models`.

    Raises:
        WeftlineError: for code that cannot be served.
    """

    def __init__(self, file: LoadedAgents, models: Catalog) -> None:
        for name, agent in file.agents.items():
            require_durable(agent, name)
        self.by_name = file.agents
        self.tools = file.tools
        self._models = AgentModels(file.agents, models)
        self.setups = {name: Setup(agent) for name, agent in file.agents.items()}
        """What executes the runs of each agent."""
        now_us = SystemClock().now_us()
        self.code = code_agents(file.agents, self._models.by_agent, now_us=now_us, to_spec=code_spec)
        """What clients see of the agents."""

    def advise(self) -> None:
        """Logs which agents have a limit in US dollars that cannot hold."""
        for agent, model in self._models.unlimited(self.by_name.values()):
            logger.warning(
                "the price of the model %r is not known: max_cost_usd of the agent %r does not limit what it spends;"
                " name it under [[prices]] in the configuration",
                model,
                agent,
            )

    def source(self, others: ToolSource) -> AgentTools:
        """Returns the source of the agents' tools, in addition to those of `others`."""
        tools = AgentTools(others)
        tools.take(self.setups)
        return tools

    def connect(self, tools: AgentTools, engine: Engine) -> None:
        """Lets `tools` read the logs of the engine's runs and start runs of subagents."""
        tools.facts_around = partial(facts_around, engine)
        tools.engine = engine
        tools.planner = self.planner(engine)

    def planner(self, engine: Engine) -> ChildPlans:
        """Returns what makes the plans of subagents' runs."""
        return ChildPlans(model_id=self._models.of_child, engine=engine)
