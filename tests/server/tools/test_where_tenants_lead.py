"""Every door by which a tenant or a model can name an address, and where each leads by default."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from weftline.testing import ServerProcess

from ..kit import TIMEOUT_S, Api, of_type
from .conftest import SCRIPTS
from .peers import missing, serving

Door = Callable[[Api, str], Awaitable[str]]
"""Has the server dial an address, and returns what it says of it."""


async def stored_tool(api: Api, url: str) -> str:
    tool = await api.post("tools", {"name": "get_weather", "url": f"{url}/"})
    assert tool.status == 201, tool.body
    frames = await api.play("stored", tools=[{"kind": "mantyx", "id": tool.json["id"]}])
    await api.call("DELETE", f"tools/{tool.json['id']}")
    return of_type(frames, "tool_result")[0]["result"]


async def mcp_server(api: Api, url: str) -> str:
    tools = [{"kind": "mcp", "name": "facts", "url": url}, {"kind": "mantyx_plugin", "name": "current_time"}]
    return of_type(await api.play("absent", tools=tools), "tool_result")[0]["result"]


async def a2a_peer(api: Api, url: str) -> str:
    frames = await api.play("delegate", tools=[{"kind": "a2a", "name": "peer", "agentCardUrl": url}])
    return of_type(frames, "tool_result")[0]["result"]


async def webhook(api: Api, url: str) -> str:
    made = (await api.post("webhooks", {"url": url})).json
    await api.play("offered")
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            found = (await api.get(f"webhooks/{made['id']}/deliveries")).json["deliveries"]
            if found and found[0]["attempts"]:
                await api.call("DELETE", f"webhooks/{made['id']}")
                return found[0]["lastError"]


async def own_provider(api: Api, url: str) -> str:
    provider = {"name": "mine", "family": "anthropic", "apiKey": "sk-1", "baseUrl": url, "models": ["m"]}
    made = await api.post("providers", provider)
    if made.status == 400:
        return made.json["message"]
    assert made.status == 201, made.body
    reply = await api.post("agent-runs", {"modelId": "mine:m", "prompt": "hi"})
    frames = await api.events(reply.json["runId"])
    await api.call("DELETE", f"providers/{made.json['id']}")
    return frames[-1]["error"]


async def fetch(api: Api, url: str) -> str:
    frames = await api.play("fetch", prompt=url, tools=[{"kind": "mantyx_plugin", "name": "fetch"}])
    return of_type(frames, "tool_result")[0]["result"]


TENANTS: list[Door] = [stored_tool, mcp_server, a2a_peer, webhook, own_provider]
INSIDE = ["10.255.255.1", "192.168.255.1", "169.254.169.254", "[fec0::1]", "[64:ff9b:1::7f00:1]"]
SPELLINGS = ["localhost", "[::1]", "[::ffff:127.0.0.1]", "127.1", "１２７.0.0.1", "127。0。0。1", "①②⑦.0.0.1"]
BEHIND_A_PROXY = '[server]\npublic_url = "https://weft.example"\n'


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (("--host", "0.0.0.0"), ""),
        ((), BEHIND_A_PROXY),
        ((), '[server]\ntrusted_proxies = ["127.0.0.1"]\n'),
        ((), "[server]\nallow_private_egress = false\n"),
    ],
    ids=["listening to everybody", "behind a proxy", "trusting a proxy", "closed by the operator"],
)
async def test_tenant_of_public_server_does_not_reach_its_inside(
    arguments: tuple[str, ...], config: str, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS, config=config, arguments=arguments) as server:
        api = Api(http, server.url.replace("0.0.0.0", "127.0.0.1"), "acme", server.create_key("acme"))
        async with serving(missing) as peer:
            port = peer.url.rpartition(":")[2]
            for door in (*TENANTS, fetch):
                for host in ["127.0.0.1", *SPELLINGS] if door in (own_provider, fetch) else ["127.0.0.1", "①②⑦.0.0.1"]:
                    told = await door(api, f"http://{host}:{port}")
                    assert "`allow_egress`" in told or "is not a host" in told, (door, host, told)
        assert peer.requests == []


async def test_tenant_of_server_for_this_machine_reaches_this_machine_alone(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS) as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        async with serving(missing) as peer:
            for door in TENANTS:
                peer.requests.clear()
                await door(api, peer.url)
                assert peer.requests, door
            peer.requests.clear()
            # Nobody asked for this one: a model did, and what it has read may have told it to.
            assert "`allow_egress`" in await fetch(api, peer.url)
            assert peer.requests == []
        for door in TENANTS:
            for host in INSIDE:
                assert "`allow_egress`" in await door(api, f"http://{host}:1"), (door, host)


async def test_an_operator_opens_ranges_but_no_flag_opens_metadata_addresses(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    config = '[server]\nallow_private_egress = true\nallow_egress = ["0.0.0.0/0"]\n'
    with ServerProcess(tmp_path, scripts=SCRIPTS, config=config, arguments=("--host", "0.0.0.0")) as server:
        api = Api(http, server.url.replace("0.0.0.0", "127.0.0.1"), "acme", server.create_key("acme"))
        async with serving(missing) as peer:
            for door in (*TENANTS, fetch):
                peer.requests.clear()
                await door(api, peer.url)
                assert peer.requests, door
                told = await door(api, "http://169.254.169.254:1")
                assert "naming it in `allow_egress`" in told, (door, told)
