"""The agent card: one for both versions, each of which ignores the other's fields, or one for version 1.0 alone."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from weftline.server.a2a.parts import INPUT_MODES
from weftline.store.records.agents import AgentSummary
from weftline.wire.responses import iso

VERSIONS = ("1.0", "0.3")
"""Newest first, as callers that support both use the first."""


class Capabilities(Struct, frozen=True, rename="camel"):
    streaming: bool = True
    push_notifications: bool = False
    state_transition_history: bool | UnsetType = False
    """Version 0.3."""
    extended_agent_card: bool = False
    """Version 1.0."""


class Skill(Struct, rename="camel"):
    id: str
    name: str
    description: str
    tags: tuple[str, ...]
    input_modes: tuple[str, ...] = INPUT_MODES


class Interface(Struct, frozen=True, rename="camel"):
    url: str
    protocol_version: str
    protocol_binding: str = "JSONRPC"


class AgentCard(Struct, rename="camel", kw_only=True):
    name: str
    description: str
    version: str
    capabilities: Capabilities = Capabilities()
    default_input_modes: tuple[str, ...] = ("text/plain",)
    default_output_modes: tuple[str, ...] = ("text/plain",)
    skills: list[Skill]
    security_schemes: dict[str, dict[str, Any]]
    supported_interfaces: list[Interface]
    """Version 1.0 only, like the next field."""
    security_requirements: list[dict[str, Any]] = field(default_factory=lambda: [{"schemes": {"bearer": {"list": []}}}])
    protocol_version: str | UnsetType = "0.3.0"
    """Version 0.3 only, like the fields that follow."""
    url: str | UnsetType
    preferred_transport: str | UnsetType = "JSONRPC"
    security: list[dict[str, list[str]]] | UnsetType = field(default_factory=lambda: [{"bearer": []}])


class AgentCards(Struct):
    agents: list[AgentCard]


def card(agent: AgentSummary, *, url: str) -> AgentCard:
    """Returns the agent card; `url` is the agent's endpoint."""
    about = agent.description or agent.name
    return AgentCard(
        name=agent.name,
        description=about,
        url=url,
        version=iso(agent.updated_at),
        skills=[Skill(agent.slug, agent.name, about, ("agent",))],
        security_schemes={"bearer": {"type": "http", "scheme": "bearer"}},
        supported_interfaces=[Interface(url, version) for version in VERSIONS],
    )


def card_1(agent: AgentSummary, *, url: str) -> AgentCard:
    """Returns the card without the fields of version 0.3, and with the security scheme of version 1.0."""
    both = card(agent, url=url)
    both.capabilities = Capabilities(state_transition_history=UNSET)
    both.security_schemes = {"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}
    both.protocol_version = both.url = both.preferred_transport = both.security = UNSET
    return both
