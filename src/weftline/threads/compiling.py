"""Makes agents of the definitions of a folder: the same `Agent` that code would define."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

from weftline.agent.agent import Agent
from weftline.agent.context import RunContext
from weftline.agent.hooking.calling import Hook
from weftline.agent.hooks import BeforeModel, SystemRendered
from weftline.agent.settings import Settings
from weftline.agent.skills.toolset import Skills, skills
from weftline.errors import Issue
from weftline.net.dial import Dialer
from weftline.net.egress import egress_from
from weftline.providers.base import Provider
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider
from weftline.providers.scripts import load_scripts
from weftline.threads.definitions.agents import AgentDefinition
from weftline.threads.definitions.base import DefinitionError, alias_of
from weftline.threads.definitions.handlers import ToolDefinition
from weftline.threads.definitions.models import ModelDefinition
from weftline.threads.definitions.prompts import (
    LEVEL_OF,
    PromptDefinition,
    PromptEnvPart,
    PromptIncludePart,
    PromptTextPart,
    PromptToolConfig,
    entry_name,
)
from weftline.threads.opening import AgentThreads
from weftline.threads.packages import is_packed
from weftline.threads.registry import Registry, is_external
from weftline.threads.state import LiveThread
from weftline.threads.tools import ThreadTool
from weftline.tools.builtin import builtin_tools
from weftline.tools.builtin.fetch import fetch_tool
from weftline.tools.function import FunctionTool

SCRIPTED = ("test", "scripted")
"""The providers that play a script."""


def agents_of(
    registry: Registry, models: Catalog, *, scripts: Path | None = None, pages: Dialer | None = None
) -> dict[str, Agent[Any, Any]]:
    """Returns the agents that a person can talk to, by name; see `Project.agents`."""
    played = None if scripts is None else ScriptedProvider(load_scripts(scripts))
    return Compiler(registry, models, scripts=played, pages=pages).agents()


class Compiler:
    """Makes the agents of one registry. `models` gets the providers of its models."""

    def __init__(
        self,
        registry: Registry,
        models: Catalog,
        *,
        scripts: ScriptedProvider | None = None,
        pages: Dialer | None = None,
        host: Any = None,
    ) -> None:
        """`pages` dials what `fetch` reads."""
        self._registry = registry
        self._models = models
        self._host = host
        self._pages = pages
        if scripts is not None and not models.has("scripted"):
            models.add(scripts, name="scripted")
        self._ids = {name: self._offer(one) for name, one in registry.models.items()}

    def agents(self) -> dict[str, Agent[Any, Any]]:
        """Returns the agents that a person can talk to, by name.

        Raises:
            DefinitionError: for what cannot be run.
        """
        seen = self._registry.seen_from("")
        agents = [seen.agent(name) for name in seen.names("agent")]
        return {served_name(one): self._agent(one) for one in agents if one.type == "ai_human"}

    def _agent(self, agent: AgentDefinition) -> Agent[Any, Any]:
        prompt = self._registry.prompt(agent.side_a.prompt)
        model = self._registry.models.get(prompt.model)
        compiled = Agent(
            self._model_id(prompt.model),
            name=served_name(agent),
            description=agent.description or agent.tool_description or prompt.tool_description,
            instructions=_text_of(prompt, self._registry),
            tools=list(self._tools(agent, prompt)),
            hooks=[Hook(BeforeModel, partial(_set_request, prompt))],
            settings=_settings(prompt),
            fallbacks=[] if model is None else [self._ids[one] for one in model.fallbacks],
        )
        if any(isinstance(part, PromptEnvPart) for part in _parts(prompt, self._registry)):
            render = Hook(SystemRendered, partial(_render, prompt, self._registry), fail_closed=True)
            render.name = f"of the prompt {prompt.name}"
            compiled.hooks.insert(0, render)
        compiled.on_thread = AgentThreads(agent, prompt, self._registry, host=self._host)
        return compiled

    def _tools(self, agent: AgentDefinition, prompt: PromptDefinition) -> Iterable[FunctionTool | Skills]:
        if self._registry.skills:
            yield skills(self._registry.skills)
        for index, entry in enumerate(prompt.entries):
            found = self._registry.callable(entry)
            if isinstance(found, ToolDefinition):
                yield ThreadTool(found, entry if isinstance(entry, PromptToolConfig) else None)
                continue
            if found is None and (own := self._of_server(entry_name(entry))) is not None:
                yield own
                continue
            what = "a tool that is defined elsewhere" if is_external(entry_name(entry)) else "an agent or a prompt"
            problem = f"{what} cannot be called yet: {entry_name(entry)}"
            raise DefinitionError(f'prompt "{prompt.name}"', [Issue(f"tools[{index}]", problem)])

    def _of_server(self, name: str) -> FunctionTool | None:
        """A tool that every server has."""
        if name == "fetch":
            return fetch_tool(self._pages or Dialer(egress_from({})))
        return builtin_tools().get(name)

    def _model_id(self, name: str) -> str | None:
        """The id of a model of the folder, or of one that the server knows; None for the server's default."""
        return self._ids.get(name, name or None)

    def _offer(self, model: ModelDefinition) -> str:
        if isinstance(model.provider, str):
            provider = "scripted" if model.provider in SCRIPTED else model.provider
            return f"{provider}:{model.model}"
        name = f"project-{alias_of(model.name) if is_packed(model) else model.name}"
        self._models.add(_made(model), name=name, any_model=True)
        return f"{name}:{model.model}"


