"""Loads the agents of a Python file, for `weftline serve app.py` and `weftline chat app.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from weftline.agent.agent import Agent
from weftline.tools.function import FunctionTool
from weftline.tools.loader import bad_file, imported_file, tools_of


class AgentsFile(Struct, frozen=True):
    agents: dict[str, Agent[Any, Any]]
    """By name, in the order of the file."""
    tools: dict[str, FunctionTool]


def load_agents_file(path: str | Path) -> AgentsFile:
    """Imports a Python file and returns the agents and tools among its global names.

    Agents are found under public names, or under the names in the file's `__all__`, including imported ones. An agent
    without a name is named after its variable. Tools that share a name are only available to their agents. The file may
    import its neighbours, as a script may.

    Raises:
        WeftlineError: with code `bad_tools_file` and one sentence that says what is wrong.
    """
    folder = str(Path(path).expanduser().resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with imported_file(path) as module:
        agents: dict[str, Agent[Any, Any]] = {}
        exported: object = getattr(module, "__all__", None)
        for variable, value in vars(module).items():
            public = variable in exported if isinstance(exported, list | tuple) else not variable.startswith("_")
            if not isinstance(value, Agent) or not public:
                continue
            agent = cast("Agent[Any, Any]", value)
            if agent.name is None:
                agent.name = variable
            if agents.setdefault(agent.name, agent) is not agent:
                raise bad_file(f"{module.__file__} has two agents named {agent.name!r}.")
        if not agents:
            raise bad_file(f"{module.__file__} has no agents: assign a weftline.Agent to a public global name.")
        return AgentsFile(agents, tools_of(module, unique=False))
