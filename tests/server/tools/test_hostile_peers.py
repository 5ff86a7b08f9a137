"""Those whom the server dials may be anybody: what they answer stops nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest
from aiohttp import web

from ..kit import Api, Frame, Json
from ..test_bombs import dag
from .peers import Handler, missing, serving

FETCH = [{"kind": "mantyx_plugin", "name": "fetch"}]
SIZE = 300_000
PAGES = {
    "unclosed tags": "<a" * (SIZE // 2),
    "unclosed comments": "<!--" * (SIZE // 4),
    "unclosed declarations": "<!x " * (SIZE // 4),
    "unclosed sections": "<![CDATA[" * (SIZE // 9),
    "unclosed scripts": "<script>" + "</scrip" * (SIZE // 7),
    "unclosed attributes": '<a b="' * (SIZE // 6),
    "half end tags": "</" * (SIZE // 2),
    "deep silence": "<svg>" * (SIZE // 10) + "</b>" * (SIZE // 8),
    "deep boxes": "<div>" * (SIZE // 10) + "</p>" * (SIZE // 8),
    "formatting": "".join(f"<b {n}>" for n in range(SIZE // 20)) + "x</b>" * (SIZE // 10),
    "references": "&#" * (SIZE // 2),
    "spaces": "<p>" + " \n" * (SIZE // 2),
}


async def beside(api: Api, work: Coroutine[Any, Any, list[Frame]]) -> list[Frame]:
    """What `work` comes to, while other runs are made and finished."""
    task = asyncio.ensure_future(work)
    while not task.done():
        assert (await api.play("clock", tools=[{"kind": "mantyx_plugin", "name": "current_time"}]))[-1].type == "result"
    return await task


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
async def test_a_hostile_page_is_read_or_given_up(api: Api, page: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=page + "<p>the end", content_type="text/html")

    async with serving(answer) as site:
        frames = await beside(api, api.play("fetch", prompt=f"{site.url}/", tools=FETCH))
    assert frames[-1].type == "result" and frames[-1]["text"].startswith("heard")


@pytest.mark.parametrize("charset", ["punycode", "idna", "unicode_escape", "zip", "no-such-thing"])
@pytest.mark.parametrize("kind", ["text/html", "text/plain"])
async def test_an_odd_charset_is_read_as_utf_8(api: Api, kind: str, charset: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=b"a-" * 200_000, headers={"Content-Type": f"{kind}; charset={charset}"})

    async with serving(answer) as site:
        frames = await beside(api, api.play("fetch", prompt=f"{site.url}/", tools=FETCH))
    assert frames[-1]["text"].startswith("heard a-a-a-")


def mcp_server(tool: Json, result: Json) -> Handler:
    """An MCP server with one tool, by hand: the official one would refuse to say such things."""

    async def answer(request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405)
        call = json.loads(await request.read())
        results: Json = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "bad", "version": "1"},
            },
            "tools/list": {"tools": [tool]},
            "tools/call": result,
        }
        if "id" not in call:
            return web.Response(status=202)
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": results.get(call["method"], {})})

    return answer


async def grabbed(api: Api, handler: Handler) -> str:
    async with serving(handler) as site:
        tools = [{"kind": "mcp", "name": "bad", "url": f"{site.url}/mcp"}]
        return (await beside(api, api.play("grab", tools=tools)))[-1]["text"]


async def test_result_is_checked_against_its_servers_schema_in_bounded_time(api: Api) -> None:
    looping = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}
    tool = {"name": "grab", "inputSchema": {"type": "object"}, "outputSchema": looping}
    content = {"x": "a" * 60 + "!"}
    text = await grabbed(api, mcp_server(tool, {"content": [], "structuredContent": content}))
    assert "does not fit its schema: /x" in text
    text = await grabbed(api, mcp_server(tool, {"content": [], "structuredContent": {"x": "aaa"}}))
    assert text == 'heard {"x":"aaa"}'
    text = await grabbed(api, mcp_server(tool, {"content": [{"type": "text", "text": "no structure"}]}))
    assert "has no structured content" in text


async def test_tool_whose_schemas_cost_too_much_is_offered_without_them(api: Api) -> None:
    tool = {"name": "grab", "inputSchema": dag(40), "outputSchema": dag(40)}
    result = {"content": [{"type": "text", "text": "fine"}], "structuredContent": {"q": 1}}
    assert await grabbed(api, mcp_server(tool, result)) == "heard fine"


async def test_an_answer_of_a_million_values_is_not_made(api: Api) -> None:
    tool = {"name": "grab", "inputSchema": {"type": "object"}}
    nothing: list[object] = []
    result: dict[str, object] = {"content": nothing, "structuredContent": {"x": [nothing] * 1_000_000}}
    assert "200,000 JSON values" in await grabbed(api, mcp_server(tool, result))
    result = {"content": nothing, "structuredContent": {"x": [10**4_000] * 20}}
    assert "numbers of more than 400 digits" in await grabbed(api, mcp_server(tool, result))


async def test_card_with_ten_thousand_interfaces_is_not_tried_completely(api: Api) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("agent-card.json"):
            interfaces = [{"url": f"/{n}", "protocolBinding": "JSONRPC"} for n in range(10_000)]
            return web.json_response({"name": "x", "supportedInterfaces": interfaces})
        return await missing(request)

    async with serving(answer) as site:
        card = f"{site.url}/.well-known/agent-card.json"
        frames = await api.play("delegate", tools=[{"kind": "a2a", "name": "peer", "agentCardUrl": card}])
        assert frames[-1].type == "result" and len(site.requests) < 50
