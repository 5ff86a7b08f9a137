"""The names by which the model knows tools. Everything inside uses the tools' own names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from weftline.errors import Conflict
from weftline.messages import Assistant, Message, ToolCall, ToolResults
from weftline.providers.base import ModelRequest, ToolSpec


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
