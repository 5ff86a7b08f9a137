"""Checks a folder: every reference between its definitions, and every rule that needs more than one of them.

All problems are found at once, each with its file and line and the nearest known name. A server does not start on a
folder with problems; warnings are for people.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from weftline.text.suggestions import did_you_mean
from weftline.threads.argument_rules import schema_problems
from weftline.threads.definitions.agents import AgentDefinition, SideConfig
from weftline.threads.definitions.base import Kind, alias_of
from weftline.threads.definitions.endpoints import RESERVED_SEGMENTS, Route
from weftline.threads.definitions.handlers import EffectDefinition, HookPoint, ToolDefinition
from weftline.threads.definitions.prompts import (
    PromptDefinition,
    PromptEnvPart,
    PromptIncludePart,
    PromptToolConfig,
    SubagentToolConfig,
    SubpromptConfig,
    ToolEntry,
    entry_name,
)
from weftline.threads.packages import CALLABLE, is_packed, package_of
from weftline.threads.project import Project, ProjectError, read_project
from weftline.threads.registry import Registry, is_external
from weftline.threads.sources import Problem

Place: TypeAlias = Callable[[Kind | str, str, str], tuple[str, int]]
"""The file and line of a definition's field."""
T = TypeVar("T")

TAKES: dict[HookPoint, tuple[str, ...]] = {
    "after_thread_created": ("state",),
    "after_subagent_created": ("parent_state", "child_state"),
    "after_system_message": ("state", "text"),
    "filter_messages": ("state", "messages"),
    "prefilter_llm_history": ("state", "messages"),
    "before_create_message": ("state", "message"),
    "after_create_message": ("state", "message"),
    "before_update_message": ("state", "message_id", "updates"),
    "after_update_message": ("state", "message"),
    "before_store_tool_result": ("state", "call", "result"),
    "after_tool_call_success": ("state", "call", "result"),
    "after_tool_call_failure": ("state", "call", "result"),
}
"""What the function of a hook is called with."""
ENDPOINT_TAKES = ("request", "state", "params")
SCRIPTED = ("test", "scripted")
"""The providers that play a script, with no key and no network."""
_OTHERS_CODE = ("node_modules", "venv", "env", "site-packages")
_WORDLIKE = re.compile(r"[A-Za-z][A-Za-z &'.,-]{2,}|[0-9]{3,8}")
"""What may well be a part of other texts, so that cutting it out of them would spoil them."""


class Report(Struct, frozen=True):
    """What is wrong with a folder, and what its author may want to know."""

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def check(project: Project, *, providers: Iterable[str] | None = None, tools: Iterable[str] | None = None) -> Report:
    """Checks a folder that was read.

    `providers` and `tools` are the names that the server knows besides; by default those of one that nobody configured.
    """
    used = _words_in(project.root) if project.root.is_dir() else set[str]()
    found = check_registry(project.registry, project.line_of, providers=providers, tools=tools, used=used)
    problems = tuple(sorted({*project.problems, *found.problems, *_script_problems(project)}))
    return Report(problems, tuple(sorted({*project.warnings, *found.warnings})))


def check_registry(
    registry: Registry,
    place: Place,
    *,
    providers: Iterable[str] | None = None,
    tools: Iterable[str] | None = None,
    used: Iterable[str] = (),
) -> Report:
    """Checks the definitions of a registry. `used` are names that code may refer to."""
    checker = _Checker(registry, place, providers=providers, tools=tools, used=frozenset(used))
    checker.check()
    return Report(tuple(sorted(checker.problems)), tuple(sorted(checker.warnings)))


def load_project(
    path: str | Path, *, providers: Iterable[str] | None = None, tools: Iterable[str] | None = None
) -> Project:
    """Reads and checks a folder of agents.

    Raises:
        ProjectError: if there is anything wrong with it; `problems` has all of it.
    """
    project = read_project(path)
    report = check(project, providers=providers, tools=tools)
    if report.problems:
        project.generation.forget()
        raise ProjectError(project.root, report.problems)
    return msgspec.structs.replace(project, warnings=report.warnings)


