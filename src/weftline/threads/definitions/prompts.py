"""Prompts: what a model is told, which model that is, and which tools it may call.

prompt = define_prompt(
    name="triage", model="fast", tool_description="Sorts a request.",
    prompt=["You answer for ", PromptEnvPart("COMPANY"), ". ", PromptIncludePart("tone")],
    tools=["find_order", "refunds", PromptToolConfig("refund", options={"currency": "EUR"})],
)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from weftline.errors import Issue
from weftline.threads.definitions.base import EXTERNAL, Checks, DefinitionError, EnvType, PackedMetadata, schema_of
from weftline.threads.definitions.models import as_dict, as_tuple

ToolChoice: TypeAlias = Literal["auto", "none", "required"]
Effort: TypeAlias = Literal["low", "medium", "high"]
LEVEL_OF: dict[Effort, int] = {"low": 30, "medium": 50, "high": 80}
"""The level, from 0 to 100, that each effort stands for."""
TRUE_VALUES = ("true", "1", "yes")
"""What switches an `optional` subagent on, in any letter case."""


class PromptTextPart(Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Text, as it stands."""

    content: str


class PromptIncludePart(Struct, frozen=True, tag_field="type", tag="include", forbid_unknown_fields=True):
    """The text of another prompt."""

    prompt: str


class PromptEnvPart(Struct, frozen=True, tag_field="type", tag="env", forbid_unknown_fields=True):
    """The value of a variable."""

    property: str


PromptPart: TypeAlias = PromptTextPart | PromptIncludePart | PromptEnvPart


