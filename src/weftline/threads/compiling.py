"""Makes agents of the definitions of a folder: the same `Agent` that code would define."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from weftline.agent.agent import Agent
from weftline.agent.context import RunContext, RunInfo
from weftline.agent.hooking.calling import Hook
from weftline.agent.hooks import BeforeModel, SystemRendered
from weftline.agent.loader import LoadedAgents
from weftline.agent.settings import Settings
from weftline.errors import Issue
from weftline.providers.base import Provider
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider
from weftline.providers.scripts import load_scripts
from weftline.runtime.engine import Engine
from weftline.threads.checking import load_project
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
from weftline.threads.packages import is_packed
from weftline.threads.project import Project
from weftline.threads.registry import Registry, is_external
from weftline.threads.serving import Folder
from weftline.threads.state import LiveThread, thread_of
from weftline.threads.tools import ThreadTool
from weftline.workspace.context import Workspaces

SCRIPTED = ("test", "scripted")
"""The providers that play a script."""


def load_folder(path: str | Path, models: Catalog) -> tuple[LoadedAgents, Folder]:
    """Returns a folder and its agents, whose models are added to `models`.

    Raises:
        WeftlineError: if anything is wrong with the folder.
    """
    project = load_project(path)
    return LoadedAgents(Compiler.of(project, models).agents(), {}), Folder(project.registry)


class Compiler:
    """Makes the agents of one registry. `models` gets the providers of its models."""

    def __init__(
        self, registry: Registry, models: Catalog, *, scripts: ScriptedProvider | None = None, host: Any = None
    ) -> None:
        self._registry = registry
        self._models = models
        self._host = host
        if scripts is not None and not models.has("scripted"):
            models.add(scripts, name="scripted")
        self._ids = {name: self._offer(one) for name, one in registry.models.items()}

    @classmethod
    def of(cls, project: Project, models: Catalog, *, host: Any = None) -> Compiler:
        scripts = None if project.scripts is None else ScriptedProvider(load_scripts(project.scripts))
        return cls(project.registry, models, scripts=scripts, host=host)

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
        compiled.on_thread = partial(self._thread, agent, prompt)
        return compiled

    def _tools(self, agent: AgentDefinition, prompt: PromptDefinition) -> Iterable[ThreadTool]:
        for index, entry in enumerate(prompt.entries):
            found = self._registry.callable(entry)
            if isinstance(found, ToolDefinition):
                yield ThreadTool(found, entry if isinstance(entry, PromptToolConfig) else None)
                continue
            what = "a tool that is defined elsewhere" if is_external(entry_name(entry)) else "an agent or a prompt"
            problem = f"{what} cannot be called yet: {entry_name(entry)}"
            raise DefinitionError(f'prompt "{prompt.name}"', [Issue(f"tools[{index}]", problem)])

    @asynccontextmanager
    async def _thread(
        self, agent: AgentDefinition, prompt: PromptDefinition, at: Workspaces, engine: Engine, run: RunInfo
    ) -> AsyncGenerator[LiveThread]:
        async with thread_of(
            at, engine, run.thread_id, self._registry, agent=agent, prompt=prompt, host=self._host
        ) as state:
            yield state

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
