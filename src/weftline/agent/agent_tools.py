"""The tools that an agent accepts, in all their forms, and the names under which a model sees them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from inspect import isroutine
from types import CodeType, MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from weftline.errors import Conflict
from weftline.messages import Assistant, Message, ToolCall, ToolResults
from weftline.providers.base import ModelRequest, ToolSpec
from weftline.tools.base import Adapter, Materializer, Measure, Shaping, Tool, Toolset

if TYPE_CHECKING:
    from typing_extensions import TypeIs


DepsT = TypeVar("DepsT")


class Function(Protocol):
    """A function defined with `def`. Requires `__code__`, so that a callable tool does not match."""

    @property
    def __code__(self) -> CodeType: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


AgentTool: TypeAlias = Tool[DepsT] | Toolset | Function | MethodType
"""What an agent's list of tools can hold: a tool, a toolset, or a function that becomes a tool."""


def name_of(one: AgentTool[Any]) -> str | None:
    """Returns the name of a tool or function, or of a toolset that has one. Most have none."""
    return getattr(one, "name", None) or getattr(one, "__name__", None)


def merged(below: Sequence[AgentTool[Any]], above: Sequence[AgentTool[Any]]) -> tuple[AgentTool[Any], ...]:
    """Returns both lists. Tools in `above` replace those of the same name in `below`."""
    keys = {_key(one): one for one in above}
    kept = [keys.pop(_key(one), one) for one in below]
    return (*kept, *[one for one in above if _key(one) in keys])


def to_tool(one: AgentTool[Any]) -> Tool[Any] | Toolset:
    """Returns a tool or toolset unchanged, and turns a function into a tool. Raises `TypeError` for anything else."""
    if (hasattr(one, "spec") and hasattr(one, "prepare")) or is_toolset(one):
        return cast("Tool[Any] | Toolset", one)
    if isroutine(one):
        from weftline.tools.decorator import tool  # only needed for functions

        made: Tool[Any] = tool(cast("Any", one))
        return made
    raise TypeError(f"{one!r} is neither a tool nor a function")


def is_toolset(one: AgentTool[Any]) -> TypeIs[Toolset]:
    return hasattr(one, "open") and hasattr(one, "close") and not hasattr(one, "spec")


def _key(one: AgentTool[Any]) -> object:
    name = name_of(one)
    if name is not None:
        return name
    # An agent has one set of skills: the last one given.
    return "skills" if hasattr(one, "on_catalog") else id(one)


def toolset(
    name: str,
    *tools: Any,
    adapt: Adapter | None = None,
    materialize: Materializer | None = None,
    telemetry: Measure | None = None,
) -> tuple[Tool[Any], ...]:
    """Tools and functions as a set with a name, for an agent: `Agent(…, tools=[*toolset("billing", invoice, refund)])`.

    Args:
        name: What the tools see as `context.toolset`.
        adapt: Gets each call before its arguments are read. What it returns replaces them, as an object or as JSON;
            None or an empty value keeps them. What it raises is the result of the call.
        materialize: Gets each result before it is stored, from the tool or from a person, as a `ToolOutput`. What it
            returns replaces the result, and may be anything that a tool may return; None keeps it. It may add to
            `call.server_data`.
        telemetry: Returns what a call used, if its tool did not report it: gets the call and the milliseconds.

    Raises:
        ValueError: without a name.
        TypeError: for anything that is neither a tool nor a function.
    """
    if not name or not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError("a set of tools needs a name")
    for what, function in (("adapt", adapt), ("materialize", materialize), ("telemetry", telemetry)):
        if function is not None and not callable(function):
            raise TypeError(f"toolset {name!r}: {what} must be a function, not {type(function).__name__}")
    shaping, found = Shaping(name, adapt, materialize, telemetry), list[Tool[Any]]()
    for one in tools:
        if is_toolset(one):
            raise TypeError(f"toolset {name!r}: {type(one).__name__} is a set of tools itself")
        shaped: Any = copy.copy(to_tool(one))  # a copy, since it may be in other toolsets or in none
        shaped.traits = replace(shaped.traits, shaping=shaping)
        found.append(shaped)
    return tuple(found)


class Aliases:
    """Translates between tool names and wire names. `aliases` maps some tools' own names to wire names."""

    def __init__(self, aliases: Mapping[str, str] | None = None) -> None:
        self._wire = {own: wire for own, wire in (aliases or {}).items() if own != wire}
        self._own = {wire: own for own, wire in self._wire.items()}
        self._source: Sequence[Message] | None = None
        self._model = ""
        self._aliased: list[Message] = []
        self._native: list[bytes | None] = []

    def __bool__(self) -> bool:
        return bool(self._wire)

    @property
    def by_name(self) -> Mapping[str, str]:
        return self._wire

    def wire(self, name: str) -> str:
        return self._wire.get(name, name)

    def own(self, name: str) -> str:
        return self._own.get(name, name)

    def received(self, message: Assistant) -> Assistant:
        """Returns the model's message with the tools' own names."""
        if not self._wire or not message.calls:
            return message
        return _renamed(message, self._own)

    def sent(self, request: ModelRequest, *, whole: bool) -> ModelRequest:
        """Returns the request with wire names, in its tools and in earlier calls.

        `whole` means that its messages are the run's own list, which only grows, so earlier translations are reused.
        """
        if not self._wire:
            return request
        choice = request.tool_choice
        if isinstance(choice, tuple):
            choice = ("tool", self.wire(choice[1]))
        tools: list[ToolSpec] = [replace(tool, name=self.wire(tool.name)) for tool in request.tools]
        if not whole:
            messages = [self._message(message) for message in request.messages]
            return replace(request, messages=messages, tools=tools, tool_choice=choice, native=[])
        if self._source is not request.messages or self._model != request.model:
            self._source, self._model, self._aliased, self._native = request.messages, request.model, [], []
        self._aliased += [self._message(message) for message in request.messages[len(self._aliased) :]]
        return replace(request, messages=self._aliased, tools=tools, tool_choice=choice, native=self._native)

    def _message(self, message: Message) -> Message:
        match message:
            case Assistant() if message.calls:
                return _renamed(message, self._wire)
            case ToolResults():
                return ToolResults(tuple([replace(one, name=self.wire(one.name)) for one in message.results]))
            case _:
                return message


RESERVED = "__output__"
"""The name that other libraries give to the tool for typed output.

Weftline has no such tool and lets no tool pose as it.
"""


def check_names(tools: Iterable[str], aliases: Mapping[str, str]) -> None:
    """Raises `Conflict` if two tools would have the same name for the model, or one has a reserved name."""
    taken: dict[str, str] = {}
    for own in tools:
        wire = aliases.get(own, own)
        if RESERVED in (own, wire):
            raise Conflict(f"{RESERVED!r} cannot be the name of a tool: it stands for the answer itself.")
        if wire in taken and taken[wire] != own:
            raise Conflict(f"The tools {taken[wire]!r} and {own!r} would have the same name for the model, {wire!r}.")
        taken[wire] = own


def _renamed(message: Assistant, names: Mapping[str, str]) -> Assistant:
    parts = [
        replace(part, name=names.get(part.name, part.name)) if isinstance(part, ToolCall) else part
        for part in message.parts
    ]
    return replace(message, parts=tuple(parts))
