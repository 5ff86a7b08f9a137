from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from forked import python
from weftline.client import (
    AsyncClient,
    Client,
    InvalidSpec,
    NetworkError,
    ToolContext,
    ToolError,
    local_mcp,
)
from weftline.client.events import OfferedCall
from weftline.client.mcp import LocalMcp, model_name
from weftline.work.threads import Threads

from .stand_in import StandIn, reply

SERVER = """
import os, sys
import anyio
import mcp.types as types
from mcp.server import Server

TOOLS = [
    types.Tool(
        name="get-weather",
        description="Weather of a city",
        input_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        annotations=types.ToolAnnotations(read_only_hint=True),
    ),
    types.Tool(
        name="add",
        description="Adds",
        input_schema={"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    ),
    types.Tool(name="fail", description="Fails", input_schema={"type": "object", "properties": {}}),
]

async def list_tools(context, params):
    page = int(params.cursor or 0) if params is not None else 0
    cursor = str(page + 1) if page + 1 < len(TOOLS) else None
    return types.ListToolsResult(tools=[TOOLS[page]], next_cursor=cursor)

async def call_tool(context, params):
    args = params.arguments or {}
    if params.name == "get-weather":
        content = [types.TextContent(type="text", text="sunny in"), types.TextContent(type="text", text=args["city"])]
        return types.CallToolResult(content=content)
    if params.name == "add":
        return types.CallToolResult(content=[], structured_content={"sum": args["a"] + args["b"]})
    if os.path.exists(os.environ.get("PIDS", "") + ".crash"):
        os._exit(3)
    return types.CallToolResult(content=[types.TextContent(type="text", text="no luck")], is_error=True)

server = Server("weather-station", version="1.2.3", on_list_tools=list_tools, on_call_tool=call_tool)

async def main():
    from mcp.server.stdio import stdio_server

    with open(os.environ["PIDS"], "a") as pids:
        pids.write(f"{os.getpid()}\\n")
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

def web():
    import socket
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.run(server.streamable_http_app(), log_level="warning", fd=listening.fileno())

if __name__ == "__main__":
    web() if len(sys.argv) > 1 else anyio.run(main)
"""

SMALL_SERVER = """
import json, os, sys

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("get-weather", "add", "fail")]

def answer(method, params):
    if method == "initialize":
        station = {"name": "weather-station", "version": "1.2.3"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": station}
    if method == "tools/list":
        return {"tools": TOOLS}
    args = params.get("arguments") or {}
    if params["name"] == "get-weather":
        return {"content": [{"type": "text", "text": text} for text in ("sunny in", args["city"])]}
    if params["name"] == "add":
        return {"content": [], "structuredContent": {"sum": args["a"] + args["b"]}}
    if os.path.exists(os.environ["PIDS"] + ".crash"):
        os._exit(3)
    return {"content": [{"type": "text", "text": "no luck"}], "isError": True}

with open(os.environ["PIDS"], "a") as pids:
    pids.write(f"{os.getpid()}\\n")
for line in sys.stdin:
    request = json.loads(line)
    if request.get("method") in ("initialize", "tools/list", "tools/call"):
        outcome = {"result": answer(request["method"], request.get("params") or {})}
    else:
        outcome = {"error": {"code": -32601, "message": "not here"}}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}), flush=True)
"""
"""The same in little, which starts twenty times as fast."""


@pytest.fixture
def station(tmp_path: Path) -> LocalMcp:
    """An MCP server on stdio, as people write one."""
    path = tmp_path / "station.py"
    path.write_text(SERVER, encoding="utf-8")
    return local_mcp("station", command=sys.executable, args=[str(path)], env={"PIDS": str(tmp_path / "pids")})


class SmallStation(Protocol):
    def __call__(self, *, only: list[str] | None = None, prefix: str = "") -> LocalMcp: ...


@pytest.fixture
def small_station(tmp_path: Path) -> SmallStation:
    """An MCP server on stdio for what does not depend on who wrote the server."""
    path = tmp_path / "station.py"
    path.write_text(SMALL_SERVER, encoding="utf-8")
    arguments, env = ["-I", "-S", str(path)], {"PIDS": str(tmp_path / "pids")}
    return partial(local_mcp, "station", command=sys.executable, args=arguments, env=env)


def starts(tmp_path: Path) -> int:
    return len((tmp_path / "pids").read_text().splitlines())


@pytest.fixture
def station_url(tmp_path: Path) -> Iterator[str]:
    """The same server over streamable HTTP."""
    path = tmp_path / "station.py"
    path.write_text(SERVER, encoding="utf-8")
    with python(str(path), "web") as process:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        process.kill()


