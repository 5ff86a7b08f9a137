"""The model providers that a workspace brings: create, list, read, change, delete."""

from __future__ import annotations

from weftline.cases import providers
from weftline.server.case import case
from weftline.server.router import Route

_BASE = "/api/v1/workspaces/{slug}/providers"
_LIMIT_BYTES = 256 * 1024
# There is no scope for writing: pointing the workspace's runs at another address takes a developer API key.
ROUTES = (
    Route(
        "POST",
        _BASE,
        **case(providers.create, status=201, limit_bytes=_LIMIT_BYTES),
        summary="Add a model provider",
        errors=(409,),
    ),
    Route(
        "GET",
        _BASE,
        **case(providers.index),
        scopes=("models:read",),
        narrowed="yes",
        summary="The workspace's own model providers",
    ),
    Route(
        "GET",
        f"{_BASE}/{{providerId}}",
        **case(providers.read),
        scopes=("models:read",),
        narrowed="yes",
        summary="Read a model provider",
    ),
    Route(
        "PATCH",
        f"{_BASE}/{{providerId}}",
        **case(providers.change, limit_bytes=_LIMIT_BYTES),
        summary="Change a model provider",
        errors=(409,),
    ),
    Route("DELETE", f"{_BASE}/{{providerId}}", **case(providers.delete), summary="Delete a model provider"),
)
