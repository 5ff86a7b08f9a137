"""Large answers over A2A and hosted MCP: they have room, wait for it, and are lost to clients that do not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.server.large import LargeResponses
from weftline.store.records import workspaces

from .kit import Reply, World

SAID = "x" * 100_000
ROOM_BYTES = 1_000_000
A2A = "/api/a2a/acme/agents/helper"
MCP = "/api/mcp/acme"
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


class Agent:
    """Called over both protocols."""

    def __init__(self, world: World, key: str) -> None:
        self.world = world
        self.key = key
        self.task = ""

    async def a2a(self, method: str, **options: Any) -> Reply:
        params: dict[str, Any] = {"id": self.task}
        if method.startswith("message/"):
            parts = [{"kind": "text", "text": SAID}]
            params = {"message": {"role": "user", "messageId": "m", "kind": "message", "parts": parts}}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self.world.call("POST", A2A, credential=self.key, headers=ACCEPT, body=body, **options)

    async def mcp(self, **options: Any) -> Reply:
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": "helper", "arguments": {"message": SAID}, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {**ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "helper"}
        return await self.world.call("POST", MCP, credential=self.key, headers=headers, body=body, **options)


Ask = Callable[..., Coroutine[Any, Any, Reply]]


@pytest.fixture
async def agent(world: World) -> AsyncGenerator[Agent]:
    key = await world.key()
    body = {"name": "Helper", "spec": {"modelId": "scripted:seen"}}
    made = await world.call("POST", "/api/v1/workspaces/acme/agents", credential=key, body=body)
    assert made.status == 201, made.body
    one = Agent(world, key)
    one.task = (await one.a2a("message/send")).json["result"]["taskId"]
    world.app.large = LargeResponses(max_bytes_per_workspace=ROOM_BYTES)
    try:
        yield one
    finally:
        await world.app.mcp.close()


def asks(agent: Agent) -> dict[str, Ask]:
    return {
        "get": partial(agent.a2a, "tasks/get"),
        "resubscribe": partial(agent.a2a, "tasks/resubscribe"),
        "send": partial(agent.a2a, "message/send"),
        "mcp": agent.mcp,
    }


WAYS = ("get", "resubscribe", "send", "mcp")


@pytest.mark.parametrize("way", WAYS)
async def test_a_large_answer_comes_whole_and_leaves_its_room(agent: Agent, way: str) -> None:
    reply = await asks(agent)[way]()
    assert reply.status == 200 and SAID in reply.text
    assert agent.world.app.large.held == 0
    if way in ("get", "send"):
        assert json.loads(reply.body)["result"]


@pytest.mark.parametrize("way", WAYS)
async def test_client_that_does_not_read_loses_its_large_answer(agent: Agent, way: str) -> None:
    large = agent.world.app.large = LargeResponses(grace_s=0, min_bytes_per_s=10**9)
    async with asyncio.timeout(120):
        cut = await asyncio.gather(asks(agent)[way](takes=2), return_exceptions=True)
    assert not isinstance(cut[0], Reply) or SAID not in cut[0].text
    assert large.held == 0


@pytest.mark.parametrize("way", ["get", "resubscribe", "mcp"])
async def test_a_large_answer_waits_for_room_before_it_is_read(agent: Agent, way: str) -> None:
    large = agent.world.app.large
    others = large.hold("acme", ROOM_BYTES)
    waiting = asyncio.create_task(asks(agent)[way]())
    async with asyncio.timeout(120):
        while not large.waiting:
            await asyncio.wait({waiting}, timeout=0.01)
        others.free()
        assert SAID in (await waiting).text
    assert large.held == 0


async def test_who_waits_for_an_answer_holds_no_room_meanwhile(agent: Agent) -> None:
    world, large = agent.world, agent.world.app.large
    body = {"name": "Helper", "spec": {"modelId": "scripted:stuck"}, "slug": "slow"}
    await world.call("POST", "/api/v1/workspaces/acme/agents", credential=agent.key, body=body)
    parts = [{"kind": "text", "text": SAID}]
    params = {"message": {"role": "user", "messageId": "m", "kind": "message", "parts": parts}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
    path = A2A.replace("helper", "slow")
    waiting = asyncio.create_task(world.call("POST", path, credential=agent.key, headers=ACCEPT, body=call))
    try:
        async with asyncio.timeout(120):
            while True:
                runs = await world.call("GET", "/api/v1/workspaces/acme/agent-runs", credential=agent.key)
                if runs.json["runs"][0]["status"] == "running" and not large.held:
                    break
                await asyncio.wait({waiting}, timeout=0.01)
        assert not waiting.done()
    finally:
        waiting.cancel()
        await asyncio.wait({waiting})


class TestListening:
    @pytest.fixture
    def limits(self) -> WorkspaceLimits:
        return WorkspaceLimits(max_streams_per_workspace=1)

    async def test_streams_that_only_listen_are_counted_with_the_others(self, world: World) -> None:
        key = await world.key()
        opening = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening}
        session = await world.call("POST", MCP, credential=key, headers=ACCEPT, body=body)
        headers = {"accept": "text/event-stream", "mcp-session-id": session.headers["mcp-session-id"]}
        begun = asyncio.Event()
        listening = asyncio.create_task(world.call("GET", MCP, credential=key, headers=headers, begun=begun))
        try:
            async with asyncio.timeout(120):
                await begun.wait()
                reply = await world.call("GET", MCP, credential=key, headers=headers)
            assert (reply.status, reply.json["code"]) == (429, "too_many_streams")
            listening.cancel()
            await asyncio.wait({listening})
            assert (await world.call("GET", MCP, credential=key, headers={"accept": "text/html"})).status == 406
        finally:
            await world.app.mcp.close()

    async def test_a_call_that_could_not_be_followed_begins_no_run(self, world: World) -> None:
        key = await world.key()
        body = {"name": "Helper", "spec": {"modelId": "scripted:seen"}}
        await world.call("POST", "/api/v1/workspaces/acme/agents", credential=key, body=body)
        place = world.app.engine.reserve_stream(await world.store.records.write(workspaces.ensure("acme", now=1)))
        try:
            reply = await Agent(world, key).mcp()
            assert "1 streams of this workspace are already open" in reply.text
            runs = await world.call("GET", "/api/v1/workspaces/acme/agent-runs", credential=key)
            assert runs.json["runs"] == []
            place.release()
            assert SAID in (await Agent(world, key).mcp()).text
        finally:
            await world.app.mcp.close()