def _script_problems(project: Project) -> Iterator[Problem]:
    """Yields what is wrong with the scripts of a folder, and the scripted models without one."""
    if project.scripts is None:
        return
    from weftline.errors import WeftlineError
    from weftline.providers.scripts import load_scripts

    try:
        scripts = load_scripts(project.scripts)
    except WeftlineError as error:
        yield Problem(file=str(project.scripts), line=1, message=error.message.removeprefix(f"{project.scripts}: "))
        return
    for name, model in project.registry.models.items():
        if model.provider in SCRIPTED and model.model not in scripts:
            file, line = project.line_of("model", name, "model")
            text = f'there is no script "{model.model}" in {project.scripts}.{_near(model.model, scripts)}'
            yield Problem(file=file, line=line, about=f'model "{name}"', field="model", message=text)


class _Checker:
    def __init__(
        self,
        registry: Registry,
        place: Place,
        *,
        providers: Iterable[str] | None,
        tools: Iterable[str] | None,
        used: frozenset[str],
    ) -> None:
        self.registry = registry
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self._seen = registry.seen_from("")
        """The registry as the definition sees it that is being checked."""
        self._place = place
        self._providers = frozenset(usual_names() if providers is None else providers)
        self._tools = frozenset(usual_tools() if tools is None else tools)
        self._used = set(used)
        self._secrets = {one.name for _, _, one in self._variables() if one.type == "secret"}
        self._shown = {
            part.property for one in registry.prompts.values() for part in one.parts if isinstance(part, PromptEnvPart)
        }
        self._of_two_sides = {
            side.prompt for one in registry.agents.values() if one.type == "dual_ai" for side in one.sides.values()
        }

    def check(self) -> None:
        registry = self.registry
        for name, model in self._each(registry.models):
            self._check_model(name, model)
        for name, prompt in self._each(registry.prompts):
            self._check_prompt(name, prompt)
        for name, agent in self._each(registry.agents):
            self._check_agent(name, agent)
        for name, tool in self._each(registry.tools):
            self._check_tool(name, tool)
        for name, effect in self._each(registry.effects):
            self._check_arguments("effect", name, effect)
        for id, hook in self._each(registry.hooks):
            self._check_takes("hook", id, hook.execute, TAKES[hook.hook])
        for key, endpoint in self._each(registry.endpoints):
            self._check_endpoint(key, endpoint)
        for key, controller in registry.controllers.items():
            self._check_takes("controller", key, controller.handler, ("context",))
            if controller.public:
                self._warn("controller", key, "public", "is open to everybody: it needs no credential")
        for name, schedule in registry.schedules.items():
            self._require("schedule", name, "agent", "agent", schedule.agent)
        self._check_names()
        self._check_cycles()
        self._warn_of_unused()

    def _each(self, table: Mapping[str, T]) -> Iterator[tuple[str, T]]:
        """Yields definitions, each while names are looked up as it sees them."""
        for name, definition in table.items():
            self._seen = self.registry.seen_from(package_of(definition))
            yield name, definition
        self._seen = self.registry.seen_from("")

    def _problem(self, kind: Kind | str, name: str, field: str, message: str) -> None:
        self.problems.append(self._told(kind, name, field, message))

    def _warn(self, kind: Kind | str, name: str, field: str, message: str) -> None:
        if self._seen.namespace and field != "public":
            return  # what its author may do better; the folder's cannot
        self.warnings.append(self._told(kind, name, field, message))

    def _told(self, kind: Kind | str, name: str, field: str, message: str) -> Problem:
        file, line = self._place(kind, name, field)
        shown = str(Route.parse(name)) if kind in ("endpoint", "controller") else name
        return Problem(file=file, line=line, about=f'{kind} "{shown}"', field=field, message=message)

    def _require(self, kind: Kind | str, name: str, field: str, wanted: Kind, other: str) -> bool:
        """Says so if there is no definition of the kind `wanted` with the name `other`."""
        self._used.add(other)
        if self._seen.find(wanted, other) is not None:
            return True
        near = self._hidden(wanted, other) or _near(other, self._seen.names(wanted))
        self._problem(kind, name, field, f'there is no {wanted} "{other}".{near}')
        return False

    def _hidden(self, kind: Kind, name: str) -> str:
        """Returns why a definition that there is cannot be named here; empty if there is none."""
        found = self.registry.find(kind, name)
        if found is None:
            return ""
        package = package_of(found)
        if package and not self._seen.namespace:
            return f' The package "{package}" keeps it to itself.'
        return f' The package "{self._seen.namespace}" does not require it.'

    def _variables(self) -> Iterator[tuple[Kind, str, Any]]:
        for kind in ("prompt", "agent", "tool"):
            for name, definition in self.registry.table(kind).items():
                for one in definition.variables:
                    yield kind, name, one

    def _check_model(self, name: str, model: Any) -> None:
        if isinstance(model.provider, str) and model.provider not in self._providers:
            near = _near(model.provider, self._providers)
            self._problem("model", name, "provider", f'there is no provider "{model.provider}".{near}')
        for index, other in enumerate(model.fallbacks):
            field = f"fallbacks[{index}]"
            if other == name:
                self._problem("model", name, field, "is the model itself")
            else:
                self._require("model", name, field, "model", other)

    def _check_prompt(self, name: str, prompt: PromptDefinition) -> None:
        if prompt.model and ":" not in prompt.model:
            self._require("prompt", name, "model", "model", prompt.model)
        self._check_hooks("prompt", name, prompt.hooks or ())
        for index, part in enumerate(prompt.parts):
            if isinstance(part, PromptIncludePart):
                self._require("prompt", name, f"prompt[{index}]", "prompt", part.prompt)
            elif isinstance(part, PromptEnvPart) and part.property in self._secrets:
                text = f'the variable "{part.property}" is a secret, which no model may read'
                self._problem("prompt", name, f"prompt[{index}]", text)
        seen: set[str] = set()
        for index, entry in enumerate(prompt.entries):
            field, other = f"tools[{index}]", entry_name(entry)
            if other in seen:
                self._problem("prompt", name, field, f'"{other}" is listed twice')
            seen.add(other)
            self._check_entry(name, field, entry)
        for path, message in schema_problems(prompt.required_schema or {}):
            self._problem("prompt", name, f"required_schema.{path}".rstrip("."), message)
        self._check_env("prompt", name, prompt.env)

    def _check_entry(self, name: str, field: str, entry: ToolEntry) -> None:
        other = entry_name(entry)
        self._used.add(other)
        if is_external(other):
            return
        found = self._seen.callable(entry)
        if found is None and not isinstance(entry, SubpromptConfig | SubagentToolConfig) and self._is_of_server(other):
            return
        if found is None:
            self._problem("prompt", name, field, self._missing(entry))
        elif isinstance(entry, PromptToolConfig) and not isinstance(found, ToolDefinition):
            kind = "agent" if isinstance(found, AgentDefinition) else "prompt"
            config = "SubagentToolConfig" if kind == "agent" else "SubpromptConfig"
            self._problem("prompt", name, field, f'"{other}" is {_an(kind)}: use {config} for it, or its name alone')
        elif isinstance(found, AgentDefinition):
            self._check_agent_entry(name, field, entry, found)
        elif isinstance(entry, SubpromptConfig) and isinstance(found, PromptDefinition):
            self._check_init(name, field, entry, found)

    def _missing(self, entry: ToolEntry) -> str:
        """Returns what to say of an entry that names nothing."""
        other = entry_name(entry)
        if isinstance(entry, str | PromptToolConfig):
            return self._no_callable(other)
        wanted: Kind = "prompt" if isinstance(entry, SubpromptConfig) else "agent"
        kind = next((one for one in CALLABLE if self._seen.find(one, other) is not None), None)
        if kind is not None:
            return f'"{other}" is {_an(kind)}, not {_an(wanted)}: {type(entry).__name__} is for {wanted}s'
        near = self._hidden(wanted, other) or _near(other, self._seen.names(wanted))
        return f'there is no {wanted} "{other}".{near}'

    def _no_callable(self, name: str) -> str:
        hidden = next((text for kind in CALLABLE if (text := self._hidden(kind, name))), "")
        near = hidden or _near(name, [*self._seen.callable_names, *self._tools])
        return f'there is no tool, prompt or agent "{name}".{near}'

    def _is_of_server(self, name: str) -> bool:
        return name in self._tools or name.startswith("@")

    def _check_agent_entry(self, name: str, field: str, entry: ToolEntry, agent: AgentDefinition) -> None:
        if agent.type == "ai_human":
            if isinstance(entry, SubagentToolConfig):
                text = f'"{agent.name}" is an ai_human agent, which takes the thread over: subagents are dual_ai agents'
                self._problem("prompt", name, field, text)
            elif name in self._of_two_sides:
                text = f'"{agent.name}" would take the thread over, but this is the prompt of an agent with two sides'
                self._problem("prompt", name, field, text)
            return
        if not agent.expose_as_tool:
            text = f'the agent "{agent.name}" is not offered as a tool: it needs expose_as_tool=True'
            self._problem("prompt", name, field, text)
        if isinstance(entry, SubagentToolConfig):
            first = self._seen.find("prompt", agent.side_a.prompt)
            if first is not None:
                self._check_init(name, field, entry, first)

    def _check_init(
        self, name: str, field: str, entry: SubpromptConfig | SubagentToolConfig, called: PromptDefinition
    ) -> None:
        """The arguments that become the first message and its attachments are those of the prompt, if it has some."""
        if called.required_schema is None:
            return
        known = called.required_schema.get("properties", {})
        for one in ("init_user_message_property", "init_attachments_property", "init_agent_name_property"):
            wanted = getattr(entry, one, None)
            if wanted is not None and wanted not in known:
                text = f'the prompt "{called.name}" has no argument "{wanted}".{_near(wanted, known)}'
                self._problem("prompt", name, f"{field}.{one}", text)

    def _check_hooks(self, kind: Kind, name: str, ids: Sequence[str]) -> None:
        for index, id in enumerate(ids):
            if id in ids[:index]:
                self._problem(kind, name, f"hooks[{index}]", f'"{id}" is listed twice')
            else:
                self._require(kind, name, f"hooks[{index}]", "hook", id)

    def _check_agent(self, name: str, agent: AgentDefinition) -> None:
        for path, side in agent.sides.items():
            self._require("agent", name, f"{path}.prompt", "prompt", side.prompt)
            self._check_side(name, path, side)
        self._check_hooks("agent", name, agent.hooks)
        self._check_env("agent", name, agent.env)

    def _check_side(self, name: str, path: str, side: SideConfig) -> None:
        tools = {field: (one.name, one.message_property) for field, one in side.bindings.items()}
        attachments = {field: one.attachments_property for field, one in side.bindings.items()}
        if side.stop_tool is not None:
            tools["stop_tool"] = (side.stop_tool, side.stop_tool_response_property)
        prompt = self._seen.find("prompt", side.prompt)
        for field, (other, argument) in tools.items():
            where = f"{path}.{field}"
            if not self._require("agent", name, where, "tool", other):
                continue
            if prompt is not None and other not in map(entry_name, prompt.entries):
                text = f'"{other}" is not among the tools of the prompt "{side.prompt}", which so cannot call it'
                self._problem("agent", name, where, text)
            known = _arguments(self.registry.tools.get(other))
            for wanted in (argument, attachments.get(field)):
                if wanted is not None and known is not None and wanted not in known:
                    text = f'the tool "{other}" has no argument "{wanted}".{_near(wanted, known)}'
                    self._problem("agent", name, where, text)

    def _check_env(self, kind: Kind, name: str, env: Mapping[str, str]) -> None:
        for key, value in env.items():
            if key not in self._shown and _WORDLIKE.fullmatch(value):
                text = (
                    f"{value!r} is kept secret, as all defaults are, and so is cut out of every result that has it:"
                    " set it as a text of the thread, account or workspace, or show it in a prompt"
                )
                self._warn(kind, name, f"env.{key}", text)

    def _check_tool(self, name: str, tool: ToolDefinition) -> None:
        for index, other in enumerate(tool.uses or ()):
            self._used.add(other)
            if not is_external(other) and not self._is_of_server(other) and self._seen.callable(other) is None:
                self._problem("tool", name, f"uses[{index}]", self._no_callable(other))
        known = self._check_arguments("tool", name, tool)
        for field in ("confirm", "display_hint"):
            template = getattr(tool, field)
            if isinstance(template, str) and template and known is not None:
                self._check_template(name, field, template, known)
        if not tool.declares_effect:
            text = (
                'declares no effect: is it "read", "idempotent" or "once"? A call that a crash cuts off stays in doubt'
            )
            self._warn("tool", name, "effect", text)

    def _check_template(self, name: str, field: str, template: str, known: Iterable[str]) -> None:
        from weftline.tools.asking import checked_template, require_arguments

        try:
            require_arguments(checked_template(template, tool=name, what=field), set(known), tool=name, what=field)
        except ValueError as error:
            self._problem("tool", name, field, str(error).removeprefix(f"tool {name!r}: {field} "))

    def _check_arguments(
        self, kind: Kind, name: str, definition: ToolDefinition | EffectDefinition
    ) -> Iterable[str] | None:
        """Checks the schema of a function's arguments, and returns their names."""
        try:
            schema = msgspec.json.decode(definition.parameters.schema)
        except TypeError as error:
            self._problem(kind, name, "args", str(error).removeprefix(f"tool {name!r}: "))
            return None
        for path, message in schema_problems(schema):
            self._problem(kind, name, f"args.{path}", message)
        return schema["properties"]

    def _check_takes(self, kind: Kind, name: str, fn: Callable[..., Any], takes: tuple[str, ...]) -> None:
        try:
            inspect.signature(fn).bind(*takes)
        except TypeError:
            self._problem(kind, name, "", f"its function is called with ({', '.join(takes)}), which it does not take")
        except ValueError:
            return  # a builtin, whose signature nobody knows

    def _check_endpoint(self, key: str, endpoint: Any) -> None:
        self._check_takes("endpoint", key, endpoint.handler, ENDPOINT_TAKES)
        first = Route.parse(key).segments[:1]
        if first and first[0] in RESERVED_SEGMENTS:
            text = f"every thread has a route {first[0]!r} already: give the file another name"
            self._problem("endpoint", key, "", text)
        if endpoint.public:
            self._warn("endpoint", key, "public", "is open to everybody who knows the id of a thread")

    def _check_names(self) -> None:
        """Tools, and agents and prompts, are called by name: two of them must not have one, nor one alias."""
        registry = self.registry
        for name in registry.tools:
            for kind in ("agent", "prompt"):
                if name in registry.table(kind):
                    file, line = self._place(kind, name, "")
                    text = f"there is {_an(kind)} of this name too ({file}:{line}), and both can be called"
                    self._problem("tool", name, "name", text)
        aliases: dict[str, str] = {}
        for name in registry.callable_names:
            other = aliases.setdefault(alias_of(name), name)
            if other != name:
                kind: Kind = next(one for one in ("tool", "agent", "prompt") if name in registry.table(one))
                text = f'models would see it as "{alias_of(name)}", and "{other}" too'
                self._problem(kind, name, "name", text)

    def _check_cycles(self) -> None:
        prompts = self.registry.prompts
        includes = {
            name: [one.prompt for one in prompt.parts if isinstance(one, PromptIncludePart)]
            for name, prompt in prompts.items()
        }
        for cycle in _cycles(includes):
            self._problem("prompt", cycle[0], "prompt", f"includes itself: {_drawn(cycle)}")
        calls: dict[str, list[str]] = {}
        for name, prompt in prompts.items():
            called = [self.registry.callable(entry) for entry in prompt.entries]
            calls[name] = [one.name for one in called if isinstance(one, PromptDefinition)]
        for cycle in _cycles(calls):
            self._problem("prompt", cycle[0], "tools", f"calls itself: {_drawn(cycle)}")
        for cycle in _cycles({name: list(self._reached(one)) for name, one in self.registry.agents.items()}):
            text = f"can be called in a circle, which only limits end: {_drawn(cycle)}"
            self._warn("agent", cycle[0], "", text)

    def _reached(self, agent: AgentDefinition) -> Iterator[str]:
        """Yields the agents that an agent's prompts may call, directly or through prompts that they call."""
        waiting, seen = [side.prompt for side in agent.sides.values()], set[str]()
        while waiting:
            name = waiting.pop()
            prompt = self.registry.prompts.get(name)
            if prompt is None or name in seen:
                continue
            seen.add(name)
            for entry in prompt.entries:
                found = self.registry.callable(entry)
                if isinstance(found, AgentDefinition):
                    yield found.name
                elif isinstance(found, PromptDefinition):
                    waiting.append(found.name)

    def _warn_of_unused(self) -> None:
        kinds: tuple[Kind, ...] = ("model", "prompt", "tool", "hook", "effect")
        for kind in kinds:
            for name, definition in self.registry.table(kind).items():
                if name not in self._used and not is_packed(definition):
                    self._warn(kind, name, "", "is not used")


