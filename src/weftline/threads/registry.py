"""The definitions of a folder, by name: what the runtime looks them up in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from weftline.errors import Issue, NotFound
from weftline.text.suggestions import did_you_mean
from weftline.threads.definitions.agents import AgentDefinition
from weftline.threads.definitions.base import EXTERNAL, DefinitionError, Kind, alias_of
from weftline.threads.definitions.endpoints import BadRoute, ControllerDefinition, EndpointDefinition, Route
from weftline.threads.definitions.handlers import EffectDefinition, HookDefinition, ToolDefinition
from weftline.threads.definitions.models import ModelDefinition
from weftline.threads.definitions.prompts import (
    PromptDefinition,
    SubagentToolConfig,
    SubpromptConfig,
    ToolEntry,
    entry_name,
)
from weftline.threads.packages import (
    CALLABLE,
    GlobalNamespaceContext,
    NamespaceContext,
    PackedExports,
    PackedMeta,
    PackedNamespaceContext,
    is_packed,
    is_visible_in_namespace,
    merged,
)

if TYPE_CHECKING:
    from weftline.agent.skills.format import Skill

AnyDefinition: TypeAlias = (
    ModelDefinition
    | PromptDefinition
    | AgentDefinition
    | ToolDefinition
    | HookDefinition
    | EffectDefinition
    | EndpointDefinition
    | ControllerDefinition
)
CallableDefinition: TypeAlias = ToolDefinition | AgentDefinition | PromptDefinition
"""What an entry of a prompt's `tools` may name."""

D = TypeVar("D")

KINDS: dict[type, Kind] = {
    ModelDefinition: "model",
    PromptDefinition: "prompt",
    AgentDefinition: "agent",
    ToolDefinition: "tool",
    HookDefinition: "hook",
    EffectDefinition: "effect",
    EndpointDefinition: "endpoint",
    ControllerDefinition: "controller",
}
TABLES: dict[Kind, str] = {kind: f"{kind}s" for kind in KINDS.values()}
"""The field of a registry that has the definitions of each kind."""


class ScheduleDefinition(Struct, frozen=True, kw_only=True):
    """A prompt that an agent is given at the times of a cron expression, in this time zone."""

    name: str
    agent: str
    cron: str
    prompt: str
    timezone: str = "UTC"


