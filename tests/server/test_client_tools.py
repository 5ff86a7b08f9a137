"""Tools that run at the client: what the model and the client are told about them."""

from __future__ import annotations

import json

import pytest

from .kit import Api, Json, Reply, check_error, local_tool, of_type, types

PARAMETERS: Json = {
    "type": "object",
    "properties": {"q": {"type": "string", "minLength": 2}},
    "required": ["q"],
}
NOTE = (
    "NOTE: This is a long-running operation. Do not call this tool again if it has already returned an intermediate "
    "or pending status."
)
CARD_TEXT = (
    '{"name": "Wörker", "url": "https://x.test", "version": 1.0, "big": 12345678901234567890, "skills": '
    '[{"name": "dig", "description": "digs"}], "own": {"z": 1, "a": [null, 1e2]}, "description": "does work"}'
)


@pytest.mark.requirement("wire.tools.input_invalid")
async def test_unfitting_arguments_return_to_the_model_not_the_client(api: Api) -> None:
    run = await api.start("wrong_args", tools=[local_tool(parameters=PARAMETERS)])
    async with api.stream(run) as stream:
        result = await stream.until("tool_result")
        call = await stream.until("local_tool_call")
        await api.answer(run, call["toolUseId"], result="fine")
        frames = await stream.rest()
    assert result["ok"] is False
    told = json.loads(result["result"])
    assert told["error"] == "tool_input_invalid" and told["tool"] == "lookup"
    assert told["message"] and told["issues"]
    assert call["args"] == {"q": "right"} and len(of_type(frames, "local_tool_call")) == 1
    assert "tool_input_invalid" in frames[-1]["text"] and frames[-1]["subtype"] == "success"


@pytest.mark.requirement("wire.tools.local_long_running")
@pytest.mark.parametrize(("given", "seen"), [("Digs.", f"Digs.{{}}{NOTE}"), ("", NOTE)])
async def test_a_long_running_tool_says_so_in_its_description(api: Api, given: str, seen: str) -> None:
    plain = (await api.play("described", tools=[local_tool(description=given)]))[-1]["text"]
    assert plain == given
    told = (await api.play("described", tools=[local_tool(description=given, longRunning=True)]))[-1]["text"]
    assert told.startswith(given) and told.endswith(NOTE)
    assert told[len(given) : -len(NOTE)].strip() == ""


@pytest.mark.requirement("wire.tools.a2a_local_call", "wire.tools.passthrough")
async def test_client_peer_gets_its_card_back_byte_for_byte(api: Api) -> None:
    data = (
        '{"modelId": "scripted:delegate", "prompt": "go", '
        f'"tools": [{{"kind": "a2a_local", "name": "peer", "agentCard": {CARD_TEXT}}}]}}'
    )
    run = (await api.post("agent-runs", data=data.encode())).json["runId"]
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        await api.answer(run, call["toolUseId"], result="dug")
        frames = await stream.rest()
    assert types(frames)[2:4] == ["local_tool_call", "local_tool_result_in"]
    assert call["kind"] == "a2a_local" and call["name"] == "peer" and call["args"] == {"message": "do it"}
    assert call.raw.count(f'"agentCard":{CARD_TEXT}'.encode()) == 2
    assert f'"agentCard": {CARD_TEXT}'.encode() in (await api.get(f"agent-runs/{run}")).body
    assert frames[-1]["text"] == "peer: dug"


@pytest.mark.requirement("wire.tools.a2a_local_description")
async def test_peers_description_is_its_own_or_made_of_its_card(api: Api) -> None:
    skills = [{"name": f"skill {number}", "description": f"does {number}"} for number in range(15)]
    card: Json = {"name": "Ann", "description": "helps", "skills": skills}
    peer: Json = {"kind": "a2a_local", "name": "peer", "agentCard": card}
    told = (await api.play("peer_desc", tools=[peer]))[-1]["text"]
    lines = told.splitlines()
    assert lines[0].startswith("Delegate a task to Ann: helps")
    bullets = [line for line in lines if "skill" in line]
    assert len(bullets) == 12 and "skill 11" in bullets[-1] and "does 11" in bullets[-1]
    own = (await api.play("peer_desc", tools=[{**peer, "description": "Ask Ann."}]))[-1]["text"]
    assert own == "Ask Ann."


