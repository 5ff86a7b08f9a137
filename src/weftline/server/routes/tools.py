"""Stored tools: create, list, read, change, delete."""

from __future__ import annotations

from weftline.cases import tools
from weftline.server.case import case
from weftline.server.router import Route

_BASE = "/api/v1/workspaces/{slug}/tools"
_LIMIT_BYTES = 256 * 1024
ROUTES = (
    Route(
        "POST",
        _BASE,
        **case(tools.create, status=201, limit_bytes=_LIMIT_BYTES),
        scopes=("tools:write",),
        summary="Store a tool",
        errors=(409,),
    ),
    Route(
        "GET",
        _BASE,
        **case(tools.index),
        scopes=("tools:read",),
        narrowed="yes",
        summary="The stored tools",
    ),
    Route(
        "GET",
        f"{_BASE}/{{toolId}}",
        **case(tools.read),
        scopes=("tools:read",),
        narrowed="yes",
        summary="Read a stored tool",
    ),
    Route(
        "PATCH",
        f"{_BASE}/{{toolId}}",
        **case(tools.change, limit_bytes=_LIMIT_BYTES),
        scopes=("tools:write",),
        summary="Change a stored tool",
        errors=(409,),
    ),
    Route(
        "DELETE", f"{_BASE}/{{toolId}}", **case(tools.delete), scopes=("tools:write",), summary="Delete a stored tool"
    ),
)
