"""Packages: definitions that an installed distribution brings, under `package/name`.

An entry point of the group `weftline.packages` is a `PackedExports`. Its definitions name each other as they did in the
folder that they come from; `linked` gives all of them their whole names, so that everything else looks up one name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias, cast

from msgspec import Struct, field
from msgspec.structs import replace

from weftline.errors import Issue
from weftline.plugins import entry_points
from weftline.threads.definitions.agents import AgentDefinition, SideConfig
from weftline.threads.definitions.base import PACKAGE_ID, DefinitionError, Kind, PackedMetadata, alias_of
from weftline.threads.definitions.endpoints import BadRoute, EndpointDefinition, Route
from weftline.threads.definitions.handlers import EffectDefinition, HookDefinition, ToolDefinition
from weftline.threads.definitions.models import ModelDefinition
from weftline.threads.definitions.prompts import (
    PromptDefinition,
    PromptIncludePart,
    SubagentToolConfig,
    SubpromptConfig,
    ToolEntry,
    entry_name,
)

GROUP = "weftline.packages"
Tables: TypeAlias = Mapping[Kind, Mapping[str, Any]]
MAX_ALIAS_CHARS = 64
CALLABLE: tuple[Kind, ...] = ("tool", "agent", "prompt")
"""What an entry of a prompt's `tools` may name, in the order in which a name is looked up."""


