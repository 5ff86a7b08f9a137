"""Makes agents of the definitions of a folder: the same `Agent` that code would define."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from weftline.agent.agent import Agent
from weftline.agent.context import RunContext
from weftline.agent.hooking.calling import Hook
from weftline.agent.hooks import BeforeModel, ContextBuilt, SystemRendered
from weftline.agent.settings import Settings
from weftline.agent.skills.toolset import Skills, skills
from weftline.errors import Issue
from weftline.messages import Assistant, Message, Text, ToolResults
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
    PromptTextPart,
    PromptToolConfig,
    SubpromptConfig,
    ToolEntry,
    entry_name,
)
from weftline.threads.hooks import hooks_of
from weftline.threads.opening import AgentThreads
from weftline.threads.packages import is_packed
from weftline.threads.registry import Registry, is_external
from weftline.threads.speakers import HandOff, Speaker, called_by, hands_over, parts_of, seats_of, speakers_of, text_of
from weftline.threads.state import LiveThread
from weftline.threads.tools import SubPrompt, ThreadTool
from weftline.tools.builtin import builtin_tools
from weftline.tools.builtin.fetch import fetch_tool
from weftline.tools.function import FunctionTool

SCRIPTED = ("test", "scripted")
"""The providers that play a script."""


def agents_of(
    registry: Registry,
    models: Catalog,
    *,
    scripts: Path | None = None,
    pages: Dialer | None = None,
    host: Any = None,
) -> dict[str, Agent[Any, Any]]:
    """Returns the agents that a person can talk to, by name; see `Project.agents`."""
    played = None if scripts is None else ScriptedProvider(load_scripts(scripts))
    return Compiler(registry, models, scripts=played, pages=pages, host=host).agents()


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
        """Returns the agents, by name.

        Raises:
            DefinitionError: for what cannot be run.
        """
        seen = self._registry.seen_from("")
        agents = [seen.agent(name) for name in seen.names("agent")]
        return {served_name(one): self._agent(one) for one in agents}

    def _agent(self, agent: AgentDefinition) -> Agent[Any, Any]:
        speakers = speakers_of(agent, self._registry)
        [first, *_] = speakers.values()
        description = agent.description or agent.tool_description or first.prompt.tool_description
        compiled = self._compiled(speakers, name=served_name(agent), description=description)
        compiled.max_side_turns = agent.turns_at_most if agent.type == "dual_ai" else None
        return compiled

    def _compiled(self, speakers: Mapping[str, Speaker], *, name: str, description: str) -> Agent[Any, Any]:
        """An agent in whose runs these speak, the first of them first."""
        [first, *_] = speakers.values()
        prompt = first.prompt
        model, fallbacks = self._models_of(prompt)
        compiled = Agent(
            model,
            name=name,
            description=description,
            instructions=text_of(prompt, self._registry),
            tools=self._tools(speakers.values()),
            hooks=[
                Hook(ContextBuilt, _choose_history),
                *hooks_of(self._registry, speakers.values()),
                Hook(BeforeModel, _set_request),
            ],
            settings=Settings(reasoning=_level(prompt)),
            fallbacks=fallbacks,
        )
        if any(isinstance(part, PromptEnvPart) for one in speakers.values() for part in self._parts(one.prompt)):
            render = Hook(SystemRendered, partial(_render, self._registry), fail_closed=True)
            render.name = f"of the prompts of {name}"
            compiled.hooks.insert(0, render)
        compiled.seats = seats_of(
            speakers,
            self._registry,
            models={name: self._models_of(one.prompt) for name, one in speakers.items()},
            levels={name: _level(one.prompt) for name, one in speakers.items()},
        )
        compiled.on_thread = AgentThreads(first.agent, speakers, self._registry, host=self._host)
        return compiled

    def _called(self, caller: Speaker, prompt: PromptDefinition, index: int) -> Agent[Any, Any]:
        """The agent that executes the calls of a prompt that another lists at this place."""
        one = called_by(caller, prompt)
        if prompt.name in one.above:
            problem = f"calls itself: {' → '.join((*one.above, prompt.name))}"
            raise DefinitionError(f'prompt "{caller.prompt.name}"', [Issue(f"tools[{index}]", problem)])
        return self._compiled({one.name: one}, name=alias_of(prompt.name), description=prompt.tool_description)

    def _parts(self, prompt: PromptDefinition) -> Iterable[PromptTextPart | PromptEnvPart]:
        return parts_of(prompt, self._registry)

    def _models_of(self, prompt: PromptDefinition) -> tuple[str | None, tuple[str, ...]]:
        """The model of a prompt, and its fallbacks."""
        model = self._registry.models.get(prompt.model)
        return self._model_id(prompt.model), () if model is None else tuple([self._ids[one] for one in model.fallbacks])

    def _tools(self, speakers: Iterable[Speaker]) -> list[FunctionTool | SubPrompt | Skills]:
        """The tools of all who may speak. A tool that several prompts list has an entry for each."""
        tools: dict[str, FunctionTool | SubPrompt] = {}
        entries: dict[str, dict[str, PromptToolConfig]] = {}
        for speaker in speakers:
            for index, entry in enumerate(speaker.prompt.entries):
                found = self._registry.callable(entry)
                if isinstance(found, ToolDefinition):
                    of_tool = entries.setdefault(found.name, {})
                    if isinstance(entry, PromptToolConfig):
                        of_tool[speaker.name] = entry
                    tools.setdefault(found.name, ThreadTool(found, of_tool))
                elif hands_over(found) and not speaker.above:
                    tools.setdefault(found.name, HandOff(found, self._registry.prompt(found.side_a.prompt)))
                elif found is None and (own := self._of_server(entry_name(entry))) is not None:
                    tools.setdefault(own.name, own)
                elif isinstance(found, PromptDefinition):
                    config = entry if isinstance(entry, SubpromptConfig) else SubpromptConfig(name=found.name)
                    if found.name not in tools:
                        tools[found.name] = SubPrompt(found, config, self._called(speaker, found, index))
                else:
                    raise _not_yet(speaker.prompt, index, entry)
        own_skills = [skills(self._registry.skills)] if self._registry.skills else []
        return [*own_skills, *tools.values()]

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


def _not_yet(prompt: PromptDefinition, index: int, entry: ToolEntry) -> DefinitionError:
    what = "a tool that is defined elsewhere" if is_external(entry_name(entry)) else "an agent"
    problem = f"{what} cannot be called yet: {entry_name(entry)}"
    return DefinitionError(f'prompt "{prompt.name}"', [Issue(f"tools[{index}]", problem)])


def _level(prompt: PromptDefinition) -> int | None:
    reasoning = prompt.reasoning
    if reasoning is None:
        return None
    return LEVEL_OF[reasoning.effort] if reasoning.effort else reasoning.level


def _set_request(point: BeforeModel, context: RunContext[LiveThread]) -> None:
    if point.tools:
        prompt = context.deps.speaker.prompt
        point.tool_choice = prompt.tool_choice
        point.parallel_tool_calls = prompt.parallel_tool_calls


def _choose_history(point: ContextBuilt, context: RunContext[LiveThread]) -> None:
    """Leaves out what the prompt does not want of earlier runs: everything, or calls with their results."""
    prompt, inside = context.deps.speaker.prompt, context.entered.inside
    past = 0 if inside is None else len(point.messages) - (len(inside.messages) - inside.past)
    if past <= 0 or (prompt.include_chat is not False and prompt.include_past_tools):
        return
    before: list[Message] = []
    for message in point.messages[:past] if prompt.include_chat is not False else ():
        if isinstance(message, Assistant) and message.calls:
            texts = tuple([part for part in message.parts if isinstance(part, Text)])
            before += [Assistant(texts)] if texts else []
        elif not isinstance(message, ToolResults):
            before.append(message)
    if len(before) < past or any(one is not other for one, other in zip(before, point.messages, strict=False)):
        point.messages = (*before, *point.messages[past:])


async def _render(registry: Registry, point: SystemRendered, context: RunContext[LiveThread]) -> None:
    prompt = context.deps.speaker.prompt
    texts: list[str] = [f"{registry.instructions}\n\n"] if registry.instructions else []
    for part in parts_of(prompt, registry):
        if isinstance(part, PromptEnvPart):
            texts.append(await context.deps.variables.get(part.property))
        else:
            texts.append(part.content)
    point.system = point.system.replace(text_of(prompt, registry), "".join(texts), 1)
