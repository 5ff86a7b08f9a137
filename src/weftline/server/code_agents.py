"""A process's own agents, as its server offers them to clients."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.json import encode

from weftline.agent.definition import Definition
from weftline.agent.plans import asked_by_client
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


def models_of(agents: Mapping[str, Definition[Any, Any]], catalog: Catalog) -> dict[str, str | None]:
    """The ids of agents' models. One that is an object becomes a provider of the catalog, `agent-<name>`."""
    return {name: _model_id(name, agent.model, catalog) for name, agent in agents.items()}


def _code_agent(name: str, agent: Definition[Any, Any], model: str | None) -> CodeAgent:
    output = agent.output_type
    shown: dict[str, object] = {} if model is None else {"modelId": model}
    if isinstance(agent.instructions, str):
        shown["systemPrompt"] = agent.instructions
    if output is not None:
        shown["outputSchema"] = {"name": output.schema.name, "schema": output.schema.schema}
    return CodeAgent(
        name=name,
        description=agent.description,
        spec=encode(shown),
        plan=partial(asked_by_client, agent, code=name, model=model),
    )


def _model_id(name: str, model: str | Provider | None, models: Catalog) -> str | None:
    if model is None or isinstance(model, str):
        return model
    models.add(model, name=f"agent-{name}")
    return f"provider:agent-{name}"
