"""API keys: create, list, read, revoke."""

from __future__ import annotations

from weftline.cases import keys
from weftline.server.case import case
from weftline.server.router import Route

_BASE = "/api/v1/workspaces/{slug}/api-keys"
_LIMIT_BYTES = 256 * 1024
ROUTES = (
    Route(
        "POST",
        _BASE,
        **case(keys.create, status=201, limit_bytes=_LIMIT_BYTES, headers=((b"cache-control", b"no-store"),)),
        summary="Create an API key",
    ),
    Route("GET", _BASE, **case(keys.index), summary="The workspace's API keys"),
    Route("GET", f"{_BASE}/{{keyId}}", **case(keys.read), summary="Read an API key"),
    Route("DELETE", f"{_BASE}/{{keyId}}", **case(keys.revoke), summary="Revoke an API key"),
)
