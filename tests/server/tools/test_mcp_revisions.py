"""Dialled MCP servers of the newest revision, which have no `initialize`, and what servers ask and tell meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from weftline.messages import joined_text
from weftline.tools.base import ToolContext, ToolProgress
from weftline.tools.mcp.pool import McpAddress, McpPool
from weftline.tools.mcp.tools import McpUnavailable, list_tools, offered

from ..kit import Api, Json
from .peers import TEAM, Handler, McpProcess, serving

MODERN = "2026-07-28"
INPUT = {"type": "object"}


def error(code: int, message: str, **data: Any) -> Json:
    return {"error": {"code": code, "message": message, **({"data": data} if data else {})}}


REFUSALS: dict[str, tuple[int, Json | str]] = {
    "unknown method": (404, error(-32601, "Method not found")),
    "unknown method, 200": (200, error(-32601, "Method not found")),
    "version": (400, error(-32022, "Unsupported protocol version", supported=[MODERN], requested="2025-11-25")),
    "headers": (400, error(-32020, "Mcp-Method is missing")),
    "metadata": (400, error(-32602, "params._meta is missing")),
    "invalid request": (400, error(-32600, "Invalid request")),
    "capability": (400, error(-32021, "A capability is missing")),
    "its own code": (400, error(-32099, "No")),
    "words": (400, "Bad request"),
    "nothing": (400, ""),
    "not found": (404, ""),
    "not acceptable": (406, ""),
    "failure": (500, "oops"),
    "an answer of its own revision": (
        200,
        {"result": {"protocolVersion": MODERN, "capabilities": {}, "serverInfo": {}}},
    ),
    "nonsense": (200, {"result": {}}),
}


def modern(refusal: tuple[int, Json | str], seen: list[str]) -> Handler:
    """A server that speaks the newest revision and nothing else."""

    async def answer(request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405)
        call: Json = await request.json()
        method: str = call["method"]
        seen.append(method)
        if method == "initialize":
            status, body = refusal
            if isinstance(body, str):
                return web.Response(status=status, text=body)
            return web.json_response({"jsonrpc": "2.0", "id": call["id"], **body}, status=status)
        assert request.headers["MCP-Protocol-Version"] == MODERN and request.headers["Mcp-Method"] == method
        assert call["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == MODERN
        results: dict[str, Json] = {
            "server/discover": {
                "resultType": "complete",
                "supportedVersions": [MODERN],
                "capabilities": {"tools": {}},
                "ttlMs": 0,
                "cacheScope": "private",
            },
            "tools/list": {
                "resultType": "complete",
                "tools": [{"name": "pay", "inputSchema": INPUT}],
                "ttlMs": 0,
                "cacheScope": "private",
            },
            "tools/call": {"resultType": "complete", "content": [{"type": "text", "text": "paid"}]},
        }
        if method == "tools/call" and "inputResponses" not in call["params"] and call["params"]["arguments"]:
            form = {"type": "object", "properties": {"name": {"type": "string"}}}
            question = {
                "method": "elicitation/create",
                "params": {"mode": "form", "message": "Really?", "requestedSchema": form},
            }
            results["tools/call"] = {
                "resultType": "input_required",
                "inputRequests": {"q": question},
                "requestState": "s",
            }
        elif method == "tools/call" and "inputResponses" in call["params"]:
            action = call["params"]["inputResponses"]["q"]["action"]
            results["tools/call"]["content"][0]["text"] = f"paid, {action}"
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": results[method]})

    return answer


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_server_without_initialize_is_used_however_it_refuses_it(
    pool: McpPool, context: ToolContext, refusal: tuple[int, Json | str]
) -> None:
    seen: list[str] = []
    async with serving(modern(refusal, seen)) as server:
        where = McpAddress(1, f"{server.url}/mcp")
        (pay,) = offered("bank", await list_tools(pool, where), pool=pool, address=where, tool_filter=None)
        output = await pay.invoke(b"{}", context)
        assert not output.is_error and joined_text(output.parts) == "paid"
        # It is not asked again what it does not know.
        async with pool.use(where) as connection:
            pool.discard(connection)
        await list_tools(pool, where)
        assert seen.count("initialize") == 1
        await pool.aclose()


async def test_question_of_such_server_is_declined_and_model_is_told(pool: McpPool, context: ToolContext) -> None:
    async with serving(modern(REFUSALS["unknown method"], [])) as server:
        where = McpAddress(1, f"{server.url}/mcp")
        (pay,) = offered("bank", await list_tools(pool, where), pool=pool, address=where, tool_filter=None)
        text = joined_text((await pay.invoke(b'{"ask":1}', context)).parts)
        await pool.aclose()
    assert text.startswith("paid, decline") and "'Really?'" in text and "declined" in text


async def test_connection_with_an_interrupted_call_is_not_reused(pool: McpPool) -> None:
    """What the server asks on it may be about the run of that call."""
    async with serving(modern(REFUSALS["unknown method"], [])) as server:
        where = McpAddress(1, f"{server.url}/mcp")
        async with pool.use(where) as first:
            first.cut_off("run_1")
            async with pool.use(where) as second:
                assert second is not first and not first.ended
            async with pool.use(where) as third:
                assert third is second
        assert first.ended and not second.ended
        await pool.aclose()


async def test_server_that_wants_login_says_how_to_log_in(pool: McpPool) -> None:
    seen: list[str] = []

    async def refuses(request: web.Request) -> web.Response:
        seen.append(request.method)
        return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})

    async with serving(refuses) as server:
        with pytest.raises(McpUnavailable, match="weftline mcp login"):
            await list_tools(pool, McpAddress(1, f"{server.url}/mcp"))
    assert seen == ["POST"]


async def test_question_during_session_is_declined_and_model_is_told(
    pool: McpPool, facts: McpProcess, context: ToolContext
) -> None:
    where = McpAddress(1, facts.url, tuple(TEAM.items()))
    tools = {
        tool.name: tool
        for tool in offered("facts", await list_tools(pool, where), pool=pool, address=where, tool_filter=None)
    }
    text = joined_text((await tools["facts_ask"].invoke(b"{}", context)).parts)
    assert "the answer was decline" in text and "'What is your name?'" in text
    assert "Nobody can be asked" not in joined_text((await tools["facts_add"].invoke(b'{"a":1,"b":1}', context)).parts)
    told: list[ToolProgress] = []
    context.on_progress = told.append
    await tools["facts_count"].invoke(b"{}", context)
    assert told == [ToolProgress(1, 3, "one of three")]


async def test_progress_of_dialled_tool_is_event_of_run(api: Api, facts: McpProcess) -> None:
    tool = {"kind": "mcp", "name": "facts", "url": facts.url, "headers": TEAM}
    frames = await api.play("count", tools=[tool])
    (progress,) = [frame for frame in frames if frame.type == "tool_progress"]
    call = next(frame for frame in frames if frame.type == "tool_call")
    assert progress.payload == {
        "toolUseId": call["toolUseId"],
        "name": "facts_count",
        "progress": 1.0,
        "total": 3.0,
        "message": "one of three",
    }
    assert frames[-1].type == "result"


async def test_question_of_dialled_server_is_await_if_run_says_so(api: Api, facts: McpProcess) -> None:
    tool = {"kind": "mcp", "name": "facts", "url": facts.url, "headers": TEAM, "elicitation": "ask"}
    run = await api.start("ask", tools=[tool])
    async with api.stream(run) as stream:
        asked = await stream.until("await_opened")
        assert asked["kind"] == "question" and "facts asks: What is your name?" in asked["question"]
        said = {"outcome": "answered", "value": {"name": "Ann"}}
        assert (await api.post(f"agent-runs/{run}/awaits/{asked['awaitId']}", said)).status == 200
        frames = await stream.rest()
    assert frames[-1]["text"] == "heard the answer was accept"
    spec = {"modelId": "scripted:ask", "prompt": "hello", "tools": [{**tool, "elicitation": "maybe"}]}
    refused = await api.post("agent-runs", spec)
    assert refused.status == 400 and "elicitation" in str(refused.json)
