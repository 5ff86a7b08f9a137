"""MCP servers of an agent that are dialled: the official one over HTTP, and one that speaks the older transport."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from server.tools.peers import TEAM, McpFarm, McpProcess, serving
from weftline import Agent, Engine, ToolContext, mcp, tool
from weftline.hooks import McpError
from weftline.testing import calls
from weftline.tools.mcp.address import Revision

from .small import Small, model, offered


@pytest.fixture(scope="module")
def farm() -> Generator[McpFarm]:
    farm = McpFarm()
    yield farm
    farm.close()


@pytest.fixture
def facts(farm: McpFarm) -> Generator[McpProcess]:
    with McpProcess(farm) as process:
        yield process


@pytest.mark.requirement("loop.mcp.tools")
async def test_servers_of_all_kinds_are_one_list(facts: McpProcess, tmp_path: Path) -> None:
    small = Small(tmp_path, "facts_too")

    @tool
    def add(a: int, b: int) -> str:
        """Of the agent's own."""
        return "own"

    scripted = model(calls("facts__add", a=1, b=2), calls("facts_too__look", what="x"), calls("add", a=1, b=2))
    agent = Agent(scripted, tools=[add, mcp(facts.url, name="facts", headers=TEAM), small.tools])
    async with Engine() as engine:
        result = await agent.run("Go.", engine=engine)
    assert [call.result for call in result.calls] == ["3", "look: x", "own"]
    assert offered(scripted)[0] == "add"
    assert "facts__get_weather" in offered(scripted)


async def test_server_of_two_revisions_is_addressed_in_the_requested_one(
    facts: McpProcess, caplog: pytest.LogCaptureFixture
) -> None:
    # Only in the older one can a tool ask while it runs.
    revisions: list[Revision | None] = [None, "2025-11-25", "2026-07-28"]
    answered: list[bool] = []
    async with Engine() as engine:
        for revision in revisions:
            server = mcp(
                facts.url, name="facts", headers=TEAM, revision=revision, on_elicit=lambda question: {"name": "Ann"}
            )
            result = await Agent(model(calls("facts__ask")), tools=[server]).run("Go.", engine=engine)
            answered.append(result.calls[0].result == "the answer was accept")
    assert answered == [True, True, False]
    (hint,) = [one.getMessage() for one in caplog.records if one.name == "weftline.tools.mcp.tools"]
    assert "facts__ask asks something during its calls" in hint and 'revision="2025-11-25"' in hint
    with pytest.raises(ValueError, match="sse"):
        mcp("https://example.com/sse", transport="sse", revision="2026-07-28")


@pytest.mark.parametrize("wrong", [{"revision": "2025-06-18"}, {"revision": 5}, {"transport": "ws"}])
def test_unknown_revision_or_transport_is_refused_when_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        mcp("https://example.com/mcp", **wrong)


async def test_a_server_that_was_started_anew_is_reached_again(facts: McpProcess) -> None:
    @tool
    def restart(context: ToolContext) -> str:
        """Restarts the server, which forgets its sessions."""
        facts.restart()
        return "restarted"

    scripted = model(calls("facts__add", a=1, b=2), calls("restart"), calls("facts__broken"))
    agent = Agent(scripted, tools=[mcp(facts.url, name="facts", headers=TEAM), restart])
    async with Engine() as engine:
        result = await agent.run("Go.", engine=engine)
    assert [call.result for call in result.calls[:2]] == ["3", "restarted"]
    assert "out of order" in result.calls[2].result  # the server's own words: it was called, although it is `once`


async def test_server_wanting_other_headers_is_unavailable(facts: McpProcess) -> None:
    scripted = model(calls("facts__unavailable"))
    agent = Agent(scripted, tools=[mcp(facts.url, name="facts", headers={"X-Team": "blue-secret-team"})])
    errors: list[McpError] = []
    agent.on(McpError)(errors.append)
    async with Engine() as engine:
        result = await agent.run("Go.", engine=engine)
    assert "401" in str(errors[0].error)
    assert result.status == "succeeded" and "401" in result.calls[0].result


async def test_simultaneous_runs_share_an_opening_despite_cancellation() -> None:
    listed, asked, go = 0, asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        nonlocal listed
        if request.method != "POST":
            return web.Response(status=405)
        message = json.loads(await request.read())
        if message["method"] == "initialize":
            about: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            return answer(message, {**about, "serverInfo": {"name": "slow", "version": "1"}})
        if message["method"] == "tools/list":
            listed += 1
            asked.set()
            await go.wait()
            return answer(message, {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]})
        return web.Response(status=202)

    async with serving(slow) as peer, Engine() as engine:
        models = [model() for _ in range(3)]
        agents = Agent(models[0], tools=[mcp(peer.url, name="slow")])
        runs = [await engine.start(agents, "Go.", model=one) for one in models]
        async with asyncio.timeout(20):
            await asked.wait()
        await runs[0].cancel()
        go.set()
        ended = [await run.result() for run in runs]
    assert [one.status for one in ended] == ["cancelled", "succeeded", "succeeded"]
    assert listed == 1
    assert offered(models[1]) == offered(models[2]) == ["slow__look"]


def answer(message: dict[str, Any], result: dict[str, Any]) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})


@pytest.mark.requirement("loop.mcp.tools")
async def test_a_server_of_the_older_transport_is_spoken_to() -> None:
    events: asyncio.Queue[str] = asyncio.Queue()

    async def old(request: web.Request) -> web.StreamResponse:
        if request.headers.get("x-team") != "red":
            return web.Response(status=401)
        if request.path == "/sse":
            stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await stream.prepare(request)
            await stream.write(b"event: endpoint\ndata: /messages?session=1\n\n")
            while True:
                await stream.write(f"event: message\ndata: {await events.get()}\n\n".encode())
        message = json.loads(await request.read())
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2024-11-05",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "old", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "seen"}]},
        }
        if "id" in message:
            reply = {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}
            events.put_nowait(json.dumps(reply))
        return web.Response(status=202)

    async with serving(old) as peer, Engine() as engine:
        server = mcp(f"{peer.url}/sse", name="old", headers=TEAM, transport="sse")
        result = await Agent(model(calls("old__look")), tools=[server]).run("Go.", engine=engine)
    assert result.calls[0].result == "seen"


async def test_durable_run_has_tools_again_in_next_process(tmp_path: Path) -> None:
    small = Small(tmp_path)
    for turn in ("one", "two"):
        agent = Agent(model(calls("small__look", what=turn)), name="finder", tools=[small.tools])
        async with Engine(tmp_path / "data", agents=[agent]) as engine:
            run = await engine.start(agent, "Go.", key=turn)
            assert (await run.result()).calls[0].result == f"look: {turn}"
    assert len(small.starts) == 2 and small.journal.count("end") == 2
