"""The tools of MCP servers, against the official server over Streamable HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

import aiohttp
import msgspec
import pytest
from aiohttp import web

from weftline.messages import Image, Text, joined_text
from weftline.net.dial import Dialer
from weftline.tools.arguments import InvalidArguments
from weftline.tools.base import ToolContext
from weftline.tools.mcp.pool import McpAddress, McpPool
from weftline.tools.mcp.tools import McpTool, McpUnavailable, list_tools, model_name, offered
from weftline.tools.mcp.transports import MAX_OPEN_REQUESTS

from ..kit import Json
from .peers import TEAM, McpProcess, answering, missing, serving


def address(server: McpProcess, headers: Iterable[tuple[str, str]] = tuple(TEAM.items())) -> McpAddress:
    return McpAddress(1, server.url, tuple(headers))


async def tools_of(pool: McpPool, server: McpProcess) -> dict[str, McpTool]:
    where = address(server)
    entries = await list_tools(pool, where)
    return {tool.name: tool for tool in offered("facts", entries, pool=pool, address=where, tool_filter=None)}


async def test_tools_are_listed_with_their_effects(pool: McpPool, facts: McpProcess) -> None:
    tools = await tools_of(pool, facts)
    assert {name: tool.effect for name, tool in tools.items()} == {
        "facts_add": "read",
        "facts_get_weather": "idempotent",
        "facts_picture": "once",
        "facts_broken": "once",
        "facts_slow": "once",
        "facts_ask": "once",
        "facts_count": "once",
        "facts_report": "read",
    }
    assert tools["facts_add"].concurrent and not tools["facts_picture"].concurrent
    assert tools["facts_add"].spec.description == "Adds two numbers."
    assert set(msgspec.json.decode(bytes(tools["facts_add"].spec.parameters))["properties"]) == {"a", "b"}


async def test_text_structure_and_images_reach_the_model(
    pool: McpPool, facts: McpProcess, context: ToolContext
) -> None:
    tools = await tools_of(pool, facts)
    weather = await tools["facts_get_weather"].invoke(b'{"city":"Oslo"}', context)
    assert msgspec.json.decode(joined_text(weather.parts)) == {"city": "Oslo", "sky": "clear"}
    picture = await tools["facts_picture"].invoke(b"{}", context)
    assert isinstance(picture.parts[0], Text) and picture.parts[0].text == "one pixel"
    assert isinstance(picture.parts[1], Image) and picture.parts[1].media_type == "image/png"
    broken = await tools["facts_broken"].invoke(b"{}", context)
    assert broken.is_error and isinstance(broken.parts[0], Text) and "out of order" in broken.parts[0].text


async def test_arguments_are_checked_before_the_server_is_asked(pool: McpPool, facts: McpProcess) -> None:
    tools = await tools_of(pool, facts)
    assert await tools["facts_add"].prepare('{"a": 1, "b": 2}') == b'{"a":1,"b":2}'
    with pytest.raises(InvalidArguments):
        await tools["facts_add"].prepare('{"a": "one"}')


async def test_giving_up_a_call_stops_it_upstream(pool: McpPool, facts: McpProcess, context: ToolContext) -> None:
    tools = await tools_of(pool, facts)
    before = len(await seen(facts, "cancelled"))
    call = asyncio.create_task(tools["facts_slow"].invoke(b"{}", context))
    await until_seen(facts, "running", before + 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until_seen(facts, "cancelled", before + 1)
    # The connection goes on to serve others.
    assert (await tools["facts_add"].invoke(b'{"a":1,"b":2}', context)).parts == (Text("3"),)


async def test_a_server_that_restarts_keeps_its_tools(
    pool: McpPool, own_facts: McpProcess, context: ToolContext
) -> None:
    tools = await tools_of(pool, own_facts)
    assert (await tools["facts_add"].invoke(b'{"a":1,"b":2}', context)).parts == (Text("3"),)
    own_facts.restart()
    # The session is unknown to the new process, so even a call that must not be repeated can be sent again.
    assert not (await tools["facts_picture"].invoke(b"{}", context)).is_error
    own_facts.stop()
    down = await tools["facts_add"].invoke(b'{"a":1,"b":2}', context)
    assert down.is_error and isinstance(down.parts[0], Text) and "Could not connect" in down.parts[0].text
    own_facts.start()
    assert (await tools["facts_add"].invoke(b'{"a":2,"b":2}', context)).parts == (Text("4"),)


async def test_connections_are_shared_bounded_and_closed_when_idle(
    dialer: Dialer, facts: McpProcess, context: ToolContext
) -> None:
    pool = McpPool(dialer, max_connections=1, idle_s=0.0)
    try:
        where = address(facts)
        async with pool.use(where) as first, pool.use(where) as second:
            assert first is second
        await asyncio.wait_for(asyncio.shield(first.owner), 120)
        async with pool.use(where) as third:
            assert third is not first
            # Another workspace has a place of its own; a second server has to wait until the only one is free.
            assert len(await list_tools(pool, McpAddress(2, facts.url, tuple(TEAM.items())))) == 8
            elsewhere = McpAddress(1, facts.url, (*TEAM.items(), ("X-Other", "1")))
            impatient = McpPool(dialer, max_connections=1, connect_s=0.01)
            impatient._rooms = pool._rooms  # pyright: ignore[reportPrivateUsage]
            with pytest.raises(TimeoutError, match="was not asked"):
                async with impatient.use(elsewhere):
                    raise AssertionError("there is no room")
            other = asyncio.create_task(list_tools(pool, elsewhere))
            await asyncio.sleep(0)
            assert not other.done()
        assert len(await asyncio.wait_for(other, 120)) == 8
    finally:
        await pool.aclose()


async def test_server_problem_is_reported(pool: McpPool, facts: McpProcess) -> None:
    with pytest.raises(McpUnavailable, match="401"):
        await list_tools(pool, address(facts, ()))
    with pytest.raises(McpUnavailable, match="Could not connect"):
        await list_tools(pool, McpAddress(1, "http://127.0.0.1:9/mcp"))
    async with serving(missing) as nobody:
        with pytest.raises(McpUnavailable, match="404"):
            await list_tools(pool, McpAddress(1, f"{nobody.url}/mcp"))


async def test_a_server_that_never_answers_is_given_up(dialer: Dialer) -> None:
    waiting = asyncio.Event()

    async def silent(request: web.Request) -> web.Response:
        await waiting.wait()
        return web.Response()

    pool = McpPool(dialer, connect_s=0.2)
    async with serving(silent) as nobody:
        with pytest.raises(McpUnavailable, match="in time"):
            await list_tools(pool, McpAddress(1, f"{nobody.url}/mcp"))
        waiting.set()
        await pool.aclose()


async def test_server_that_asks_without_waiting_for_answers_is_given_up(pool: McpPool) -> None:
    answered = asyncio.Event()

    async def pinging(request: web.Request) -> web.StreamResponse:
        if "method" not in await request.json():
            await answered.wait()
            return web.Response(status=202)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        pings = (f'data: {{"jsonrpc": "2.0", "id": {n}, "method": "ping"}}\n\n' for n in range(2 * MAX_OPEN_REQUESTS))
        await response.write("".join(pings).encode())
        await answered.wait()
        return response

    async with serving(pinging) as server:
        with pytest.raises(McpUnavailable, match="more than 1,000 requests at once"):
            await list_tools(pool, McpAddress(1, f"{server.url}/mcp"))
        answered.set()
        await pool.aclose()


async def test_every_page_of_a_long_list_is_read(pool: McpPool) -> None:
    async def listed(request: web.Request, params: Json) -> Json:
        page = int(params.get("cursor") or 0)
        more = {"nextCursor": str(page + 1)} if page < 2 else {}
        return {"tools": [{"name": f"tool{page}", "inputSchema": {"type": "object"}}], **more}

    async with serving(answering({"tools/list": listed})) as server:
        entries = await list_tools(pool, McpAddress(1, f"{server.url}/mcp"))
        await pool.aclose()
    assert [entry.name for entry in entries] == ["tool0", "tool1", "tool2"]


@pytest.mark.parametrize("hint", [{}, {"readOnlyHint": True}])
async def test_call_with_a_lost_answer_repeats_only_when_harmless(
    pool: McpPool, context: ToolContext, hint: Json
) -> None:
    calls: list[Json] = []

    async def listed(request: web.Request, params: Json) -> Json:
        return {"tools": [{"name": "pay", "inputSchema": {"type": "object"}, "annotations": hint}]}

    async def cut(request: web.Request, params: Json) -> Json:
        calls.append(params)
        if len(calls) == 1:
            assert request.transport is not None
            request.transport.close()
        return {"content": [{"type": "text", "text": "paid"}]}

    async with serving(answering({"tools/list": listed, "tools/call": cut})) as server:
        where = McpAddress(1, f"{server.url}/mcp")
        (pay,) = offered("bank", await list_tools(pool, where), pool=pool, address=where, tool_filter=None)
        output = await pay.invoke(b"{}", context)
        assert isinstance(output.parts[0], Text)
        if hint:
            assert output.parts[0].text == "paid" and len(calls) == 2
        else:
            assert output.in_doubt and "may or may not" in output.parts[0].text and len(calls) == 1
            assert not (await pay.invoke(b"{}", context)).is_error
        await pool.aclose()


def test_names_are_made_fit_for_models() -> None:
    assert model_name("web", "get-weather", taken=set()) == "web_get_weather"
    long = model_name("web", "x" * 100, taken=set())
    assert len(long) == 64 and long == model_name("web", "x" * 100, taken=set())
    assert long != model_name("web", "x" * 101, taken=set())
    assert model_name("web", "a.b", taken={"web_a_b"}) not in ("web_a_b", model_name("web", "a-b", taken={"web_a_b"}))


async def seen(server: McpProcess, what: str) -> list[str]:
    async with aiohttp.ClientSession() as session, session.get(server.seen_url) as reply:
        return (await reply.json(content_type=None))[what]


async def until_seen(server: McpProcess, what: str, count: int) -> None:
    async with asyncio.timeout(120):
        while len(await seen(server, what)) < count:
            pass


async def test_without_the_extra_the_tool_says_what_to_install(
    pool: McpPool, facts: McpProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(McpUnavailable, match=r"the extra `mcp`"):
        await list_tools(pool, address(facts))
