"""Stored agents: list, create, read, replace, delete."""

from __future__ import annotations

from weftline.cases import agents
from weftline.server.case import case
from weftline.server.router import Route

_BASE = "/api/v1/workspaces/{slug}/agents"
ROUTES = (
    Route(
        "GET",
        _BASE,
        **case(agents.index),
        scopes=("agents:read",),
        narrowed="its agents",
        summary="List the stored agents",
    ),
    Route(
        "POST",
        _BASE,
        **case(agents.create, status=201),
        scopes=("agents:write",),
        summary="Store an agent",
        errors=(409,),
    ),
    Route(
        "GET",
        f"{_BASE}/{{agentId}}",
        **case(agents.read),
        scopes=("agents:read",),
        narrowed="its agents",
        summary="Read an agent",
    ),
    Route(
        "PUT",
        f"{_BASE}/{{agentId}}",
        **case(agents.replace),
        scopes=("agents:write",),
        summary="Replace an agent",
        errors=(409,),
    ),
    Route(
        "DELETE",
        f"{_BASE}/{{agentId}}",
        **case(agents.delete),
        scopes=("agents:write",),
        summary="Remove an agent",
        errors=(409,),
    ),
)
