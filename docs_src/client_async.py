"""The asynchronous client: deadlines, taking up a run, and a session."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from weftline.client import AsyncClient, DeadlineExceeded, ToolContext, tool
from weftline.events import CallOpened, RunEnded
from weftline.testing import ServerProcess

SCRIPTS = {
    "stock": {
        "turns": [{"tool_calls": [{"name": "stock", "args": {"sku": "A7"}}]}, {"text": "{{tool_results.0}} left."}]
    },
    "slow": {"turns": [{"deltas": ["."] * 600, "delay_ms": 100}]},
    "echo": {"turns": [{"text": "So far: {{user_messages}}"}]},
}


@tool(timeout_s=30, max_concurrency=4)
async def stock(sku: str, context: ToolContext) -> int:
    """How many pieces of an article are in stock."""
    print("asked for", sku, "by", context.tool_use_id)
    return 12


async def limited(client: AsyncClient) -> None:
    try:
        await client.run("Take your time.", model_id="scripted:slow", deadline_s=0.5)
    except DeadlineExceeded as error:
        print("cancelled:", error.reason)


async def handed_over(client: AsyncClient) -> None:
    run = await client.start("How many A7?", model_id="scripted:stock", tools=[stock])
    await run.detach()  # as if this process had died here

    async with await client.attach(run.id, tools=[stock], last_seq=run.last_seq) as taken_up:
        print((await taken_up.result()).text)

    async with await client.attach(run.id, dispatch=False) as watched:
        calls = [event async for event in watched if isinstance(event, CallOpened)]
        print("calls seen:", len(calls))


async def conversation(client: AsyncClient) -> None:
    async with await client.create_session(model_id="scripted:echo") as session:
        await session.send("one")
        async for event in session.stream("two"):
            if isinstance(event, RunEnded):
                print(event.text)
        print(len(await session.history()), "messages,", session.usage.turns, "turns")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder), scripts=SCRIPTS) as server:
        key = server.create_key("acme")
        async with AsyncClient(api_key=key, workspace="acme", base_url=server.url) as client:
            await limited(client)
            await handed_over(client)
            await conversation(client)


if __name__ == "__main__":
    asyncio.run(main())
