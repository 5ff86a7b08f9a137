"""A process's own agents, as its server offers them to clients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.json import encode

from weftline.agent.child_plans import subagents_of
from weftline.agent.definition import Definition
from weftline.agent.plans import client_plan
from weftline.errors import InvalidRequest
from weftline.providers.base import Provider
from weftline.providers.catalog import Catalog
from weftline.workspace.code_agents import CodeAgent, CodeAgents


def code_agents(
    agents: Mapping[str, Definition[Any, Any]], models: Mapping[str, str | None], *, now_us: int
) -> CodeAgents:
    """What clients see of agents, by the names they are registered under. `models` are the ids of their models.

    Raises:
        WeftlineError: for a name that a client could not send, and for two that are the same in a URL.
    """
    return CodeAgents([_code_agent(name, agent, models[name]) for name, agent in agents.items()], now_us=now_us)


class AgentModels:
    """The ids of the models of agents and of those below them.

    One that is an object becomes a provider of the catalog: `agent-<name>`, and `agent-<name>.<tool>` for a subagent's.
    """

    def __init__(self, agents: Mapping[str, Definition[Any, Any]], catalog: Catalog) -> None:
        self._catalog = catalog
        self._named: dict[int, tuple[Provider, str]] = {}
        """By the id of an object: the object, which keeps the id its own, and what the catalog calls it."""
        for name, agent in agents.items():
            self._offer(agent, name)
        self.by_agent = {name: self._id(agent.model) for name, agent in agents.items()}

    async def of_child(self, agent: Definition[Any, Any], code: str) -> str | None:
        """For `ChildPlans`. Raises `InvalidRequest` for an object of an agent that was not there from the beginning."""
        return self._id(agent.present_model)

    def _offer(self, agent: Definition[Any, Any], name: str) -> None:
        if agent.model is not None and not isinstance(agent.model, str):
            # Under each of its names: a run that the last process began may have another than this one would give it.
            self._catalog.add(agent.model, name=f"agent-{name}")
            self._named.setdefault(id(agent.model), (agent.model, f"agent-{name}"))
        for tool, below in subagents_of(agent).items():
            self._offer(below, f"{name}.{tool}")

    def _id(self, model: str | Provider | None) -> str | None:
        if model is None or isinstance(model, str):
            return model
        known = self._named.get(id(model))
        if known is None:
            raise InvalidRequest("The model of this subagent is an object that the server does not know: name a model.")
        return f"provider:{known[1]}"


def _code_agent(name: str, agent: Definition[Any, Any], model: str | None) -> CodeAgent:
    output = agent.output_type
    spec: dict[str, object] = {} if model is None else {"modelId": model}
    if isinstance(agent.instructions, str):
        spec["systemPrompt"] = agent.instructions
    if output is not None:
        spec["outputSchema"] = {"name": output.schema.name, "schema": output.schema.schema}
    return CodeAgent(
        name=name,
        description=agent.description,
        spec=encode(spec),
        plan=partial(client_plan, agent, code=name, model=model),
    )
