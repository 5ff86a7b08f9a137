"""What the table of routes itself says about who is let in."""

from __future__ import annotations

import pytest

from weftline.server.routes.every import ROUTES

from .kit import named

EXPECTED_SCOPES = {
    "GET models": "models:read",
    "POST agent-runs": "runs:write",
    "GET agent-runs/{runId}": "runs:read",
    "GET agent-runs/{runId}/stream": "runs:read",
    "POST agent-runs/{runId}/tool-results": "runs:write",
    "POST agent-runs/{runId}/tool-results/{awaitId}": "runs:write",
    "POST agent-runs/{runId}/cancel": "runs:write",
    "POST agent-sessions": "sessions:write",
    "GET agent-sessions/{sessionId}": "sessions:read",
    "DELETE agent-sessions/{sessionId}": "sessions:write",
    "POST agent-sessions/{sessionId}/messages": "sessions:write",
}


@pytest.mark.requirement("wire.auth.scopes")
def test_routes_of_protocol_have_scopes_that_it_names() -> None:
    scopes = {named(route).replace("/api/v1/workspaces/{slug}/", ""): route.scopes for route in ROUTES}
    assert {name: scopes[name] for name in EXPECTED_SCOPES} == {name: (s,) for name, s in EXPECTED_SCOPES.items()}
    assert scopes["GET /api/oauth/userinfo"] == ("mantyx.identity:read",)


def test_no_open_route_is_below_a_workspace() -> None:
    assert [named(route) for route in ROUTES if route.access == "public" and "{slug}" in route.path] == []
