"""The conversation of a model: messages, their parts, and token usage.

These types are stored in the log as JSON, so their names are data and never change. Everything here is
provider-neutral; data that only one provider understands is kept as `opaque` JSON and returned unchanged to the
provider that sent it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType


class Text(Struct, frozen=True, tag="text"):
    """Plain text."""

    text: str


class Image(Struct, frozen=True, tag="image", omit_defaults=True):
    """An image, by value (`data`, base64), by `url`, or by the id of a `Blob`, which has the data."""

    media_type: str
    data: str | None = None
    url: str | None = None
    name: str | None = None
    blob: str | None = None
    size: int | None = None
    """The size of the content in bytes, if it is a blob."""


class File(Struct, frozen=True, tag="file", omit_defaults=True):
    """A document such as a PDF, by value (`data`, base64), by `url`, or by the id of a `Blob`."""

    media_type: str
    data: str | None = None
    url: str | None = None
    name: str | None = None
    blob: str | None = None
    size: int | None = None


class Blob(Struct, frozen=True):
    """Content that is stored once, beside the log, and named in messages by its id, the hex SHA-256 of `data`."""

    id: str
    data: bytes


class Thinking(Struct, frozen=True, tag="thinking", omit_defaults=True):
    """One block of reasoning. `signature` and `opaque` belong to the provider and are sent back unchanged."""

    text: str = ""
    provider: str = ""
    signature: str | None = None
    opaque: Raw | UnsetType = UNSET


class ToolCall(Struct, frozen=True, tag="tool_call", omit_defaults=True):
    """A call that the model asked for.

    `args` is the JSON text exactly as the model wrote it; the tool pipeline finds out whether it is valid.
    `id` is unique within the run (the provider's own id unless that repeats). `extra` is opaque provider data.
    """

    id: str
    name: str
    args: str = "{}"
    provider: str = ""
    extra: Raw | UnsetType = UNSET


class ProviderCall(Struct, frozen=True, tag="provider_call", omit_defaults=True):
    """A tool that the provider itself ran (web search and the like): recorded, never executed here."""

    id: str
    name: str
    provider: str
    status: str = "completed"
    input: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    opaque: Raw | UnsetType = UNSET


class Opaque(Struct, frozen=True, tag="opaque"):
    """A piece of an assistant message that only `provider` understands; kept in place and sent back unchanged."""

    provider: str
    data: Raw


UserPart: TypeAlias = Text | Image | File
AssistantPart: TypeAlias = Text | Thinking | ToolCall | ProviderCall | Image | Opaque


class System(Struct, frozen=True, tag_field="role", tag="system"):
    """A system message."""

    content: str


class User(Struct, frozen=True, tag_field="role", tag="user", omit_defaults=True, gc=False):
    """A user message. `injected` marks one that the runtime added (a nudge, a final-turn instruction)."""

    parts: tuple[UserPart, ...]
    injected: bool = False

    @classmethod
    def of(cls, text: str, *, injected: bool = False) -> User:
        return cls((Text(text),), injected)

    @property
    def text(self) -> str:
        return joined_text(self.parts)


class Assistant(Struct, frozen=True, tag_field="role", tag="assistant"):
    """A message that a model wrote."""

    parts: tuple[AssistantPart, ...]

    @property
    def text(self) -> str:
        """The text that the model wrote; its parts are pieces of one text."""
        parts = self.parts
        if len(parts) == 1:
            return only.text if type(only := parts[0]) is Text else ""
        return "".join([part.text for part in parts if type(part) is Text])

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        parts = self.parts
        if len(parts) == 1:
            return (only,) if type(only := parts[0]) is ToolCall else ()
        return tuple([part for part in parts if type(part) is ToolCall])


class ToolResult(Struct, frozen=True, omit_defaults=True):
    """The result of a tool call, as the model reads it."""

    id: str
    name: str
    parts: tuple[UserPart, ...]
    is_error: bool = False

    @property
    def text(self) -> str:
        return joined_text(self.parts)


class ToolResults(Struct, frozen=True, tag_field="role", tag="tool"):
    """All results of one turn, in call order."""

    results: tuple[ToolResult, ...]


Message: TypeAlias = System | User | Assistant | ToolResults


class OutputSchema(Struct, frozen=True, forbid_unknown_fields=True):
    """The shape that the final answer must have. `schema` is JSON Schema, forwarded verbatim."""

    name: str
    schema: Raw


class Sampling(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Settings for sampling a model's output, and for stopping it. Those that are None are left to the model."""

    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    """The answer ends before any of these strings."""
    max_output_tokens: int | None = None
    """The limit for one answer, including thinking."""


class Usage(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Tokens of one or more model calls. `cached` and `cache_write` are part of `input`, `reasoning` of `output`."""

    input: int = 0
    cached: int = 0
    reasoning: int = 0
    output: int = 0
    cache_write: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
            self.output + other.output,
            self.cache_write + other.cache_write,
        )


def joined_text(parts: Sequence[UserPart]) -> str:
    """Joins the texts of a result or a user's message with newlines, as each part is a separate text."""
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return "\n".join([part.text for part in parts if isinstance(part, Text) and part.text])
