"""A credential that is revoked sees nothing more: its open streams end, and the runs behind them go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .kit import Browser, Reply, World

RUNS = "/api/v1/workspaces/acme/agent-runs"
BOTH = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
MODERN = {**BOTH, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "helper"}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
    "progressToken": 1,
}
SCOPES = ["runs:read", "runs:write", "a2a:invoke", "agents:invoke", "mcp:connect"]


def requests() -> dict[str, tuple[str, dict[str, str], Any]]:
    """Path, headers and body of a request whose answer goes on."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    asking = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": message}}
    tool = {"name": "helper", "arguments": {"message": "hi"}, "_meta": META}
    calling = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool}
    agent = "/api/a2a/acme/agents/helper"
    return {
        "sse": (RUNS, {"accept": "text/event-stream"}, {"modelId": "scripted:stuck", "prompt": "hi"}),
        "a2a": (agent, {"a2a-version": "1.0"}, asking),
        "a2a_waiting": (agent, {"a2a-version": "1.0"}, asking | {"method": "SendMessage"}),
        "mcp": ("/api/mcp/acme", MODERN, calling),
    }


async def running(world: World, owner: str) -> list[str]:
    found = (await world.call("GET", RUNS, credential=owner)).json["runs"]
    return [run["id"] for run in found if run["status"] == "running"]


async def cancel_all(world: World, owner: str) -> int:
    runs = await running(world, owner)
    for run in runs:
        assert (await world.call("POST", f"{RUNS}/{run}/cancel", credential=owner)).status == 200
    return len(runs)


async def open_stream(world: World, owner: str, kind: str, credential: str) -> asyncio.Task[Reply]:
    path, headers, body = requests()[kind]
    begun = asyncio.Event()
    stream = asyncio.create_task(
        world.call("POST", path, credential=credential, headers=headers, body=body, begun=begun)
    )
    while kind == "a2a_waiting" and not await running(world, owner):
        pass
    if kind != "a2a_waiting":
        await begun.wait()
    return stream


@pytest.mark.parametrize("kind", list(requests()))
@pytest.mark.parametrize("credential", ["key", "token"])
async def test_streams_of_revoked_credential_end_and_their_runs_go_on(world: World, kind: str, credential: str) -> None:
    owner = await world.key()
    spec = {"modelId": "scripted:stuck"}
    assert (
        await world.call(
            "POST", "/api/v1/workspaces/acme/agents", credential=owner, body={"name": "Helper", "spec": spec}
        )
    ).status == 201
    client = await world.client(redirect_uris=[], client_credentials=True, scopes=SCOPES)
    token = (await client.token(grant_type="client_credentials")).json["access_token"]
    made = await world.call("POST", "/api/v1/workspaces/acme/api-keys", credential=owner, body={"name": "k"})
    secret = made.json["key"] if credential == "key" else token
    async with asyncio.timeout(120):
        stream = await open_stream(world, owner, kind, secret)
        if credential == "key":
            path = f"/api/v1/workspaces/acme/api-keys/{made.json['id']}"
            assert (await world.call("DELETE", path, credential=owner)).status == 200
        else:
            assert (await client.post("revoke", token=token)).status == 200
        ended = await stream
        assert ended.status == (401 if kind == "a2a_waiting" else 200)
    path, headers, body = requests()[kind]
    again = await world.call("POST", path, credential=secret, headers=headers, body=body)
    assert again.status == 401 and again.json["error"] == "Invalid API key or OAuth access token"
    if kind == "a2a_waiting":
        assert ended.json == {**again.json, "requestId": ended.json["requestId"]}
        assert ended.headers["www-authenticate"] == again.headers["www-authenticate"]
    assert await cancel_all(world, owner) == 1
    await world.app.mcp.close()


async def test_ending_grant_ends_streams_of_its_tokens_and_no_others(world: World, browser: Browser) -> None:
    owner = await world.key()
    client = await world.client()
    tokens = await client.granted(browser)
    async with asyncio.timeout(120):
        other = await open_stream(world, owner, "sse", owner)
        stream = await open_stream(world, owner, "sse", tokens["access_token"])
        assert (await client.post("revoke", token=tokens["refresh_token"])).status == 200
        await stream
        assert not other.done()
        assert await cancel_all(world, owner) == 2
        assert b"event: cancelled" in (await other).body


@pytest.mark.parametrize("kind", ["key", "a2a", "mcp"])
@pytest.mark.parametrize("credential", ["key", "token"])
async def test_request_with_a_revoked_credential_is_refused_before_its_end(
    world: World, kind: str, credential: str
) -> None:
    owner = await world.key()
    keys = "/api/v1/workspaces/acme/api-keys"
    asked = {"key": (keys, dict[str, str](), {"name": "successor"}), **requests()}
    if credential == "token":
        asked["key"] = (RUNS, {}, {"modelId": "scripted:stuck", "prompt": "hi"})
    path, headers, body = asked[kind]
    agent = {"name": "Helper", "spec": {"modelId": "scripted:stuck"}}
    assert (await world.call("POST", "/api/v1/workspaces/acme/agents", credential=owner, body=agent)).status == 201
    client = await world.client(redirect_uris=[], client_credentials=True, scopes=SCOPES)
    token = (await client.token(grant_type="client_credentials")).json["access_token"]
    made = await world.call("POST", keys, credential=owner, body={"name": "k"})

    async def revoke() -> None:
        if credential == "key":
            assert (await world.call("DELETE", f"{keys}/{made.json['id']}", credential=owner)).status == 200
        else:
            assert (await client.post("revoke", token=token)).status == 200

    async def change_another() -> None:
        assert (await world.call("POST", keys, credential=owner, body={"name": "another"})).status == 201

    secret = made.json["key"] if credential == "key" else token
    if kind == "key" and credential == "key":
        late = await world.call("POST", path, credential=secret, body=body, halfway=change_another)
        assert late.status == 201
    refused = await world.call("POST", path, credential=secret, headers=headers, body=body, halfway=revoke)
    assert refused.status == 401 and refused.json["error"] == "Invalid API key or OAuth access token"
    names = [key["name"] for key in (await world.call("GET", keys, credential=owner)).json["keys"]]
    assert names.count("successor") == (1 if kind == "key" and credential == "key" else 0)
    assert await running(world, owner) == []
    await world.app.mcp.close()
