"""What a credential may do: the catalog of scopes, with the texts that ask a user for them, and lists of agents.

Some scopes have two names: the protocol's own and ours. Either works everywhere, and is returned as it was sent; what
an app may ask for and what a token allows depends on the meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from weftline.errors import invalid_field
from weftline.workspace.workspaces import is_slug

SCOPES: dict[str, str] = {
    "mantyx.identity:read": "see who you are: your id, your e-mail address and the workspace",
    "agents:read": "see the agents",
    "agents:write": "create and change agents",
    "agents:invoke": "use the agents",
    "sessions:read": "read sessions and their messages",
    "sessions:write": "create sessions, send messages to them and end them",
    "runs:read": "read and follow runs",
    "runs:write": "create runs, answer their tool calls and cancel them",
    "models:read": "see the models",
    "tools:read": "see the tools",
    "tools:write": "create and change tools",
    "budgets:read": "see the budgets and what is spent",
    "budgets:write": "set the limits of budgets",
    "schedules:read": "see the schedules",
    "schedules:write": "create and change schedules",
    "inbounds:read": "see the inbound channels",
    "inbounds:write": "create and change inbound channels",
    "plugins:read": "see the plugins",
    "hive:read": "read the workspace's knowledge",
    "hive:write": "change the workspace's knowledge",
    "a2a:discovery": "see the agents' A2A cards",
    "a2a:invoke": "talk to agents over A2A",
    "mcp:connect": "connect over MCP",
}

MCP_SCOPE = "mcp:connect"
"""What an MCP host asks for, and gets if it asks for nothing."""

USING_AGENTS = frozenset({"agents:invoke", "runs:write", "a2a:invoke", "mcp:connect"})
"""A user who grants one of these may restrict the app to some agents."""


OUR_NAMES: dict[str, str] = {
    "identity:read": "mantyx.identity:read",
    "knowledge:read": "hive:read",
    "knowledge:write": "hive:write",
}
"""Maps our name of a scope to the protocol's."""


def meaning(scope: str) -> str:
    """The protocol's name of a scope."""
    return OUR_NAMES.get(scope, scope)


def beyond(scopes: Iterable[str], allowed: Iterable[str]) -> list[str]:
    """Those of `scopes` that `allowed` does not cover."""
    covered = {meaning(scope) for scope in allowed}
    return [scope for scope in scopes if meaning(scope) not in covered]


def parse_scope(text: str) -> tuple[str, ...]:
    """The words of a `scope` parameter, without duplicates."""
    return distinct(text.split())


def distinct(scopes: Iterable[str]) -> tuple[str, ...]:
    """Each scope once, under the name that comes first."""
    found: dict[str, str] = {}
    for scope in scopes:
        found.setdefault(meaning(scope), scope)
    return tuple(found.values())


def unknown_scopes(scopes: tuple[str, ...]) -> list[str]:
    return [scope for scope in scopes if meaning(scope) not in SCOPES]


_MCP = "/api/mcp/"


def mcp_path(slug: str) -> str:
    return f"{_MCP}{slug}"


def slug_of(resource: str) -> str | None:
    """The workspace that a resource belongs to; None if there can be no such resource."""
    slug = resource.removeprefix(_MCP)
    return slug if resource.startswith(_MCP) and is_slug(slug) else None


_AGENT = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MAX_AGENTS = 1000


def checked_agents(agents: Sequence[str]) -> list[str]:
    """An allow-list without duplicates, in the order given."""
    listed = list(dict.fromkeys(agents))
    if len(listed) > _MAX_AGENTS:
        raise invalid_field("agents", f"at most {_MAX_AGENTS} can be listed.")
    for agent in listed:
        if not _AGENT.fullmatch(agent):
            raise invalid_field("agents", f"{agent[:200]!r} is not an agent id.")
    return listed
