"""The agents defined in this process, as its server offers them to clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from weftline.agent.definition import Definition
from weftline.agent.planning.plans import client_plan, subagents_of
from weftline.errors import InvalidRequest
from weftline.providers.base import Provider
from weftline.providers.catalog import Catalog
from weftline.workspace.code_agents import CodeAgent, CodeAgents


def code_agents(
    agents: Mapping[str, Definition[Any, Any]],
    models: Mapping[str, str | None],
    *,
    now_us: int,
    to_spec: Callable[[CodeAgent], bytes],
) -> CodeAgents:
    """Returns what clients see of agents, by the names they are registered under. `models` are the ids of their models.

    `to_spec` writes it down in the clients' form.

    Raises:
        WeftlineError: for a name that clients could not send, and for two names that are the same in a URL.
    """
    found = [_code_agent(name, agent, models[name]) for name, agent in agents.items()]
    return CodeAgents(found, now_us=now_us, to_spec=to_spec)


class AgentModels:
    """The model ids of agents and their subagents.

    A model that is an object becomes a provider of the catalog: `agent-<name>`, or `agent-<name>.<tool>` for a
    subagent.
    """

    def __init__(self, agents: Mapping[str, Definition[Any, Any]], catalog: Catalog) -> None:
        self._catalog = catalog
        self._named: dict[int, tuple[Provider, str]] = {}
        """By the object's `id()`: the object, kept alive so that its id stays unique, and its name in the catalog."""
        for name, agent in agents.items():
            self._offer(agent, name)
        self.by_agent = {name: self._id(agent.model) for name, agent in agents.items()}

    def unlimited(self, agents: Iterable[Definition[Any, Any]]) -> list[tuple[str, str]]:
        """Returns agents with a limit in US dollars that cannot hold, and the models whose price is unknown."""
        found: list[tuple[str, str]] = []
        for agent in agents:
            if agent.limits.max_cost_usd is not None:
                unpriced = self._catalog.unpriced([self._id(agent.model), *agent.fallbacks])
                found += [(agent.name or "", model) for model in unpriced]
            found += self.unlimited(subagents_of(agent).values())
        return list(dict.fromkeys(found))

    async def of_child(self, agent: Definition[Any, Any], code: str) -> str | None:
        """Returns the model of a child, for `ChildPlans`.

        Raises `InvalidRequest` for a model object of an agent that was not known from the beginning.
        """
        return self._id(agent.present_model)

    def _offer(self, agent: Definition[Any, Any], name: str) -> None:
        if agent.model is not None and not isinstance(agent.model, str):
            # Under each of its names: runs of an earlier process may use another name than this process would choose.
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
    return CodeAgent(
        name=name,
        description=agent.description,
        model=model,
        instructions=agent.instructions if isinstance(agent.instructions, str) else None,
        output=None if agent.output_type is None else agent.output_type.schema,
        plan=partial(client_plan, agent, code=name, model=model),
        threads=agent.on_thread,
    )
