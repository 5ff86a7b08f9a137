"""What foreign peers answer, and what becomes of a call whose answer is lost, through a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from weftline import Agent, mcp
from weftline.client import local_mcp
from weftline.messages import joined_text
from weftline.testing import ScriptedModel, ServerProcess, calls
from weftline.tools.base import ToolContext
from weftline.tools.mcp import tools as mcp_tools
from weftline.tools.mcp.pool import McpAddress, McpPool
from weftline.tools.mcp.tools import McpUnavailable, list_tools, offered

from ..kit import Api, Frame, Json, local_tool, of_type
from .peers import answering, serving

OBJECT = {"type": "object"}


def text_of(frames: list[Frame]) -> str:
    assert frames[-1].type == "result", frames[-1].body
    return frames[-1]["text"]


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def listing(*tools: Any) -> Any:
    async def listed(request: web.Request, params: Json) -> Json:
        return {"tools": list(tools)}

    return listed


async def test_blocks_of_result_are_read_one_below_other(api: Api) -> None:
    audio = {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}
    blob = {"uri": "file:///b.bin", "mimeType": "application/octet-stream", "blob": "AAEC"}

    async def many(request: web.Request, params: Json) -> Json:
        strange = {"type": "hologram", "rays": [1, 2]}
        content = [
            text("alpha"),
            text("beta"),
            strange,
            text('{"id":1}'),
            audio,
            {"type": "resource", "resource": blob},
        ]
        return {"content": content, "structuredContent": {"mirrors": "the text"}}

    methods = {"tools/list": listing({"name": "many", "inputSchema": OBJECT}), "tools/call": many}
    async with serving(answering(methods)) as odd:
        frames = await api.play("odd", tools=[{"kind": "mcp", "name": "odd", "url": f"{odd.url}/mcp"}])
    lines = ["alpha", "beta", "[Content of type 'hologram' that cannot be shown.]", '{"id":1}']
    assert text_of(frames) == "heard " + "\n".join(lines)
    result = of_type(frames, "tool_result")[0]
    assert result["result"] == "\n".join(lines)
    assert result["attachments"] == [
        {"type": "audio", "mediaType": "audio/wav"},
        {"type": "file", "mediaType": "application/octet-stream"},
    ]


async def hangs_up(request: web.Request) -> Any:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def dies_in_call(request: web.Request, params: Json) -> Json:
    await hangs_up(request)
    return {}


BANK = answering({"tools/list": listing({"name": "pay", "inputSchema": OBJECT}), "tools/call": dies_in_call})


@pytest.mark.parametrize("kind", ["mcp", "a2a", "stored", "timeout", "raised"])
async def test_call_with_a_lost_outcome_is_in_doubt(api: Api, kind: str) -> None:
    async with serving(BANK if kind == "mcp" else hangs_up) as peer:
        match kind:
            case "mcp":
                script, ref = "pays_twice", {"kind": "mcp", "name": "bank", "url": f"{peer.url}/mcp"}
            case "a2a":
                script, ref = "delegates_twice", {"kind": "a2a", "name": "peer", "agentCardUrl": peer.url}
            case "stored":
                stored = await api.post("tools", {"name": "charge", "url": peer.url, "method": "POST"})
                script, ref = "charges_twice", {"kind": "stored", "id": stored.json["id"]}
            case "timeout":
                script, ref = "stuck_twice", {"kind": "server", "name": "stuck"}
            case _:
                script, ref = "lost_twice", {"kind": "server", "name": "lost"}
        frames = await api.play(script, tools=[ref])
    first, second = of_type(frames, "tool_result")
    assert (first["ok"], first["inDoubt"], second["ok"]) == (False, True, False)
    assert second["result"].startswith("Not executed: an earlier call")
    calls = [one for one in peer.requests if b"initialize" not in one.body and b"tools/list" not in one.body]
    assert len([one for one in calls if one.method == "POST"]) == (kind in ("mcp", "a2a", "stored"))


def task(call: Json, state: str, **fields: Any) -> web.Response:
    result = {"kind": "task", "id": "t-1", "contextId": "c-1", "status": {"state": state}, **fields}
    return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": result})


async def asks_back(request: web.Request) -> web.Response:
    call = await request.json()
    sent = call["params"]["message"]
    if "taskId" in sent:
        return task(call, "completed", artifacts=[{"parts": [{"kind": "text", "text": "a red car"}]}])
    asked = {"role": "agent", "parts": [{"kind": "text", "text": "Which colour?"}]}
    return task(call, "input-required", status={"state": "input-required", "message": asked})


async def test_a_question_is_answered_after_a_restart_too(server: ServerProcess, api: Api) -> None:
    async with serving(asks_back) as running:
        ref = {"kind": "a2a", "name": "peer", "agentCardUrl": running.url}
        run = await api.start("answers_later", tools=[ref, local_tool()])
        async with api.stream(run) as stream:
            call = await stream.until("local_tool_call")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await api.answer(run, call["toolUseId"], result="found")
        assert text_of(await api.events(run)).endswith(" || a red car")
    assert running.requests[-1].json["params"]["message"]["taskId"] == "t-1"


async def test_the_next_call_answers_the_question_of_a_peer(api: Api) -> None:
    async with serving(asks_back) as running:
        ref = {"kind": "a2a", "name": "peer", "agentCardUrl": running.url}
        frames = await api.play("answers", tools=[ref])
    question, answer, anew = of_type(frames, "tool_result")
    assert question["ok"] and question["result"].startswith("Which colour?\n[peer is waiting for an answer")
    assert answer["result"] == "a red car" and anew["result"] == question["result"]
    sent = [one.json["params"]["message"] for one in running.requests]
    assert [(one.get("taskId"), one.get("contextId")) for one in sent] == [(None, None), ("t-1", "c-1"), (None, None)]


async def test_cancelling_a_run_cancels_the_task_of_its_peer(api: Api) -> None:
    looked_at, cancelled = asyncio.Event(), asyncio.Event()

    async def peer(request: web.Request) -> web.Response:
        call = await request.json()
        if call["method"] == "tasks/cancel":
            assert call["params"] == {"id": "t-1"}
            cancelled.set()
        elif call["method"] == "tasks/get":
            looked_at.set()
        return task(call, "canceled" if cancelled.is_set() else "working")

    async with serving(peer) as running, asyncio.timeout(120):
        ref = {"kind": "a2a", "name": "peer", "agentCardUrl": running.url}
        run = await api.start("delegates_twice", tools=[ref])
        await looked_at.wait()
        assert (await api.cancel(run)).status == 200
        await cancelled.wait()


async def test_a_malformed_tool_costs_the_server_that_tool_alone(
    pool: McpPool, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"name": "good", "inputSchema": OBJECT}
    listed = listing(good, {"name": "bad", "inputSchema": {"type": "string"}}, {"inputSchema": OBJECT}, "none")
    async with serving(answering({"tools/list": listed})) as server:
        entries = await list_tools(pool, McpAddress(1, f"{server.url}/mcp"))
        async with local_mcp("odd", url=f"{server.url}/mcp") as local:
            shipped = (await local.acquire())["tools"]
            await local.release()
        await pool.aclose()
    assert [entry.name for entry in entries] == [tool["name"] for tool in shipped] == ["good"]
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records if "malformed" in record.message] == [
        *["'bad'", "without a name", "without a name"] * 2
    ]


async def test_tool_for_tasks_alone_is_left_out_with_one_note(pool: McpPool, caplog: pytest.LogCaptureFixture) -> None:
    named = [
        {"name": kind, "inputSchema": OBJECT, "execution": {"taskSupport": kind}} for kind in ("optional", "required")
    ]
    async with serving(answering({"tools/list": listing(*named)})) as server:
        where = McpAddress(1, f"{server.url}/mcp")
        listed = [await list_tools(pool, where) for _ in range(2)]
        async with local_mcp("odd", url=where.url) as local:
            shipped = (await local.acquire())["tools"]
            await local.release()
        await pool.aclose()
    assert {one.name for entries in listed for one in entries} == {one["name"] for one in shipped} == {"optional"}
    notes = [record.getMessage() for record in caplog.records if "as a task" in record.getMessage()]
    assert len(notes) == 2 and all(
        "'required'" in note for note in notes
    )  # of the server's connection, and the client's


async def test_recorded_call_is_what_the_server_gets() -> None:
    got: list[Json] = []

    async def pay(request: web.Request, params: Json) -> Json:
        got.append(params["arguments"])
        return {"content": []}

    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "note": {"type": "string"}}}
    methods = {"tools/list": listing({"name": "pay", "inputSchema": schema}), "tools/call": pay}
    async with serving(answering(methods)) as server:
        agent = Agent(
            ScriptedModel([calls("bank__pay", n=1, note=None), "Done."]), tools=[mcp(f"{server.url}/mcp", name="bank")]
        )
        result = await agent.run("Pay.")
    assert got == [result.calls[0].args] == [{"n": 1}]


async def test_model_never_reads_what_library_says_about_answer(pool: McpPool, context: ToolContext) -> None:
    async def nonsense(request: web.Request, params: Json) -> Json:
        return {"tools": 5, "content": 5}

    methods = {"tools/list": listing({"name": "t", "inputSchema": OBJECT}), "tools/call": nonsense}
    async with serving(answering({"tools/list": nonsense})) as broken, serving(answering(methods)) as half:
        with pytest.raises(McpUnavailable, match=r"^The server's answer does not follow the protocol\.$"):
            await list_tools(pool, McpAddress(1, f"{broken.url}/mcp"))
        where = McpAddress(1, f"{half.url}/mcp")
        (tool,) = offered("odd", await list_tools(pool, where), pool=pool, address=where, tool_filter=None)
        output = await tool.invoke(b"{}", context)
        await pool.aclose()
    said = joined_text(output.parts)
    assert output.in_doubt and said.startswith("odd_t failed: The server's answer does not follow the protocol. ")


async def test_list_that_is_too_long_is_cut_with_warning(
    pool: McpPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def listed(request: web.Request, params: Json) -> Json:
        page = int(params.get("cursor") or 0)
        return {"tools": [{"name": f"t{page}", "inputSchema": OBJECT}], "nextCursor": str(page + 1)}

    assert mcp_tools.MAX_TOOLS == mcp_tools.MAX_PAGES == 2000
    monkeypatch.setattr(mcp_tools, "MAX_TOOLS", 3)
    async with serving(answering({"tools/list": listed})) as server:
        entries = await list_tools(pool, McpAddress(1, f"{server.url}/mcp"))
        await pool.aclose()
    assert [entry.name for entry in entries] == ["t0", "t1", "t2"]
    assert [record for record in caplog.records if "lists more than 3 tools" in record.getMessage()]


async def test_a_tool_whose_name_needs_no_change_keeps_it(pool: McpPool) -> None:
    names = ["get.weather", "get-weather", "get_weather"]
    async with serving(
        answering({"tools/list": listing(*[{"name": one, "inputSchema": OBJECT} for one in names])})
    ) as it:
        where = McpAddress(1, f"{it.url}/mcp")
        entries = await list_tools(pool, where)
        async with local_mcp("odd", url=where.url) as local:
            shipped = (await local.acquire())["tools"]
            await local.release()
        await pool.aclose()
    shown = [tool.name for tool in offered("web", entries, pool=pool, address=where, tool_filter=None)]
    assert shown[2] == "web_get_weather" and len({*shown}) == 3
    assert shipped[2]["name"] == "get_weather" and len({one["name"] for one in shipped}) == 3
