"""Agents as the tools of an MCP server, with the official client as the caller."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import aiohttp
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, CallToolResult, TextContent

from weftline.testing import ServerProcess

from ..kit import TIMEOUT_S, Api, Json, Reply, check_error, logged
from ..scripts import SCRIPTS
from .test_a2a import token_of

Mode = Literal["legacy", "auto"]


async def stored(api: Api, script: str = "hello", **fields: Any) -> Json:
    reply = await api.post("agents", {"name": "Helper", "spec": {"modelId": f"scripted:{script}"}, **fields})
    assert reply.status == 201, reply.body
    return reply.json


async def key_of(api: Api, usage: str, *agents: str) -> str:
    reply = await api.post("api-keys", {"name": "k", "usage": usage, "agentIds": agents or None})
    assert reply.status == 201, reply.body
    return reply.json["key"]


@asynccontextmanager
async def connected(api: Api, key: str = "", *, mode: Mode = "auto") -> AsyncGenerator[Client]:
    headers = {"Authorization": f"Bearer {key or api.key}"}
    async with (
        asyncio.timeout(TIMEOUT_S),
        httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http,
        Client(streamable_http_client(f"{api.url}/api/mcp/{api.slug}", http_client=http), mode=mode) as client,
    ):
        yield client


async def older_session(api: Api) -> tuple[str, dict[str, str]]:
    """The path and the headers of a session of revision 2025-06-18."""
    path = f"/api/mcp/{api.slug}"
    client_info = {"name": "old", "version": "1"}
    params: Json = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client_info}
    call: Json = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    both = {"Accept": "application/json, text/event-stream"}
    session = (await api.post(path, call, headers=both)).headers["mcp-session-id"]
    old = {**both, "Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-06-18"}
    await api.post(path, {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=old)
    return path, old


def text_of(result: Any) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_lists_the_agents_and_calls_one(api: Api, mode: Mode) -> None:
    await stored(api, "hello", description="Says hello.")
    await stored(api, "seen", name="Second")
    async with connected(api, mode=mode) as client:
        tools = (await client.list_tools()).tools
        assert [(tool.name, tool.description) for tool in tools] == [("helper", "Says hello."), ("second", "Second")]
        assert tools[0].input_schema["required"] == ["message"]
        result = await client.call_tool("helper", {"message": "hi"})
        assert not result.is_error and text_of(result) == "Hello wörld"
        assert text_of(await client.call_tool("second", {"message": "over there"})) == "over there / 1"
    assert len((await api.get("agent-runs")).json["runs"]) == 2


async def test_the_text_comes_as_progress_while_it_is_produced(api: Api) -> None:
    await stored(api)
    told: list[str] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    async with connected(api) as client:
        await client.call_tool("helper", {"message": "hi"}, progress_callback=on_progress)
    assert "".join(told) == "Hello wörld"


async def test_a_failed_run_is_a_result_that_says_so(api: Api) -> None:
    await stored(api, "fails_auth")
    async with connected(api) as client:
        result = await client.call_tool("helper", {"message": "hi"})
    assert result.is_error and text_of(result) == "the model says auth"


async def test_missing_tool_is_refused_and_wrong_arguments_are_reported(api: Api) -> None:
    await stored(api)
    wrong: list[tuple[Json, str]] = [
        ({"message": "  "}, "message: must be a non-empty string."),
        ({"message": "hi", "mesage": "hi"}, "mesage: is not an argument."),
        ({}, "message: must be"),
        ({"message": "hi", "attachments": 5}, "attachments: "),
    ]
    async with connected(api) as client:
        with pytest.raises(MCPError):
            await client.call_tool("nobody", {"message": "hi"})
        for arguments, told in wrong:
            result = await client.call_tool("helper", arguments)
            assert result.is_error and told in text_of(result)
    # Older revisions want a protocol error.
    path, old = await older_session(api)
    call: Json = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "helper", "arguments": {}}}
    assert b'"code":-32602' in (await api.post(path, call, headers=old)).body
    assert (await api.get("agent-runs")).json["runs"] == []


async def begun_call(client: Client) -> asyncio.Future[CallToolResult]:
    """A call that has made progress."""
    begun = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        begun.set()

    call = asyncio.ensure_future(client.call_tool("helper", {"message": "hi"}, progress_callback=on_progress))
    await begun.wait()
    return call


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_giving_a_call_up_cancels_its_run(api: Api, mode: Mode) -> None:
    await stored(api, "stuck")
    async with connected(api, mode=mode) as client:
        call = await begun_call(client)
        call.cancel()
        await asyncio.wait({call})
        (run,) = (await api.get("agent-runs")).json["runs"]
        assert (await api.events(run["id"]))[-1].type == "cancelled"


async def test_a_credential_sees_and_calls_its_own_agents_alone(api: Api, other_api: Api) -> None:
    agent = await stored(api)
    await stored(api, name="Second")
    await stored(api, name="Inner", system=True)
    await stored(other_api, name="Foreign")
    async with connected(api, await key_of(api, "mcp", agent["id"])) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["helper"]
        with pytest.raises(MCPError) as hidden:
            await client.call_tool("second", {"message": "hi"})
        with pytest.raises(MCPError) as unknown:
            await client.call_tool("nobody", {"message": "hi"})
        assert str(hidden.value) == str(unknown.value).replace("nobody", "second")
    async with connected(api, await key_of(api, "mcp")) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["helper", "second"]


async def test_credentials_are_judged_first(api: Api, other_api: Api) -> None:
    path = f"/api/mcp/{api.slug}"
    check_error(await api.post(path, {}, key=None), 401, "unauthorized")
    check_error(await api.post(path, {}, key=other_api.key), 404, "not_found")
    check_error(await api.post(path, {}, key=await key_of(api, "a2a")), 403, "forbidden")


async def test_a_misspelt_argument_is_named(api: Api) -> None:
    await stored(api)
    async with connected(api) as client:
        result = await client.call_tool("helper", {"mesage": "hi"})
        assert result.is_error and "Did you mean message instead of mesage" in text_of(result)
        result = await client.call_tool("helper", {"message": "hi", "attachments": [{"base64": "aGk="}]})
        assert result.is_error and text_of(result).endswith("Did you mean data instead of attachments[0].base64?")


async def test_answers_and_logged_refusals_carry_the_request_id(api: Api, server: ServerProcess) -> None:
    headers = {"Accept": "application/json, text/event-stream"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    for body, status in ((opening, 200), ({"nonsense": 1}, 400)):
        reply = await api.post(f"/api/mcp/{api.slug}", body, headers=headers)
        assert reply.status == status, reply.body
        request = reply.headers["X-Request-Id"]
        if status == 400:
            assert len(await logged(server, f"refused POST /api/mcp/{api.slug}: 400", request)) == 1


async def test_a_session_is_not_there_for_another_credential(api: Api) -> None:
    headers = {"Accept": "application/json, text/event-stream"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    opened = await api.post(f"/api/mcp/{api.slug}", body, headers=headers)
    session = opened.headers["Mcp-Session-Id"]
    headers["Mcp-Session-Id"] = session
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    assert (await api.post(f"/api/mcp/{api.slug}", listing, headers=headers)).status == 200
    # Nothing is kept for those who come back, so a stream begins anew.
    again = {**headers, "Last-Event-ID": "7", "Authorization": f"Bearer {api.key}"}
    async with api.http.get(f"{api.url}/api/mcp/{api.slug}", headers=again) as stream:
        assert (stream.status, stream.content_type) == (200, "text/event-stream")
        assert stream.headers["X-Content-Type-Options"] == "nosniff"
    other = await key_of(api, "mcp")
    assert (await api.post(f"/api/mcp/{api.slug}", listing, headers=headers, key=other)).status == 404


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_server_that_stops_ends_calls_and_leaves_their_runs(
    tmp_path: Path, http: aiohttp.ClientSession, mode: Mode
) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS, arguments=("--drain", "0.1")) as server:
        api = Api(http, server.url, "acme", await asyncio.to_thread(server.create_key, "acme"))
        await stored(api, "stuck")
        async with connected(api, mode=mode) as client:
            call = await begun_call(client)
            assert await asyncio.to_thread(server.terminate) == 0
            with pytest.raises(MCPError) as stopped:
                await call
        assert stopped.value.code == CONNECTION_CLOSED
        assert not [line for line in server.log if "Traceback" in line]
        await asyncio.to_thread(server.start)
        (run,) = (await api.get("agent-runs")).json["runs"]
        assert stopped.value.error.data == {"retryable": True, "weftline/runId": run["id"]}
        assert run["status"] == "running"
        await api.cancel(run["id"])


async def test_request_to_server_that_stops_is_told_to_come_back(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with ServerProcess(tmp_path, scripts=SCRIPTS, arguments=("--drain", "0.1")) as server:
        api = Api(http, server.url, "acme", await asyncio.to_thread(server.create_key, "acme"))
        path, headers = await older_session(api)
        listing: Json = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert (await api.post(path, listing, headers=headers)).status == 200
        stopped = asyncio.create_task(asyncio.to_thread(server.terminate))
        refused: list[Reply] = []
        with suppress(aiohttp.ClientConnectionError):
            while True:
                reply = await api.post(path, listing, headers=headers)
                if reply.status != 200:
                    refused.append(reply)
        assert await stopped == 0
        for reply in refused:
            check_error(reply, 503, "unavailable")
            assert reply.headers["Retry-After"] == "1"
        assert not [line for line in server.log if "Traceback" in line]


async def test_an_access_token_needs_the_scope(api: Api) -> None:
    path = f"/api/mcp/{api.slug}"
    refused = await api.post(path, {}, key=await token_of(api, "agents:invoke"))
    assert refused.status == 403 and refused.json["required"] == "mcp:connect"
    await stored(api)
    async with connected(api, await token_of(api, "mcp:connect")) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["helper"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_narrowed_key_neither_lists_nor_calls_another_agent(api: Api, mode: Mode) -> None:
    mine, theirs = await stored(api), await stored(api, name="Theirs")
    async with connected(api, await key_of(api, "developer_api", mine["id"]), mode=mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == [mine["slug"]]
        with pytest.raises(MCPError):
            await client.call_tool(theirs["slug"], {"message": "hi"})
        assert not (await client.call_tool(mine["slug"], {"message": "hi"})).is_error
    assert [run["agentId"] for run in (await api.get("agent-runs")).json["runs"]] == [mine["id"]]


@pytest.mark.parametrize(
    "tool",
    [
        {"kind": "local", "name": "lookup"},
        {"kind": "a2a_local", "name": "lookup", "agentCard": {"name": "Peer"}},
        {"kind": "mcp_local", "name": "files", "tools": [{"name": "lookup"}]},
    ],
)
async def test_agent_with_client_tools_is_neither_listed_nor_called(api: Api, tool: Json) -> None:
    await stored(api)
    asks = await stored(api, name="Asks", spec={"modelId": "scripted:lookup", "tools": [tool]})
    async with connected(api) as client:
        assert [one.name for one in (await client.list_tools()).tools] == ["helper"]
        refused = await client.call_tool("asks", {"message": "hi"})
        assert refused.is_error and "lookup" in text_of(refused) and "client" in text_of(refused)
        changed = await api.call("PUT", f"agents/{asks['id']}", {"name": "Asks", "spec": {"modelId": "scripted:hello"}})
        assert changed.status == 200, changed.body
        assert [one.name for one in (await client.list_tools()).tools] == ["helper", "asks"]
        assert not (await client.call_tool("asks", {"message": "hi"})).is_error
    assert len((await api.get("agent-runs")).json["runs"]) == 1


async def test_attachments_of_a_call_reach_the_model(api: Api) -> None:
    await stored(api, "attached")
    cat = {"data": b64encode(b"\x89PNG\r\n\x1a\n rest").decode(), "name": "cat.png"}
    async with connected(api) as client:
        result = await client.call_tool("helper", {"message": "see", "attachments": [cat]})
        assert not result.is_error and text_of(result) == "see: image/png 13 bytes"
        for wrong, told in (
            ([{"url": "https://example.com/a.png"}], "not fetched"),
            ([{**cat, "mediaType": "application/pdf"}], "attachments[0].mediaType"),
            ([{"data": "!!"}], "attachments[0].data"),
            ("cat.png", "attachments"),
            ([cat] * 21, "at most 20"),
        ):
            refused = await client.call_tool("helper", {"message": "see", "attachments": wrong})
            assert refused.is_error and told in text_of(refused)
    assert len((await api.get("agent-runs")).json["runs"]) == 1