@pytest.mark.requirement("wire.tools.mcp_local_call")
async def test_tool_keeps_name_that_its_mcp_server_gave_it(api: Api) -> None:
    name = "my-server_fs/get-weather.v2"
    tool: Json = {"kind": "mcp_local", "name": "my-server", "tools": [{"name": name}, {"name": "x" * 128}]}
    run = await api.start("foreign_name", tools=[tool])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        assert (call["name"], call["mcpToolName"], call["mcpServer"]) == (name, name, "my-server")
        await api.answer(run, call["toolUseId"], result="sunny")
        assert (await stream.rest())[-1]["text"] == "heard sunny"


@pytest.mark.parametrize("names", [("get-weather", "get_weather"), ("get_weather", "get.weather"), ("a/b", "a-b")])
async def test_names_that_some_models_cannot_tell_apart_are_refused(api: Api, names: tuple[str, str]) -> None:
    async def refused(tools: list[Json]) -> Reply:
        return await api.post("agent-runs", {"modelId": "scripted:hello", "prompt": "hi", "tools": tools})

    first, second = names
    alike: Json = {"kind": "mcp_local", "name": "s", "tools": [{"name": first}, {"name": second}]}
    error = check_error(await refused([alike]), 400, "invalid_request")
    assert first in str(error) and second in str(error) and "tools[0].tools[1].name" in str(error)
    if second == "get_weather":
        mixed = [local_tool(second), {"kind": "mcp_local", "name": "s", "tools": [{"name": first}]}]
        for tools in (mixed, mixed[::-1]):
            check_error(await refused(tools), 400, "invalid_request")


@pytest.mark.requirement("wire.tools.mcp_local_call", "wire.tools.passthrough")
@pytest.mark.parametrize("info", ['{"name": "fs", "version": 2.0, "own": [1, {"b": 2, "a": 1}]}', None])
async def test_client_mcp_tool_is_called_by_its_sent_name(api: Api, info: str | None) -> None:
    entry = '{"name": "files_read", "annotations": {"readOnlyHint": true, "x": 1.0}, "inputSchema": {"type": "object"}}'
    server_info = "" if info is None else f', "serverInfo": {info}'
    data = (
        '{"modelId": "scripted:mcp", "prompt": "go", '
        f'"tools": [{{"kind": "mcp_local", "name": "my files", "tools": [{entry}]{server_info}}}]}}'
    )
    run = (await api.post("agent-runs", data=data.encode())).json["runId"]
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        await api.answer(run, call["toolUseId"], result="hello")
        frames = await stream.rest()
    assert (call["kind"], call["mcpServer"], call["name"], call["mcpToolName"]) == (
        "mcp_local",
        "my files",
        "files_read",
        "files_read",
    )
    assert call["args"] == {"path": "/etc/motd"}
    assert ("mcpServerInfo" in call.body) == (info is not None)
    if info is not None:
        assert f'"mcpServerInfo":{info}'.encode() in call.raw
    assert call["annotations"] == {"readOnlyHint": True, "x": 1.0}
    assert entry.encode() in (await api.get(f"agent-runs/{run}")).body
    assert frames[-1]["text"] == "file: hello"


async def test_the_model_is_offered_exactly_the_tools_of_the_spec(api: Api) -> None:
    mcp = {"kind": "mcp_local", "name": "s", "tools": [{"name": "b"}, {"name": "a"}]}
    frames = await api.play("inside", tools=[mcp, local_tool("z"), {"kind": "mantyx_plugin", "name": "echo"}])
    assert frames[-1]["text"] == "|a,b,echo,z|none"