@pytest.mark.requirement("wire.client.mcp_local")
async def test_the_async_client_ships_and_calls_a_stdio_server(client: AsyncClient, station: LocalMcp) -> None:
    run = await client.start("hi", model_id="scripted:mcp", tools=[station])
    result = await run.result()
    assert result.text == 'sunny in\nOslo || {"sum":5}'
    ref = (await run.snapshot()).spec["tools"][0]
    assert (ref["kind"], ref["name"]) == ("mcp_local", "station")
    assert (ref["serverInfo"]["name"], ref["serverInfo"]["version"]) == ("weather-station", "1.2.3")
    assert [one["name"] for one in ref["tools"]] == ["get_weather", "add", "fail"]
    assert ref["tools"][0]["description"] == "Weather of a city"
    assert ref["tools"][0]["inputSchema"]["required"] == ["city"]
    assert ref["tools"][0]["annotations"] == {"readOnlyHint": True}
    calls = [frame.data for frame in result.frames if frame.type == "local_tool_call"]
    assert {(call["mcpServer"], call["mcpToolName"]) for call in calls} == {
        ("station", "get_weather"),
        ("station", "add"),
    }


@pytest.mark.requirement("wire.client.mcp_local")
def test_the_sync_client_ships_and_calls_a_stdio_server(
    sync_client: Client, small_station: SmallStation, tmp_path: Path
) -> None:
    station = small_station()
    assert sync_client.run("hi", model_id="scripted:mcp", tools=[station]).text == 'sunny in\nOslo || {"sum":5}'
    with station:
        for _ in range(2):
            assert "no luck" in sync_client.run("hi", model_id="scripted:mcp_fails", tools=[station]).text
    assert starts(tmp_path) == 2


@pytest.mark.requirement("wire.client.mcp_local")
async def test_a_server_over_http_works_from_both_clients(
    client: AsyncClient, sync_client: Client, station_url: str
) -> None:
    station = local_mcp("station", url=station_url, headers={"X-Token": "t"})
    assert (await client.run("hi", model_id="scripted:mcp", tools=[station])).text == 'sunny in\nOslo || {"sum":5}'
    result = await asyncio.to_thread(sync_client.run, "hi", model_id="scripted:mcp", tools=[station])
    assert result.text == 'sunny in\nOslo || {"sum":5}'


async def test_runs_at_the_same_time_share_a_connection(
    client: AsyncClient, small_station: SmallStation, tmp_path: Path
) -> None:
    station = small_station()
    async with station:
        runs = (client.run("hi", model_id="scripted:mcp", tools=[station]) for _ in range(3))
        results = await asyncio.gather(*runs)
    assert {result.text for result in results} == {'sunny in\nOslo || {"sum":5}'}
    assert starts(tmp_path) == 1
    assert not any(thread.name == "weftline-mcp-station" for thread in threading.enumerate())


async def test_a_failed_create_lets_go_of_the_connection(
    to_stand_in: AsyncClient, stand_in: StandIn, small_station: SmallStation
) -> None:
    stand_in.on("POST", "/agent-runs", reply({"error": "invalid_request"}, status=400))
    with pytest.raises(Exception, match="400"):
        await to_stand_in.run("hi", tools=[small_station()])
    assert not any(thread.name == "weftline-mcp-station" for thread in threading.enumerate())


async def test_server_that_cannot_be_started_fails_before_anything_is_sent(
    to_stand_in: AsyncClient, stand_in: StandIn
) -> None:
    with pytest.raises(NetworkError):
        await to_stand_in.run("hi", tools=[local_mcp("none", command="/no/such/program")])
    assert stand_in.asked == []


async def test_tools_can_be_chosen_and_renamed(small_station: SmallStation) -> None:
    chosen = small_station(only=["add"], prefix="wx_")
    ref = await chosen.acquire()
    await chosen.release()
    assert [one["name"] for one in ref["tools"]] == ["wx_add"]


def test_a_local_server_is_reached_in_one_way() -> None:
    with pytest.raises(InvalidSpec):
        local_mcp("x")
    with pytest.raises(InvalidSpec):
        local_mcp("x", command="a", url="http://b")


def test_hidden_names_are_changed_and_stay_distinct() -> None:
    taken: dict[str, str] = {}
    for name in ("get-weather", "get_weather", "get.weather", "x" * 80, "x" * 81, "ok"):
        taken[model_name(name, taken=taken)] = name
    assert len(taken) == 6
    assert {"get_weather", "ok"} <= set(taken)
    assert all(len(name) <= 64 and name.replace("_", "").isalnum() for name in taken)


async def test_server_that_crashed_is_started_again_for_next_call(small_station: SmallStation, tmp_path: Path) -> None:
    station = small_station()
    context, workers = ToolContext(run_id="r", tool_use_id="t", name="x"), Threads(max_per_workspace=1)

    async def called(name: str, **args: int) -> str:
        handler = station.handler(OfferedCall(name=name, kind="mcp_local", mcp_server="station"))
        assert handler is not None
        try:
            return await handler(args, context, workers)
        except ToolError as error:
            return str(error)

    async with asyncio.timeout(120), station:
        (tmp_path / "pids.crash").touch()
        assert "may or may not have taken effect" in await called("fail")
        assert await called("add", a=2, b=3) == '{"sum":5}'
        assert starts(tmp_path) == 2
        # Killed between two calls. Whether the first of them notices before it is sent is a matter of luck.
        os.kill(int((tmp_path / "pids").read_text().split()[-1]), signal.SIGKILL)
        assert '{"sum":6}' in [await called("add", a=2, b=4) for _ in range(2)]
        assert starts(tmp_path) == 3