class ReasoningConfig(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How much a model reasons: a `level` from 0 to 100, or an `effort`, which stands for 30, 50 or 80."""

    level: int | None = None
    effort: Effort | None = None
    max_tokens: int | None = None
    include: bool | None = None
    exclude: bool | None = None


class VariableDefinition(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A variable that a prompt, tool or agent needs. One that is `scoped` is not inherited from the parent thread."""

    name: str
    type: EnvType = "text"
    required: bool = False
    scoped: bool = False
    description: str = ""


class Resumable(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How a subagent that stays is reached: which side reads messages, how many may live, who reports."""

    receives_messages: Literal["side_a", "side_b"]
    max_instances: int | None = None
    parent_communication: Literal["implicit", "explicit"] = "implicit"


class Immediate(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A subagent that is made with its prompt: the variables with its name, its description and its own values."""

    name_env: str | None = None
    description_env: str | None = None
    scoped_env: tuple[str, ...] = ()


class _Named(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: str


class PromptToolConfig(_Named, frozen=True, kw_only=True):
    """A tool with variables and static options of its own in this prompt."""

    env: dict[str, str] = {}
    options: dict[str, Any] = {}


class SubpromptConfig(_Named, frozen=True, kw_only=True):
    """A prompt as a tool: what of its answer is the result, and which arguments become its first message."""

    include_text_response: bool = True
    include_tool_calls: bool = True
    include_errors: bool = True
    init_user_message_property: str | None = None
    init_attachments_property: str | None = None


class SubagentToolConfig(_Named, frozen=True, kw_only=True):
    """A two-sided agent as a tool, on a thread of its own."""

    blocking: bool = True
    resumable: Resumable | Literal[False] = False
    init_user_message_property: str | None = None
    init_attachments_property: str | None = None
    init_agent_name_property: str | None = None
    immediate: Immediate | bool = False
    optional: str | None = None
    """The variable that switches it on with `true`, `1` or `yes`."""


ToolEntry: TypeAlias = str | PromptToolConfig | SubpromptConfig | SubagentToolConfig
"""An entry of a prompt's `tools`. A name alone is a tool, an agent or a prompt; `provider:x`, `mcp:x` are external."""
CONFIGS: tuple[type[PromptToolConfig], type[SubpromptConfig], type[SubagentToolConfig]] = (
    PromptToolConfig,
    SubpromptConfig,
    SubagentToolConfig,
)


def entry_name(entry: ToolEntry) -> str:
    return entry if isinstance(entry, str) else entry.name


class PromptDefinition(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A prompt of a folder."""

    name: str
    tool_description: str
    prompt: str | tuple[PromptPart, ...]
    model: str
    """A model of the folder, or one that the server knows: `openai:gpt-5`. Empty for the server's default."""
    include_chat: bool | None = None
    """Whether the thread's history is sent; by default for a side's prompt, not for one that is called as a tool."""
    include_past_tools: bool = False
    parallel_tool_calls: bool = False
    tool_choice: ToolChoice = "auto"
    required_schema: dict[str, Any] | None = None
    """JSON Schema of its arguments when it is called as a tool."""
    variables: tuple[VariableDefinition, ...] = ()
    tools: tuple[str | dict[str, Any] | Any, ...] = ()
    """Entries; see `ToolEntry`."""
    env: dict[str, str] = {}
    reasoning: ReasoningConfig | None = None
    recent_image_threshold: int = 10
    provider_options: dict[str, Any] = {}
    hooks: tuple[str, ...] | None = None
    """Ids of hooks, which replace the agent's; None for the agent's."""
    packed: PackedMetadata | None = None
    """The package that it is from; None for one of the folder itself."""

    def __post_init__(self) -> None:
        checks = Checks("prompt", self.name, self.packed)
        entries = _entries(self.tools, checks)
        msgspec.structs.force_setattr(self, "tools", entries)
        checks.callable_name(self.name)
        checks.text(self.tool_description, "tool_description")
        _check_parts(self.prompt, checks)
        if not isinstance(cast(object, self.model), str):
            checks.problem("model", f"must be the name of a model, not {self.model!r}")
        if self.include_chat is not None:
            checks.flag(self.include_chat, "include_chat")
        checks.flag(self.include_past_tools, "include_past_tools")
        checks.flag(self.parallel_tool_calls, "parallel_tool_calls")
        checks.choice(self.tool_choice, "tool_choice", ("auto", "none", "required"))
        checks.whole(self.recent_image_threshold, "recent_image_threshold")
        checks.env(self.env)
        checks.options(self.provider_options, "provider_options")
        if self.hooks is not None:
            checks.names(self.hooks, "hooks")
        check_variables(self.variables, checks)
        if self.required_schema is not None and self.required_schema.get("type", "object") != "object":
            checks.problem("required_schema", "must describe an object")
        if self.reasoning is not None:
            _check_reasoning(self.reasoning, checks)
        checks.done()

    @property
    def parts(self) -> tuple[PromptPart, ...]:
        """The prompt in parts, whichever way it was written."""
        return (PromptTextPart(self.prompt),) if isinstance(self.prompt, str) else self.prompt

    @property
    def entries(self) -> tuple[ToolEntry, ...]:
        """The entries of `tools`."""
        return cast("tuple[ToolEntry, ...]", self.tools)


def define_prompt(
    *,
    name: str,
    tool_description: str,
    prompt: str | Sequence[str | PromptPart],
    model: str,
    include_chat: bool | None = None,
    include_past_tools: bool = False,
    parallel_tool_calls: bool = False,
    tool_choice: ToolChoice = "auto",
    required_schema: Mapping[str, Any] | type | None = None,
    variables: Iterable[VariableDefinition] = (),
    tools: Iterable[ToolEntry] = (),
    env: Mapping[str, str] | None = None,
    reasoning: ReasoningConfig | None = None,
    recent_image_threshold: int = 10,
    provider_options: Mapping[str, Any] | None = None,
    hooks: Iterable[str] | None = None,
) -> PromptDefinition:
    """Returns a prompt of a folder.

    Raises:
        DefinitionError: if a field is wrong; all of them are named.
    """
    parts: object = prompt
    if not isinstance(prompt, str) and isinstance(cast(object, prompt), Iterable):
        parts = tuple([PromptTextPart(one) if isinstance(one, str) else one for one in prompt])
    if not model:
        raise DefinitionError(f'prompt "{name}"', [Issue("model", "is missing")])
    return PromptDefinition(
        name=name,
        tool_description=tool_description,
        prompt=cast("str | tuple[PromptPart, ...]", parts),
        model=model,
        include_chat=include_chat,
        include_past_tools=include_past_tools,
        parallel_tool_calls=parallel_tool_calls,
        tool_choice=tool_choice,
        required_schema=None if required_schema is None else schema_of(required_schema),
        variables=as_tuple(variables),
        tools=as_tuple(tools),
        env=as_dict(env),
        reasoning=reasoning,
        recent_image_threshold=recent_image_threshold,
        provider_options=as_dict(provider_options),
        hooks=None if hooks is None else as_tuple(hooks),
    )


def _check_parts(prompt: object, checks: Checks) -> None:
    if isinstance(prompt, str):
        checks.text(prompt, "prompt")
        return
    checks.instances(prompt, "prompt", (PromptTextPart, PromptIncludePart, PromptEnvPart), "text or part")
    if not prompt:
        checks.problem("prompt", "is missing")
    if not isinstance(prompt, tuple):
        return
    for index, part in enumerate(cast("tuple[object, ...]", prompt)):
        if isinstance(part, PromptEnvPart):
            checks.variable(part.property, f"prompt[{index}]")
        elif isinstance(part, PromptIncludePart):
            checks.name(part.prompt, f"prompt[{index}]")


def _entries(given: object, checks: Checks) -> tuple[ToolEntry, ...]:
    """Returns the entries of `tools`, checked; those that come from JSON are read."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        checks.problem("tools", f"must be a list, not {given!r}")
        return ()
    found: list[ToolEntry] = []
    for index, one in enumerate(cast("Iterable[object]", given)):
        path = f"tools[{index}]"
        if isinstance(one, Mapping):
            one = _read_entry(cast("dict[str, Any]", one), path, checks)
            if one is None:
                continue
        if isinstance(one, str):
            _check_external(one, path, checks)
            found.append(one)
        elif isinstance(one, CONFIGS):
            _check_entry(one, path, checks)
            found.append(one)
        else:
            hint = " Put its name here." if hasattr(one, "__name__") or isinstance(one, Struct) else ""
            checks.problem(
                path, f"must be a name or an entry such as PromptToolConfig(…), not {type(one).__name__}.{hint}"
            )
    return tuple(found)


def _check_external(name: str, path: str, checks: Checks) -> None:
    for prefix in EXTERNAL:
        if name.startswith(prefix):
            if not name[len(prefix) :].strip():
                checks.problem(path, f"{name!r} has no name after {prefix!r}")
            return
    if not name.strip():
        checks.problem(path, "is empty")


def _read_entry(value: dict[str, Any], path: str, checks: Checks) -> ToolEntry | None:
    """Reads an entry from JSON. Which kind it is, its fields say."""
    value = dict(value)
    if "tenvs" in value:
        _warn_of_tenvs()
        value["env"] = {**value.pop("tenvs"), **value.get("env", {})}
    for kind in (PromptToolConfig, SubpromptConfig, SubagentToolConfig):
        known = {one.encode_name for one in msgspec.structs.fields(kind)}
        if value.keys() <= known:
            try:
                return msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                checks.problem(path, str(error))
                return None
    known = {one.encode_name for kind in CONFIGS for one in msgspec.structs.fields(kind)}
    unknown = sorted(value.keys() - known)
    checks.problem(path, f"has unknown fields: {', '.join(unknown)}" if unknown else "mixes fields of several kinds")
    return None


def _check_entry(entry: PromptToolConfig | SubpromptConfig | SubagentToolConfig, path: str, checks: Checks) -> None:
    if not isinstance(cast(object, entry.name), str) or not entry.name.strip():
        checks.problem(f"{path}.name", "is missing")
        return
    if isinstance(entry, PromptToolConfig):
        _check_external(entry.name, path, checks)
        checks.env(entry.env, f"{path}.env")
        checks.options(entry.options, f"{path}.options")
    elif isinstance(entry, SubpromptConfig):
        for field in ("include_text_response", "include_tool_calls", "include_errors"):
            checks.flag(getattr(entry, field), f"{path}.{field}")
    else:
        _check_subagent(entry, path, checks)


def _check_subagent(entry: SubagentToolConfig, path: str, checks: Checks) -> None:
    checks.flag(entry.blocking, f"{path}.blocking")
    resumable: object = entry.resumable
    if isinstance(resumable, Resumable):
        where = f"{path}.resumable"
        checks.choice(resumable.receives_messages, f"{where}.receives_messages", ("side_a", "side_b"))
        checks.choice(resumable.parent_communication, f"{where}.parent_communication", ("implicit", "explicit"))
        if resumable.max_instances is not None:
            checks.whole(resumable.max_instances, f"{where}.max_instances", least=1)
    elif resumable is not False:
        checks.problem(f"{path}.resumable", f"must be False or Resumable('side_a'), not {resumable!r}")
    if isinstance(entry.immediate, Immediate):
        for field in ("name_env", "description_env"):
            if getattr(entry.immediate, field) is not None:
                checks.variable(getattr(entry.immediate, field), f"{path}.immediate.{field}")
        for index, name in enumerate(entry.immediate.scoped_env):
            checks.variable(name, f"{path}.immediate.scoped_env[{index}]")
    else:
        checks.flag(entry.immediate, f"{path}.immediate")
    if entry.optional is not None:
        checks.variable(entry.optional, f"{path}.optional")


def check_variables(variables: object, checks: Checks) -> None:
    """The `variables` of a prompt, tool or agent."""
    checks.instances(variables, "variables", VariableDefinition, "VariableDefinition")
    seen: set[str] = set()
    if isinstance(variables, str) or not isinstance(variables, Iterable):
        return
    for index, one in enumerate(cast("Iterable[object]", variables)):
        if not isinstance(one, VariableDefinition):
            continue
        path = f"variables[{index}]"
        checks.variable(one.name, path)
        checks.choice(one.type, f"{path}.type", ("text", "secret"))
        if one.name in seen:
            checks.problem(path, f"{one.name!r} is declared twice")
        seen.add(one.name)


def _check_reasoning(reasoning: object, checks: Checks) -> None:
    if not isinstance(reasoning, ReasoningConfig):
        checks.problem("reasoning", f"must be a ReasoningConfig, not {reasoning!r}")
        return
    if reasoning.level is not None:
        checks.whole(reasoning.level, "reasoning.level", most=100)
    if reasoning.effort is not None:
        checks.choice(reasoning.effort, "reasoning.effort", LEVEL_OF)
        if reasoning.level is not None:
            checks.problem("reasoning.effort", "says the same as level: give one of them")
    if reasoning.max_tokens is not None:
        checks.whole(reasoning.max_tokens, "reasoning.max_tokens", least=1)


def _warn_of_tenvs() -> None:
    warnings.warn("tenvs is deprecated: write env (or variables, for a tool)", DeprecationWarning, stacklevel=6)
