"""Agents without a server, in a process of its own: `python -m bench.library KIND ROUNDS RUNS MODEL_PORT`.

Prints milliseconds per run, one number per round. KIND is ours (`text`, `tool`, `durable`, `http`) or a peer that
is installed (`pydantic-ai`, `openai-agents`, `langgraph`): peers and `http` ask the same stand-in model over HTTP.
"""

# The peers are not installed where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

Once: TypeAlias = Callable[[], Awaitable[object]]

OURS = ("text", "tool", "durable", "http")
PEERS = {"pydantic-ai": "pydantic_ai", "openai-agents": "agents", "langgraph": "langgraph"}
"""With the module that tells whether it is installed."""


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@asynccontextmanager
async def ours(kind: str, port: int) -> AsyncGenerator[Once]:
    from weftline import Agent, Engine, tool
    from weftline.providers.catalog import Catalog
    from weftline.testing import ScriptedModel, calls

    counted = tool(effect="idempotent", blocking=False)(add)
    if kind == "http":
        from weftline.net.transport import AiohttpTransport
        from weftline.providers.catalog import build_catalog
        from weftline.providers.families import ProviderSettings

        transport = AiohttpTransport()
        address = f"http://127.0.0.1:{port}/v1"
        provider = ProviderSettings(
            name="lab", family="openai_chat", base_url=address, keyless=True, any_model=True, options={}
        )
        models = build_catalog([provider], transport=transport)
        agent = Agent("lab:tool", tools=[counted])
        async with Engine(models=models) as engine:
            yield lambda: agent.run("What is 2 + 3?", engine=engine)
        await transport.aclose()
        return
    model = ScriptedModel(["Five."] if kind == "text" else [calls("add", a=2, b=3), "Five."])
    if kind != "durable":
        agent = Agent(model, tools=[counted])
        yield lambda: agent.run("What is 2 + 3?")
        return
    models = Catalog()
    models.add(model, name="lab")
    agent = Agent("lab:script", name="sums", tools=[counted])
    with tempfile.TemporaryDirectory(dir=".") as folder:
        async with Engine(folder, agents=[agent], models=models) as engine:
            yield lambda: agent.run("What is 2 + 3?", engine=engine)


@asynccontextmanager
async def peer(kind: str, port: int) -> AsyncGenerator[Once]:
    address, prompt = f"http://127.0.0.1:{port}/v1", "What is 2 + 3?"
    if kind == "pydantic-ai":
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        model = OpenAIChatModel("tool", provider=OpenAIProvider(base_url=address, api_key="none"))
        one = Agent(model, tools=[add])

        async def once() -> object:
            async with one.run_stream(prompt) as streamed:
                return await streamed.get_output()

        yield once
    elif kind == "openai-agents":
        from agents import Agent as OpenAIAgent
        from agents import OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
        from openai import AsyncOpenAI

        set_tracing_disabled(True)
        client = AsyncOpenAI(base_url=address, api_key="none")
        agent: Any = OpenAIAgent(
            name="sums",
            model=OpenAIChatCompletionsModel(model="tool", openai_client=client),
            tools=[function_tool(add)],
        )

        async def streamed() -> object:
            result = Runner.run_streamed(agent, prompt)
            async for _ in result.stream_events():
                pass
            return result.final_output

        yield streamed
    else:
        from langchain_openai import ChatOpenAI
        from langgraph.prebuilt import create_react_agent

        chat = ChatOpenAI(model="tool", base_url=address, api_key="none", streaming=True)
        graph: Any = create_react_agent(chat, tools=[add])
        yield lambda: graph.ainvoke({"messages": [("user", prompt)]})


async def main(kind: str, rounds: int, runs: int, port: int) -> None:
    async with (ours if kind in OURS else peer)(kind, port) as once:
        await once()
        for _ in range(rounds):
            begun = time.perf_counter()
            for _ in range(runs):
                await once()
            print((time.perf_counter() - begun) * 1000 / runs, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:5])))
