"""What the suite runs as the client under test: a run of `weftline serve` that is given the scenario's MCP server.

Everything goes through what users have: the HTTP client, the command `weftline mcp login` with a browser that says yes,
and a model that calls the tools it is offered (in `__main__`). A login is made, or made again, whenever a result asks
for one, as an operator would.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from typing import Any

import aiohttp

from weftline.client import AsyncClient
from weftline.events import AwaitOpened, RunEnded

SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"]
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
SERVER, KEY, DB = (os.environ[f"WEFTLINE_KIT_{name}"] for name in ("SERVER", "KEY", "DB"))
METADATA = "https://conformance-test.local/client-metadata.json"
"""The document that the suite knows a client by, where it supports such documents."""
LOGINS = 3
"""How often an operator logs in before giving up."""
_ASKS_FOR_LOGIN = "weftline mcp login"
_NAMES_SCOPE = re.compile(r"It needs the scope '([^']+)'")


async def log_in(url: str, scope: str | None) -> None:
    """Runs the command, and opens the address that it prints; the suite's authorization server asks nobody."""
    command = [sys.executable, "-m", "weftline", "mcp", "login", url, "--workspace", "acme", "--db", DB]
    command += ["--client-metadata", METADATA]
    command += ["--scope", scope] if scope else []
    secret = CONTEXT.get("client_secret", "")
    if "client_id" in CONTEXT:
        command += ["--client-id", CONTEXT["client_id"]]
        command += ["--client-secret-stdin"] if secret else []
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None and process.stderr is not None
    process.stdin.write(f"{secret}\n".encode())
    process.stdin.close()
    async with aiohttp.ClientSession() as browser:
        async for line in process.stderr:
            print("login:", line.decode().rstrip())
            if line.startswith(b"http"):
                async with browser.get(line.decode().strip()) as page:
                    await page.read()
    if await process.wait() != 0:
        sys.exit("the login failed")


async def run(client: AsyncClient, url: str) -> str:
    """Runs an agent with the server's tools; whoever is asked accepts and fills in nothing. Returns all results."""
    tools = [{"kind": "mcp", "name": "t", "url": url, "elicitation": "ask"}]
    prompt = json.dumps(CONTEXT.get("toolCalls"))
    async with await client.start(prompt, model_id="kit:model", tools=tools) as run:
        async for event in run.events(raise_on_failure=False):
            match event:
                case AwaitOpened():
                    await run.answer(event.id, "yes" if event.options else {})
                case RunEnded():
                    print("run:", event.status, event.text)
                    return event.text or ""
                case _:
                    pass
    raise AssertionError("the run has not ended")


async def main(url: str) -> None:
    async with AsyncClient(api_key=KEY, workspace="acme", base_url=SERVER) as client:
        for _ in range(LOGINS):
            text = await run(client, url)
            if _ASKS_FOR_LOGIN not in text:
                return
            named = _NAMES_SCOPE.search(text)
            await log_in(url, named[1] if named else None)
        await run(client, url)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
