"""Who may do what: the table of what a credential with an agent allow-list may do, route by route.

A credential restricted to some agents works only through those agents. What belongs to others seems not to exist, and
what belongs to the workspace as a whole is read-only at best. A route that is not in the table is closed to it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Narrowed: TypeAlias = Literal["yes", "its agents", "no"]
"""`its agents`: the route works for what belongs to the agents of the allow-list, and for nothing else."""

WORKSPACE = "/api/v1/workspaces/{slug}"


class Rule(Struct, frozen=True):
    what: str
    routes: tuple[str, ...]
    """Method and path; `…` stands for `WORKSPACE`."""
    narrowed: Narrowed


POLICY = (
    Rule("create runs", ("POST …/agent-runs",), "its agents"),
    Rule("list and read runs", ("GET …/agent-runs", "GET …/agent-runs/{runId}"), "its agents"),
    Rule("follow runs", ("GET …/agent-runs/{runId}/stream",), "its agents"),
    Rule("answer tool calls", ("POST …/agent-runs/{runId}/tool-results",), "its agents"),
    Rule("cancel runs", ("POST …/agent-runs/{runId}/cancel",), "its agents"),
    Rule("create sessions", ("POST …/agent-sessions",), "its agents"),
    Rule("list and read sessions", ("GET …/agent-sessions", "GET …/agent-sessions/{sessionId}"), "its agents"),
    Rule("send messages", ("POST …/agent-sessions/{sessionId}/messages",), "its agents"),
    Rule("end sessions", ("DELETE …/agent-sessions/{sessionId}",), "its agents"),
    Rule("list and read agents", ("GET …/agents", "GET …/agents/{agentId}"), "its agents"),
    Rule("write agents", ("POST …/agents", "PUT …/agents/{agentId}", "DELETE …/agents/{agentId}"), "no"),
    Rule("call agents over A2A", ("POST /api/a2a/{slug}/agents/{agentSlug}",), "its agents"),
    Rule(
        "read A2A cards",
        (
            "GET /api/a2a/{slug}/agents/{agentSlug}/.well-known/agent-card.json",
            "GET /api/a2a/{slug}/agents/{agentSlug}/.well-known/agent.json",
            "GET /api/a2a/{slug}/discovery",
        ),
        "its agents",
    ),
    Rule(
        "use agents over MCP", ("POST /api/mcp/{slug}", "GET /api/mcp/{slug}", "DELETE /api/mcp/{slug}"), "its agents"
    ),
    Rule("list models", ("GET …/models",), "yes"),
    Rule("find out its workspace", ("GET /api/v1/workspaces",), "yes"),
    Rule("list and read tools", ("GET …/tools", "GET …/tools/{toolId}"), "yes"),
    Rule("write tools", ("POST …/tools", "PATCH …/tools/{toolId}", "DELETE …/tools/{toolId}"), "no"),
    Rule("list and read providers", ("GET …/providers", "GET …/providers/{providerId}"), "yes"),
    Rule(
        "write providers",
        ("POST …/providers", "PATCH …/providers/{providerId}", "DELETE …/providers/{providerId}"),
        "no",
    ),
    Rule(
        "webhooks",
        (
            "GET …/webhooks",
            "POST …/webhooks",
            "GET …/webhooks/{webhookId}",
            "PATCH …/webhooks/{webhookId}",
            "DELETE …/webhooks/{webhookId}",
            "GET …/webhooks/{webhookId}/deliveries",
            "POST …/webhooks/{webhookId}/deliveries/{deliveryId}/redeliver",
        ),
        "no",
    ),
    Rule(
        "API keys",
        ("GET …/api-keys", "POST …/api-keys", "GET …/api-keys/{keyId}", "DELETE …/api-keys/{keyId}"),
        "no",
    ),
    Rule(
        "OAuth apps",
        ("GET …/oauth-apps", "POST …/oauth-apps", "GET …/oauth-apps/{clientId}", "DELETE …/oauth-apps/{clientId}"),
        "no",
    ),
    Rule("read one's own identity", ("GET /api/oauth/userinfo",), "yes"),
)

_BY_ROUTE: dict[str, Narrowed] = {
    route.replace("…", WORKSPACE): rule.narrowed for rule in POLICY for route in rule.routes
}


def narrowed(method: str, path: str) -> Narrowed:
    """What the route of this method and path is to a credential with an allow-list."""
    return _BY_ROUTE.get(f"{method} {path}", "no")