def served_name(agent: AgentDefinition) -> str:
    """The name under which clients know an agent."""
    return alias_of(agent.name) if is_packed(agent) else agent.name


def _made(model: ModelDefinition) -> Provider:
    make = cast("Callable[..., object]", model.provider)
    made = make(**model.provider_options)
    if not (hasattr(made, "stream") or hasattr(made, "generate")):
        raise DefinitionError(
            f'model "{model.name}"', [Issue("provider", f"makes no provider, but {type(made).__name__}")]
        )
    return cast(Provider, made)


def _settings(prompt: PromptDefinition) -> Settings:
    reasoning = prompt.reasoning
    if reasoning is None:
        return Settings()
    return Settings(reasoning=LEVEL_OF[reasoning.effort] if reasoning.effort else reasoning.level)


def _set_request(prompt: PromptDefinition, point: BeforeModel) -> None:
    if point.tools:
        point.tool_choice = prompt.tool_choice
        point.parallel_tool_calls = prompt.parallel_tool_calls


def _parts(prompt: PromptDefinition, registry: Registry) -> Iterable[PromptTextPart | PromptEnvPart]:
    """The text and variables of a prompt and of those that it includes, in order."""
    for part in prompt.parts:
        if isinstance(part, PromptIncludePart):
            yield from _parts(registry.prompt(part.prompt), registry)
        else:
            yield part


def _text_of(prompt: PromptDefinition, registry: Registry) -> str:
    """The prompt with `{NAME}` where a variable's value will be: what its digest is made of."""
    parts = _parts(prompt, registry)
    own = "".join([one.content if isinstance(one, PromptTextPart) else f"{{{one.property}}}" for one in parts])
    return f"{registry.instructions}\n\n{own}" if registry.instructions else own


async def _render(
    prompt: PromptDefinition, registry: Registry, point: SystemRendered, context: RunContext[LiveThread]
) -> None:
    texts: list[str] = [f"{registry.instructions}\n\n"] if registry.instructions else []
    for part in _parts(prompt, registry):
        if isinstance(part, PromptEnvPart):
            texts.append(await context.deps.variables.get(part.property))
        else:
            texts.append(part.content)
    before = _text_of(prompt, registry)
    point.system = point.system.replace(before, "".join(texts), 1)
