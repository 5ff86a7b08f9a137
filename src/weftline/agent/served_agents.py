"""The agents in Python that a server serves. A server without any does not load this module."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from weftline.agent.engine.listing import facts_around
from weftline.agent.loader import load_agents
from weftline.agent.planning.child_plans import ChildPlans
from weftline.agent.planning.code_agents import AgentModels, code_agents
from weftline.agent.planning.sources import AgentTools, Setup, require_durable
from weftline.api.agent_specs import code_spec
from weftline.providers.catalog import Catalog
from weftline.runtime.clock import SystemClock
from weftline.runtime.engine import Engine
from weftline.runtime.tool_calls.toolbox import ToolSource

logger = logging.getLogger(__name__)


class ServedAgents:
    """The agents and tools of Python code. The agents' own model objects are added to `models`.

    Raises:
        WeftlineError: for code that cannot be served.
    """

    def __init__(self, given: str | Path, models: Catalog) -> None:
        file = load_agents(given)
        for name, agent in file.agents.items():
            require_durable(agent, name)
        self.by_name = file.agents
        self.tools = file.tools
        self._models = AgentModels(file.agents, models)
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
        for name, agent in self.by_name.items():
            tools.register(name, Setup(agent))
        return tools

    def connect(self, tools: AgentTools, engine: Engine) -> None:
        """Lets `tools` read the logs of the engine's runs and start runs of subagents."""
        tools.facts_around = partial(facts_around, engine)
        tools.planner = ChildPlans(model_id=self._models.of_child, check=engine.check)
