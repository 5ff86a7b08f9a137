"""Loads the agents of a Python file, folder or module, for `weftline serve shop.agents` and `weftline chat app.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from weftline.agent.agent import Agent
from weftline.tools.function import FunctionTool
from weftline.tools.loader import Project, bad_file, imported, tools_of, where


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