def _near(word: str, known: Iterable[str]) -> str:
    return did_you_mean(word, known).replace("'", '"')


def _an(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"


def _drawn(cycle: Sequence[str]) -> str:
    return " → ".join([*cycle, cycle[0]])


def _arguments(tool: ToolDefinition | None) -> Iterable[str] | None:
    """Returns the names of a tool's arguments; None if they are not known."""
    if tool is None:
        return None
    try:
        return msgspec.json.decode(tool.parameters.schema)["properties"]
    except TypeError:
        return None


def _cycles(edges: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Returns the circles of a graph, each once, and beginning with its first name."""
    found: dict[frozenset[str], list[str]] = {}
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> None:
        if name in path:
            circle = path[path.index(name) :]
            least = circle.index(min(circle))
            found.setdefault(frozenset(circle), circle[least:] + circle[:least])
            return
        if name in done:
            return
        for other in edges.get(name, ()):
            walk(other, [*path, name])
        done.add(name)

    for name in sorted(edges):
        walk(name, [])
    return list(found.values())


def _words_in(root: Path) -> set[str]:
    """Returns the texts in the code of a folder: the names by which tools and effects may be called there."""
    found: set[str] = set()
    files: list[Path] = []
    for folder, below, names in os.walk(root):
        below[:] = [one for one in below if not one.startswith((".", "_")) and one not in _OTHERS_CODE]
        files += [Path(folder, one) for one in names if one.endswith(".py")]
    for file in files:
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
        names = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.keyword) and one.arg in ("name", "id")}
        found |= {
            one.value
            for one in ast.walk(tree)
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in names
        }
    return found


def usual_names() -> Iterable[str]:
    """The names of the providers of a server that nobody configured."""
    from weftline.providers.catalog import usual_providers
    from weftline.providers.families import known_families

    return (*known_families(), *[one.name for one in usual_providers()], *SCRIPTED)


def usual_tools() -> Iterable[str]:
    """The names of the tools that every server has."""
    from weftline.tools.builtin import builtin_tools

    return (*builtin_tools(), "fetch")
