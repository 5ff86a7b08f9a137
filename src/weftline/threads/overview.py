"""What a folder has, and what each of its agents can reach: for `weftline info`, and for packing an agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from weftline.threads.definitions.agents import AgentDefinition
from weftline.threads.definitions.handlers import ToolDefinition
from weftline.threads.definitions.prompts import PromptDefinition, PromptIncludePart, entry_name
from weftline.threads.packages import is_packed
from weftline.threads.project import Project
from weftline.threads.registry import Registry

ORDER = ("agent", "prompt", "model", "tool", "hook", "effect", "endpoint", "controller", "skill", "schedule", "eval")


class Found(Struct, frozen=True):
    """A definition or another file of a folder, and where it is."""

    kind: str
    name: str
    file: str
    line: int


class Reach(Struct, frozen=True):
    """What an agent can reach, by kind: `prompts`, `models`, `tools`, `agents`, `hooks`."""

    name: str
    description: str
    reaches: Mapping[str, tuple[str, ...]]


class Overview(Struct, frozen=True):
    """Everything that was found in a folder."""

    folder: str
    found: tuple[Found, ...]
    agents: tuple[Reach, ...]


def overview(project: Project) -> Overview:
    """Returns what a folder has, in the order in which people ask: agents first."""
    found = [Found(kind, name, origin.file, origin.line) for (kind, name), origin in project.origins.items()]
    found += [Found("eval", file.stem, str(file), 1) for file in project.evals]
    if project.registry.instructions:
        found.append(Found("instructions", "AGENTS.md", str(project.root / "AGENTS.md"), 1))
    found.sort(key=lambda one: (ORDER.index(one.kind) if one.kind in ORDER else len(ORDER), one.name))
    registry = project.registry
    agents = tuple(
        [
            Reach(name, one.description, reach(registry, one))
            for name, one in registry.agents.items()
            if not is_packed(one)
        ]
    )
    return Overview(str(Path(project.root)), tuple(found), agents)


def reach(registry: Registry, agent: AgentDefinition) -> dict[str, tuple[str, ...]]:
    """Returns the names of what an agent can reach: through its prompts, includes, tools and what these use, through
    other agents, and through the fallbacks of models. Kinds without any are left out.
    """
    names: dict[str, set[str]] = {one: set() for one in ("agents", "prompts", "models", "tools", "hooks")}
    waiting: list[AgentDefinition | PromptDefinition | ToolDefinition] = [agent]
    seen: set[int] = set()

    def call(entry: object) -> None:
        found = registry.callable(entry)  # pyright: ignore[reportArgumentType]
        if found is not None:
            waiting.append(found)
        else:
            names["tools"].add(entry_name(entry))  # pyright: ignore[reportArgumentType]

    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, AgentDefinition):
            names["agents"].add(one.name)
            names["hooks"] |= set(one.hooks)
            waiting += [found for side in one.sides.values() if (found := registry.prompts.get(side.prompt))]
        elif isinstance(one, PromptDefinition):
            names["prompts"].add(one.name)
            names["hooks"] |= set(one.hooks or ())
            names["models"] |= _models(registry, one.model)
            included = [part.prompt for part in one.parts if isinstance(part, PromptIncludePart)]
            names["prompts"] |= set(included)
            for entry in one.entries:
                call(entry)
        else:
            names["tools"].add(one.name)
            for entry in one.uses or ():
                call(entry)
    names["agents"].discard(agent.name)
    return {kind: tuple(sorted(found)) for kind, found in names.items() if found}


def _models(registry: Registry, name: str) -> set[str]:
    """Returns a model and its fallbacks, and theirs."""
    found: set[str] = set()
    waiting = [name] if name else []
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += registry.models[one].fallbacks if one in registry.models else ()
    return found
