"""What a run is to do, in our own words: the spec of its first entry, read once and trusted from then on."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from weftline.kernel.entries import Limits
from weftline.messages import Message
from weftline.providers.base import OutputSchema


class LocalRef(Struct, frozen=True):
    """A tool that the client carries out."""

    name: str
    description: str = ""
    parameters: Raw | UnsetType = UNSET
    output_schema: Raw | UnsetType = UNSET
    long_running: bool = False


class A2ALocalRef(Struct, frozen=True):
    """An A2A peer that the client talks to. `card` is the whole agent card, as sent."""

    name: str
    card: Raw
    description: str | None = None


class McpLocalEntry(Struct, frozen=True):
    name: str
    raw: Raw
    """The entry of `tools[]` as sent."""


class McpLocalRef(Struct, frozen=True):
    """The tools of an MCP server that the client talks to."""

    server: str
    tools: tuple[McpLocalEntry, ...]
    info: Raw | UnsetType = UNSET


class A2ARef(Struct, frozen=True):
    """An A2A peer that the server dials. Secret headers are kept apart from the plan, by tool name."""

    name: str
    card_url: str
    description: str | None = None
    context_id: str | None = None


class McpRef(Struct, frozen=True):
    """An MCP server that the server dials. Secret headers are kept apart from the plan, by tool name."""

    name: str
    url: str
    tool_filter: tuple[str, ...] | None = None


class StoredRef(Struct, frozen=True):
    """A tool stored in the workspace."""

    id: str


class PluginRef(Struct, frozen=True):
    """A tool that the server has installed or loaded, by name."""

    name: str


ToolRef: TypeAlias = LocalRef | A2ALocalRef | McpLocalRef | A2ARef | McpRef | StoredRef | PluginRef


class RunPlan(Struct, frozen=True):
    """`messages` are those of this run alone; a thread's history comes before them."""

    messages: tuple[Message, ...]
    name: str = "ephemeral"
    agent_id: str | None = None
    model: str | None = None
    """The model as the client named it; None asks for the default."""
    fallbacks: tuple[str, ...] = ()
    """Models to ask, in order, when the one before has used up its retries."""
    system: str | None = None
    reasoning: int | None = None
    tools: tuple[ToolRef, ...] = ()
    output_schema: OutputSchema | None = None
    limits: Limits = Limits()
    metadata: dict[str, str] = {}
