"""Hosted MCP: the sessions of one workspace leave room for those of the others."""

from __future__ import annotations

import pytest

from weftline.server import hosted_mcp

from .kit import World

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}


async def test_a_workspace_has_so_many_mcp_sessions_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_mcp, "MAX_SESSIONS_PER_WORKSPACE", 2)
    keys = {slug: await world.key(slug) for slug in ("acme", "globex")}
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

    async def open_session(slug: str) -> int:
        call = world.call("POST", f"/api/mcp/{slug}", credential=keys[slug], headers=headers, body=INITIALIZE)
        return (await call).status

    try:
        assert [await open_session("acme") for _ in range(3)] == [200, 200, 503]
        assert await open_session("globex") == 200
    finally:
        await world.app.mcp.close()
