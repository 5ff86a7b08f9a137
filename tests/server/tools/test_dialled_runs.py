"""Runs whose tools the server dials, through a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from weftline.runtime import ids
from weftline.store import open_for_reading
from weftline.store.database import one
from weftline.store.records import threads
from weftline.testing import ServerProcess

from ..kit import Api, Frame, Json, check_error, local_tool, of_type
from .peers import TEAM, McpProcess, serving


def mcp(server: McpProcess, headers: Mapping[str, str] = TEAM, **fields: Any) -> Json:
    return {"kind": "mcp", "name": "facts", "url": server.url, "headers": dict(headers), **fields}


def text_of(frames: list[Frame]) -> str:
    assert frames[-1].type == "result" and frames[-1]["subtype"] == "success", frames[-1].body
    return frames[-1]["text"]


@pytest.mark.requirement("wire.tools.mcp_catalog")
async def test_an_mcp_servers_tools_are_offered_under_its_name(api: Api, facts: McpProcess) -> None:
    names = text_of(await api.play("offered", tools=[mcp(facts)]))
    listed = ["add", "ask", "broken", "count", "get_weather", "picture", "report", "slow"]
    assert names == ",".join(f"facts_{name}" for name in listed)
    narrowed = mcp(facts, toolFilter=["get-weather", "add", "nonsense"])
    assert text_of(await api.play("offered", tools=[narrowed])) == "facts_add,facts_get_weather"
    assert text_of(await api.play("offered", tools=[mcp(facts, toolFilter=[])])) == ""


@pytest.mark.requirement("wire.event.server_tool")
async def test_call_of_mcp_tool_is_told_as_server_call(api: Api, facts: McpProcess) -> None:
    frames = await api.play("add", tools=[mcp(facts)])
    assert text_of(frames) == "heard 42"
    call, result = of_type(frames, "tool_call")[0], of_type(frames, "tool_result")[0]
    assert call["name"] == "facts_add" and call["args"] == call["input"] == {"a": 20, "b": 22}
    assert result["toolUseId"] == call["toolUseId"] and result["ok"] and result["phase"] == "end"
    assert result["result"] == "42" and result["args"] == call["args"] and "summary" in result.body
    assert not of_type(frames, "local_tool_call")


async def test_names_that_models_cannot_use_still_reach_the_right_tool(api: Api, facts: McpProcess) -> None:
    assert '"sky"' in text_of(await api.play("weather", tools=[mcp(facts)]))


async def test_error_result_of_mcp_tool_is_error_result_here(api: Api, facts: McpProcess) -> None:
    frames = await api.play("broken", tools=[mcp(facts)])
    assert "out of order" in text_of(frames)
    assert of_type(frames, "tool_result")[0]["ok"] is False


@pytest.mark.requirement("wire.tools.mcp_unavailable")
@pytest.mark.parametrize("why", ["down", "refused"])
async def test_unreachable_mcp_server_becomes_one_explaining_tool(api: Api, facts: McpProcess, why: str) -> None:
    ref = mcp(facts, {"X-Team": "blue"}) if why == "refused" else mcp(facts, url="http://127.0.0.1:9/mcp")
    tools = [ref, {"kind": "mantyx_plugin", "name": "current_time"}]
    assert text_of(await api.play("offered", tools=tools)) == "current_time,facts_unavailable"
    frames = await api.play("absent", tools=tools)
    explained, told = of_type(frames, "tool_result")
    assert explained["ok"] is False and told["ok"] is True
    assert ("401" if why == "refused" else "Could not connect") in explained["result"]
    assert "unix_s" in text_of(frames)


async def test_run_keeps_its_mcp_tools_over_restart_of_their_server(api: Api, own_facts: McpProcess) -> None:
    run = await api.start("ask_between", tools=[mcp(own_facts), local_tool()])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        own_facts.restart()
        await api.answer(run, call["toolUseId"], result="found")
        frames = await stream.rest()
    assert text_of(frames) == "heard 2 || found || 4"


async def test_run_goes_on_with_its_headers_after_server_was_killed(
    server: ServerProcess, api: Api, facts: McpProcess
) -> None:
    run = await api.start("ask_between", tools=[mcp(facts), local_tool()])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
    server.kill()
    server.start()
    await api.answer(run, call["toolUseId"], result="found")
    assert text_of(await api.events(run)) == "heard 2 || found || 4"


async def test_cancelling_a_run_stops_the_call_upstream(api: Api, own_facts: McpProcess) -> None:
    run = await api.start("slow", tools=[mcp(own_facts)])
    await until_seen(own_facts, "running")
    assert (await api.cancel(run)).status == 200
    await until_seen(own_facts, "cancelled")
    assert (await api.events(run))[-1].type == "cancelled"


@pytest.mark.requirement("wire.tools.a2a_shape")
async def test_an_a2a_tool_has_a_default_description(api: Api) -> None:
    ref = {"kind": "a2a", "name": "peer", "agentCardUrl": "http://127.0.0.1:9/"}
    expected = "Delegate a task to the peer agent over A2A. Pass the full task as a single message."
    assert text_of(await api.play("described", tools=[ref])) == expected
    assert text_of(await api.play("described", tools=[{**ref, "description": "Mine."}])) == "Mine."


@pytest.mark.requirement("wire.tools.a2a_dial", "wire.event.server_tool")
async def test_an_a2a_peer_is_found_and_answers(api: Api) -> None:
    async def peer(request: web.Request) -> web.Response:
        if request.path != "/agent/message:send":
            return web.Response(status=404)
        call = await request.json()
        text = call["message"]["parts"][0]["text"]
        return web.json_response(
            {"kind": "message", "role": "agent", "parts": [{"kind": "text", "text": f"did {text}"}]}
        )

    async with serving(peer) as running:
        ref = {
            "kind": "a2a",
            "name": "peer",
            "agentCardUrl": f"{running.url}/agent",
            "headers": {"Authorization": "Bearer t-1"},
            "contextId": "ctx-9",
        }
        frames = await api.play("delegate", prompt="the dishes", tools=[ref])
        again = await api.play("delegate", prompt="the floor", tools=[ref])
    assert text_of(frames) == "heard did the dishes" and text_of(again) == "heard did the floor"
    # The second call knows the way.
    assert running.paths == ["/agent", "/agent/rpc", "/agent/message:send", "/agent/message:send"]
    for request in running.requests:
        assert request.headers["Authorization"] == "Bearer t-1"
        assert request.json["params"]["message"]["contextId"] == "ctx-9" and request.json["method"] == "message/send"
    call, result = of_type(frames, "tool_call")[0], of_type(frames, "tool_result")[0]
    assert call["args"] == {"message": "the dishes"} and result["ok"] and not of_type(frames, "local_tool_call")


@pytest.mark.requirement("wire.tools.a2a_dial")
async def test_a_run_goes_on_when_no_form_of_a2a_works(api: Api) -> None:
    async def broken(request: web.Request) -> web.Response:
        return web.Response(status=500)

    async with serving(broken) as running:
        ref = {"kind": "a2a", "name": "peer", "agentCardUrl": f"{running.url}/a/"}
        frames = await api.play("delegate", tools=[ref])
    assert running.paths == ["/a/", "/a/rpc", "/a/message:send", "/a/message/send"]
    assert of_type(frames, "tool_result")[0]["ok"] is False and "HTTP 500" in text_of(frames)


@pytest.mark.requirement("wire.tools.plugin")
@pytest.mark.parametrize("name", ["double", "@tools/double", "@weftline/current_time", "@weftline/current-time"])
async def test_a_plugin_tool_is_found_by_both_spellings(api: Api, name: str) -> None:
    tools = [{"kind": "mantyx_plugin", "name": name}]
    script = "double" if name.endswith("double") else "clock"
    frames = await api.play(script, tools=tools)
    assert ("heard 42" if script == "double" else "unix_s") in text_of(frames)
    assert of_type(frames, "tool_call") and not of_type(frames, "local_tool_call")


@pytest.mark.requirement("wire.tools.plugin")
@pytest.mark.parametrize("name", ["web_search", "@acme/web-search"])
async def test_a_plugin_tool_that_is_not_installed_is_refused(api: Api, name: str) -> None:
    tools = [{"kind": "mantyx_plugin", "name": "double"}, {"kind": "mantyx_plugin", "name": name}]
    reply = await api.post("agent-runs", {"prompt": "x", "modelId": "scripted:offered", "tools": tools})
    assert "tools[1]" in check_error(reply, 400, "invalid_plugin")["message"]


async def test_messages_of_a_session_inherit_its_secret_headers(api: Api, facts: McpProcess) -> None:
    session = await api.session("add", tools=[mcp(facts)])
    assert text_of(await api.events(await api.send(session))) == "heard 42"
    # Tools that a message brings have the headers it brings, and none of the session's.
    bare = await api.send(session, tools=[mcp(facts, {})])
    assert "Unknown tool: facts_add" in text_of(await api.events(bare))
    assert text_of(await api.events(await api.send(session))) == "heard 42"


async def test_secret_headers_are_shown_nowhere_and_stored_sealed(
    server: ServerProcess, api: Api, own_facts: McpProcess
) -> None:
    secret = "s3cr3t-value-of-the-header"
    tools = [mcp(own_facts, {**TEAM, "X-Token": secret}), local_tool()]
    run = await api.start("ask_between", tools=tools)
    session = await api.session("add", tools=tools)
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        shown = [str(frame.body) for frame in stream.frames]
        shown += [str(await api.snapshot(run)), str((await api.get(f"agent-sessions/{session}")).json)]
        stored = b"".join(path.read_bytes() for path in server.db.iterdir() if path.is_file())
        await api.answer(run, call["toolUseId"], result="found")
        await stream.rest()
    assert secret.encode() not in stored and not any(secret in text for text in shown)
    assert not any(secret in line for line in server.log)
    assert (server.db / "secret.key").stat().st_mode & 0o777 == 0o600


async def test_run_and_session_secrets_are_deleted_with_them(
    server: ServerProcess, api: Api, facts: McpProcess
) -> None:
    tools = [mcp(facts), local_tool()]
    session = await api.session("ask_between", tools=tools)
    run = await api.send(session)
    store = open_for_reading(server.db)

    async def kept() -> tuple[bool, bool]:
        """Whether the store has secrets of the run, and of the session."""
        of_run = await store.records.read(one("SELECT secrets FROM runs WHERE key = $1", key_of(run, "run_")))
        of_session = await store.records.read(threads.secrets_of(key_of(session, "ses_")))
        assert of_run is not None
        return of_run[0] is not None, of_session is not None

    try:
        async with api.stream(run) as stream:
            call = await stream.until("local_tool_call")
            assert await kept() == (True, True)
            await api.answer(run, call["toolUseId"], result="found")
            await stream.rest()
        assert await kept() == (False, True)
        await api.call("DELETE", f"agent-sessions/{session}")
        assert await kept() == (False, False)
    finally:
        await store.close()


async def test_fetch_reads_a_page_and_refuses_the_inside(api: Api) -> None:
    async def page(request: web.Request) -> web.Response:
        if request.path == "/away":
            raise web.HTTPFound("http://127.0.0.2:1/")
        return web.Response(text="<title>Hi</title><p>One <b>two</b></p><script>x</script>", content_type="text/html")

    tools = [{"kind": "mantyx_plugin", "name": "fetch"}]
    async with serving(page) as site:
        assert text_of(await api.play("fetch", prompt=f"{site.url}/", tools=tools)) == "heard Hi\n\nOne two"
        for address in ("http://127.0.0.2:1/", f"{site.url}/away", "http://169.254.169.254/latest", "http://[::1]:1/"):
            frames = await api.play("fetch", prompt=address, tools=tools)
            assert of_type(frames, "tool_result")[0]["ok"] is False
            assert "does not connect" in text_of(frames)


def key_of(id: str, prefix: str) -> int:
    parsed = ids.parse(id, prefix=prefix)
    assert parsed is not None
    return parsed[0]


async def until_seen(server: McpProcess, what: str) -> None:
    async with asyncio.timeout(120), aiohttp.ClientSession() as session:
        while True:
            async with session.get(server.seen_url) as reply:
                if (await reply.json(content_type=None))[what]:
                    return