class PackedMeta(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a package says of itself."""

    package_id: str
    version: str = ""
    agents: tuple[str, ...] = ()
    """Its agents that can be seen from outside, besides those that are `expose_as_tool`."""
    requires: tuple[str, ...] = ()
    """The definitions of the folder, or exposed agents of other packages, that it may use."""
    title: str = ""
    description: str = ""
    author: str = ""
    license: str = ""


class PackedExports(Struct, frozen=True, kw_only=True, rename="camel"):
    """The definitions of a package by name, hooks by id, endpoints by route (`notes/[id].put`)."""

    meta: PackedMeta = field(name="__meta")
    models: Mapping[str, ModelDefinition] = {}
    prompts: Mapping[str, PromptDefinition] = {}
    agents: Mapping[str, AgentDefinition] = {}
    tools: Mapping[str, ToolDefinition] = {}
    hooks: Mapping[str, HookDefinition] = {}
    effects: Mapping[str, EffectDefinition] = {}
    thread_endpoints: Mapping[str, EndpointDefinition] = {}


class GlobalNamespaceContext(Struct, frozen=True, tag_field="type", tag="global"):
    """What the definitions of a folder see: each other, and what packages expose."""


class PackedNamespaceContext(Struct, frozen=True, kw_only=True, tag_field="type", tag="packed", rename="camel"):
    """What the definitions of a package see: each other, and what the package requires."""

    package_id: str
    requires: tuple[str, ...] = ()


NamespaceContext: TypeAlias = GlobalNamespaceContext | PackedNamespaceContext


def package_of(definition: object) -> str:
    """Returns the id of the package that a definition is from; empty for one of the folder itself."""
    packed = cast("PackedMetadata | None", getattr(definition, "packed", None))
    return "" if packed is None else packed.package_id


def is_packed(definition: object) -> bool:
    """Returns whether a definition is from a package."""
    return package_of(definition) != ""


def belongs_to_package(definition: object, package: str) -> bool:
    """Returns whether a definition is from this package."""
    return package != "" and package_of(definition) == package


def is_visible_in_namespace(definition: object, context: NamespaceContext) -> bool:
    """Returns whether code and definitions in a namespace can name a definition."""
    packed = cast("PackedMetadata | None", getattr(definition, "packed", None))
    open_to_all = packed is None or packed.exposed
    if isinstance(context, GlobalNamespaceContext):
        return open_to_all
    own = packed is not None and packed.package_id == context.package_id
    return own or (open_to_all and _name_of(definition) in context.requires)


def _name_of(definition: object) -> str:
    return getattr(definition, "id", "") if isinstance(definition, HookDefinition) else getattr(definition, "name", "")


class Merged(Struct):
    """The definitions of a folder and of packages, by kind and whole name."""

    tables: dict[Kind, dict[str, Any]]
    packages: dict[str, PackedMeta]
    issues: list[Issue]


def merged(tables: Tables, packages: Iterable[PackedExports]) -> Merged:
    """Adds packages to the definitions of a folder.

    `issues` has what is wrong with packages, and what two of them cannot both have. Endpoints share one namespace: on
    an equal route that of the folder counts.
    """
    found = Merged({kind: dict(table) for kind, table in tables.items()}, {}, [])
    local = {Route.parse(key).shape for key in tables.get("endpoint", ())}
    shapes: dict[tuple[str, ...], str] = {}
    aliases: dict[str, tuple[str, str]] = {}
    for exports in packages:
        package = exports.meta.package_id
        if problem := _problem_of(exports.meta, found.packages):
            found.issues.append(Issue(f"packages[{package!r}]", problem))
            continue
        found.packages[package] = exports.meta
        for kind, name, definition, problem in linked(exports):
            where = f"packages[{package!r}].{'thread_endpoints' if kind == 'endpoint' else f'{kind}s'}[{name!r}]"
            if problem:
                found.issues.append(Issue(where, problem))
            elif kind == "endpoint":
                shape = Route.parse(name).shape
                if (other := shapes.setdefault(shape, package)) != package:
                    text = f"the packages {other!r} and {package!r} both have an endpoint {Route.parse(name)}"
                    found.issues.append(Issue(where, text))
                elif shape not in local:
                    found.tables["endpoint"][name] = definition
            else:
                whole = f"{package}/{name}"
                if kind in CALLABLE:
                    if len(alias_of(whole)) > MAX_ALIAS_CHARS:
                        text = f"models would see it as {alias_of(whole)!r}: more than {MAX_ALIAS_CHARS} characters"
                        found.issues.append(Issue(where, text))
                        continue
                    twin, owner = aliases.setdefault(alias_of(whole), (whole, package))
                    if owner != package:
                        text = (
                            f"the packages {owner!r} and {package!r} both have what models would see as"
                            f" {alias_of(whole)!r}: {twin} and {whole}"
                        )
                        found.issues.append(Issue(where, text))
                        continue
                found.tables[kind][whole] = definition
    return found


def _problem_of(meta: PackedMeta, others: Mapping[str, PackedMeta]) -> str:
    package = meta.package_id
    if not PACKAGE_ID.fullmatch(package):
        return f"{package!r} must begin with a letter and have at most 40 letters, digits, _ and -"
    if package in others:
        versions = " and ".join([one.version or "without a version" for one in (others[package], meta)])
        return f"two packages have the id {package!r}: {versions}"
    return ""


def linked(exports: PackedExports) -> Iterator[tuple[Kind, str, Any, str]]:
    """Yields the definitions of a package by kind and own name, each with its whole name, those of what it refers to,
    and its package; or else what is wrong with it.
    """
    links = _Links(exports)
    for kind, table in links.tables.items():
        for name, definition in table.items():
            try:
                yield kind, name, links.of(name, definition), ""
            except (DefinitionError, BadRoute, ValueError) as error:
                yield kind, name, definition, str(error)


class _Links:
    """Gives the definitions of one package the whole names of each other. What it does not have is left as it is."""

    def __init__(self, exports: PackedExports) -> None:
        self._meta = exports.meta
        self.tables: Tables = {
            "model": exports.models,
            "prompt": exports.prompts,
            "agent": exports.agents,
            "tool": exports.tools,
            "hook": exports.hooks,
            "effect": exports.effects,
            "endpoint": exports.thread_endpoints,
        }

    def of(self, name: str, definition: Any) -> Any:
        meta = self._meta
        exposed = isinstance(definition, AgentDefinition) and (name in meta.agents or definition.expose_as_tool)
        packed = PackedMetadata(meta.package_id, meta.version, exposed)
        if isinstance(definition, EndpointDefinition):
            Route.parse(name)
            return replace(definition, packed=packed)
        own = _name_of(definition)
        if own not in ("", name):
            raise ValueError(f"is {own!r}: its name and its key must be the same")
        whole = f"{meta.package_id}/{name}"
        if isinstance(definition, HookDefinition):
            return replace(definition, id=whole, packed=packed)
        return replace(definition, name=whole, packed=packed, **self._references(definition))

    def _references(self, definition: Any) -> dict[str, Any]:
        one = self._one
        if isinstance(definition, ModelDefinition):
            return {"fallbacks": tuple([one("model", name) for name in definition.fallbacks])}
        if isinstance(definition, PromptDefinition):
            hooks = definition.hooks
            return {
                "model": one("model", definition.model),
                "prompt": definition.prompt if isinstance(definition.prompt, str) else self._parts(definition),
                "tools": tuple([self._entry(entry) for entry in definition.entries]),
                "hooks": None if hooks is None else tuple([one("hook", id) for id in hooks]),
            }
        if isinstance(definition, AgentDefinition):
            sides = {path: self._side(side) for path, side in definition.sides.items()}
            return {**sides, "hooks": tuple([one("hook", id) for id in definition.hooks])}
        if isinstance(definition, ToolDefinition) and definition.uses is not None:
            return {"uses": tuple([self._callable(name) for name in definition.uses])}
        return {}

    def _one(self, kind: Kind, name: str) -> str:
        return f"{self._meta.package_id}/{name}" if name in self.tables[kind] else name

    def _callable(self, name: str, kinds: tuple[Kind, ...] = CALLABLE) -> str:
        return next((self._one(kind, name) for kind in kinds if name in self.tables[kind]), name)

    def _parts(self, prompt: PromptDefinition) -> tuple[Any, ...]:
        return tuple(
            [
                PromptIncludePart(self._one("prompt", part.prompt)) if isinstance(part, PromptIncludePart) else part
                for part in prompt.parts
            ]
        )

    def _entry(self, entry: ToolEntry) -> ToolEntry:
        if isinstance(entry, str):
            return self._callable(entry)
        kinds: tuple[Kind, ...] = CALLABLE
        if isinstance(entry, SubpromptConfig):
            kinds = ("prompt",)
        elif isinstance(entry, SubagentToolConfig):
            kinds = ("agent",)
        return replace(entry, name=self._callable(entry_name(entry), kinds))

    def _side(self, side: SideConfig) -> SideConfig:
        bound: dict[str, Any] = {
            name: replace(binding, name=self._one("tool", binding.name)) for name, binding in side.bindings.items()
        }
        stop = side.stop_tool
        return replace(
            side, prompt=self._one("prompt", side.prompt), stop_tool=stop and self._one("tool", stop), **bound
        )


class Installed(Struct, frozen=True):
    """A package that was found, and where; or why it could not be loaded."""

    origin: str
    """The file of its code, or the entry point if that is unknown."""
    exports: PackedExports | None = None
    problem: str = ""


def installed_packages() -> list[Installed]:
    """Returns the packages that installed distributions announce, by the names of their entry points."""
    return [_load(point) for point in sorted(entry_points(GROUP), key=lambda one: (one.name, one.value))]


def _load(point: Any) -> Installed:
    where = f"{point.value} (entry point {point.name!r})"
    try:
        value = point.load()
    except (Exception, SystemExit) as error:
        return Installed(where, problem=f"failed to import: {type(error).__name__}: {error}")
    origin = getattr(sys.modules.get(point.module), "__file__", None) or where
    if not isinstance(value, PackedExports):
        return Installed(origin, problem=f"{point.attr or point.module} is not a PackedExports, but {value!r}"[:200])
    return Installed(origin, exports=value)