class Registry(Struct, frozen=True, kw_only=True):
    """Definitions by name: hooks by id, endpoints and controllers by route (`notes/[id].put`)."""

    models: dict[str, ModelDefinition] = {}
    prompts: dict[str, PromptDefinition] = {}
    agents: dict[str, AgentDefinition] = {}
    tools: dict[str, ToolDefinition] = {}
    hooks: dict[str, HookDefinition] = {}
    effects: dict[str, EffectDefinition] = {}
    endpoints: dict[str, EndpointDefinition] = {}
    controllers: dict[str, ControllerDefinition] = {}
    instructions: str = ""
    """What every agent reads first: the folder's AGENTS.md."""
    skills: tuple[Skill, ...] | Any = ()
    schedules: dict[str, ScheduleDefinition] = {}
    packages: dict[str, PackedMeta] = {}
    """The packages, by id. Their definitions are in the other tables, under `package/name`."""
    namespace: str | None = None
    """Whose names are looked up: a package's, or with an empty one the folder's. None finds everything."""

    @classmethod
    def of(
        cls,
        *,
        models: Iterable[ModelDefinition] = (),
        prompts: Iterable[PromptDefinition] = (),
        agents: Iterable[AgentDefinition] = (),
        tools: Iterable[ToolDefinition] = (),
        hooks: Iterable[HookDefinition] = (),
        effects: Iterable[EffectDefinition] = (),
        endpoints: Mapping[str, EndpointDefinition] | None = None,
        controllers: Mapping[str, ControllerDefinition] | None = None,
        instructions: str = "",
        skills: Iterable[Skill] = (),
        schedules: Iterable[ScheduleDefinition] = (),
        packages: Iterable[PackedExports] = (),
    ) -> Registry:
        """Returns the registry of these definitions, equal to that of a folder that has them.

        Tools and effects without a name have that of their function.

        Raises:
            DefinitionError: if two of a kind have one name, or a route is not one, or packages do not go together.
        """
        issues: list[Issue] = []
        registry = cls(
            models=_by_name("models", models, issues),
            prompts=_by_name("prompts", prompts, issues),
            agents=_by_name("agents", agents, issues),
            tools=_by_name("tools", map(named, tools), issues),
            hooks=_by_name("hooks", hooks, issues, key="id"),
            effects=_by_name("effects", map(named, effects), issues),
            endpoints=_by_route("endpoints", endpoints or {}, issues),
            controllers=_by_route("controllers", controllers or {}, issues),
            instructions=instructions,
            skills=tuple(sorted(skills, key=lambda one: one.name)),
            schedules=_by_name("schedules", schedules, issues),
        )
        registry, more = registry.with_packages(packages)
        if issues := [*issues, *more]:
            raise DefinitionError("registry", issues)
        return registry

    def with_packages(self, packages: Iterable[PackedExports]) -> tuple[Registry, list[Issue]]:
        """Returns the registry with what packages bring, and what is wrong with them."""
        found = merged({kind: self.table(kind) for kind in TABLES}, packages)
        tables: dict[str, Any] = {TABLES[kind]: dict(sorted(table.items())) for kind, table in found.tables.items()}
        return msgspec.structs.replace(self, **tables, packages=found.packages), found.issues

    def seen_from(self, package: str) -> Registry:
        """Returns the registry as this package sees it; as the folder does for an empty one."""
        return msgspec.structs.replace(self, namespace=package)

    @property
    def context(self) -> NamespaceContext | None:
        """The namespace whose names are looked up; None if everything is found."""
        if not self.namespace:
            return None if self.namespace is None else GlobalNamespaceContext()
        meta = self.packages.get(self.namespace)
        requires = () if meta is None else meta.requires
        return PackedNamespaceContext(package_id=self.namespace, requires=requires)

    def table(self, kind: Kind) -> Mapping[str, Any]:
        """Returns the definitions of one kind, by name."""
        return getattr(self, TABLES[kind])

    def names(self, kind: Kind) -> list[str]:
        """Returns the names of the definitions of one kind that can be seen."""
        context = self.context
        return [
            name for name, one in self.table(kind).items() if context is None or is_visible_in_namespace(one, context)
        ]

    def find(self, kind: Kind, name: str) -> Any:
        """Returns a definition, or None. In a package's namespace its own definitions come first."""
        table, context = self.table(kind), self.context
        if self.namespace and (own := table.get(f"{self.namespace}/{name}")) is not None:
            return own
        found = table.get(name)
        return found if found is None or context is None or is_visible_in_namespace(found, context) else None

    def get(self, kind: Kind, name: str) -> Any:
        """Returns a definition. Raises `NotFound` with the nearest name if there is none."""
        found = self.find(kind, name)
        if found is None:
            raise NotFound(f"There is no {kind} {name!r}.{did_you_mean(name, self.names(kind))}")
        return found

    def model(self, name: str) -> ModelDefinition:
        return self.get("model", name)

    def prompt(self, name: str) -> PromptDefinition:
        return self.get("prompt", name)

    def agent(self, name: str) -> AgentDefinition:
        return self.get("agent", name)

    def served(self, id: str) -> AgentDefinition | None:
        """Returns the agent that clients know by this id."""
        packed = (one for one in self.agents.values() if is_packed(one) and alias_of(one.name) == id)
        return self.agents.get(id) or next(packed, None)

    def tool(self, name: str) -> ToolDefinition:
        return self.get("tool", name)

    def hook(self, id: str) -> HookDefinition:
        return self.get("hook", id)

    def effect(self, name: str) -> EffectDefinition:
        return self.get("effect", name)

    def callable(self, entry: ToolEntry) -> CallableDefinition | None:
        """Returns what an entry of `tools` names; None if nothing here does.

        A plain name is a tool, else an agent, else a prompt. A prompt that shares its name with an agent is named by a
        `SubpromptConfig`.
        """
        name = entry_name(entry)
        kinds = CALLABLE
        if isinstance(entry, SubpromptConfig):
            kinds = ("prompt",)
        elif isinstance(entry, SubagentToolConfig):
            kinds = ("agent",)
        return next((found for kind in kinds if (found := self.find(kind, name)) is not None), None)

    @property
    def callable_names(self) -> list[str]:
        """The names of all tools, agents and prompts that can be seen."""
        return sorted({name for kind in CALLABLE for name in self.names(kind)})

    def hooks_for(self, agent: AgentDefinition, prompt: PromptDefinition) -> list[HookDefinition]:
        """Returns the hooks of a prompt in the order of its list, or of its agent's if the prompt has none."""
        listed = agent.hooks if prompt.hooks is None else prompt.hooks
        return [self.hooks[one] for one in listed if one in self.hooks]


def is_external(name: str) -> bool:
    """Returns whether this names a tool that is defined elsewhere: `provider:x`, `mcp:x`."""
    return name.startswith(EXTERNAL)


def named(definition: Any) -> Any:
    """Returns a tool or effect with a name: its own, or else its function's."""
    if definition.name:
        return definition
    fn = definition.execute if isinstance(definition, ToolDefinition) else definition.handler
    return msgspec.structs.replace(definition, name=fn.__name__)


def _by_name(table: str, definitions: Iterable[D], issues: list[Issue], *, key: str = "name") -> dict[str, D]:
    found: dict[str, D] = {}
    for index, one in enumerate(definitions):
        name = getattr(one, key)
        if name in found:
            issues.append(Issue(f"{table}[{index}]", f"{name!r} is defined twice"))
        found[name] = one
    return dict(sorted(found.items()))


def _by_route(table: str, definitions: Mapping[str, D], issues: list[Issue]) -> dict[str, D]:
    found: dict[str, D] = {}
    shapes: dict[tuple[str, ...], str] = {}
    for key, one in definitions.items():
        try:
            route = Route.parse(key)
        except BadRoute as error:
            issues.append(Issue(f"{table}[{key!r}]", str(error)))
            continue
        if (other := shapes.setdefault(route.shape, key)) != key:
            issues.append(Issue(f"{table}[{key!r}]", f"is the same route as {other!r}"))
        found[route.key] = one
    return dict(sorted(found.items()))
