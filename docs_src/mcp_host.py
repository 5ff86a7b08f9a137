"""An MCP host that uses a workspace's agents, with the official Python client."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextContent

from weftline.testing import ServerProcess

SCRIPTS = {"greet": {"turns": [{"text": "Hello to you too."}]}}


async def ask(url: str, key: str) -> None:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http,
        Client(streamable_http_client(url, http_client=http)) as host,
    ):
        print([tool.name for tool in (await host.list_tools()).tools])
        result = await host.call_tool("helper", {"message": "Hello!"})
        assert isinstance(result.content[0], TextContent)
        print(result.content[0].text, "from", (result.meta or {})["weftline/runId"])


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder), scripts=SCRIPTS) as server:
        key = server.create_key("acme")
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http:
            agent = {"name": "Helper", "spec": {"modelId": "scripted:greet"}}
            (await http.post(f"{server.url}/api/v1/workspaces/acme/agents", json=agent)).raise_for_status()
        await ask(f"{server.url}/api/mcp/acme", key)


if __name__ == "__main__":
    asyncio.run(main())
