"""What the suite runs as the client under test: Weftline's own connections and logins, one scenario a process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any
from urllib.parse import urljoin

import aiohttp
import msgspec
from mcp import Client

from weftline.net.dial import Dialer
from weftline.net.egress import Egress
from weftline.tools.base import ToolContext
from weftline.tools.mcp.pool import McpAddress, McpPool
from weftline.tools.mcp.signing_in import log_in
from weftline.tools.mcp.tools import McpTool, list_tools, offered

SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"]
VERSION = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "2025-11-25")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
MODE = "auto" if VERSION >= "2026-07-28" else "legacy"
METADATA = "https://conformance-test.local/client-metadata.json"
"""The document that the suite knows a client by, where it supports such documents."""


class Browser:
    """Says yes to everything: the suite's authorization server asks nobody."""

    redirect_uri = "http://localhost:3000/callback"

    def __init__(self) -> None:
        self._page = ""

    async def ask(self, url: str) -> None:
        self._page = url

    async def answer(self) -> str:
        async with (
            aiohttp.ClientSession() as http,
            http.get(self._page, allow_redirects=False) as reply,
        ):
            return urljoin(self._page, reply.headers["Location"])


async def use(client: Client) -> None:
    await client.list_tools()
    await client.call_tool("test-tool", {})


async def authorized(url: str) -> None:
    await log_in(
        url,
        Browser(),
        client_id=CONTEXT.get("client_id"),
        client_secret=CONTEXT.get("client_secret"),
        client_metadata_url=METADATA,
        mode=MODE,
        then=use,
    )


_VALUES: dict[str, Any] = {"string": "text", "number": 5, "integer": 5, "boolean": True, "array": [], "object": {}}


def arguments(tool: McpTool) -> dict[str, Any]:
    """Something for every argument that a tool asks for."""
    fields: dict[str, dict[str, Any]] = msgspec.json.decode(bytes(tool.spec.parameters)).get("properties", {})
    return {
        name: field["enum"][0] if "enum" in field else _VALUES[field.get("type", "string")]
        for name, field in fields.items()
    }


def calls(tools: dict[str, McpTool]) -> list[tuple[McpTool, dict[str, Any]]]:
    """What the scenario wants to be called, or else every tool with something."""
    if "toolCalls" in CONTEXT:
        return [(tools[f"t_{call['name']}"], call["arguments"]) for call in CONTEXT["toolCalls"]]
    if "t_json_schema_echo" in tools:
        seen = msgspec.json.decode(bytes(tools["t_json_schema_2020_12_tool"].spec.parameters))
        return [(tools["t_json_schema_echo"], {"schema": seen})]
    return [(tool, arguments(tool)) for tool in tools.values()]


async def connected(url: str) -> None:
    dialer = Dialer(Egress("private"))
    pool = McpPool(dialer, mode=MODE, connect_s=60)
    where = McpAddress(1, url)
    try:
        tools = offered("t", await list_tools(pool, where), pool=pool, address=where, tool_filter=None)
        for tool, args in calls({tool.name: tool for tool in tools}):
            context = ToolContext("run", "call", "key", tool.name, "conformance")
            print(tool.name, await tool.invoke(msgspec.json.encode(args), context))
    finally:
        await pool.aclose()
        await dialer.aclose()


if __name__ == "__main__":
    asyncio.run((authorized if SCENARIO.startswith("auth/") else connected)(sys.argv[1]))
