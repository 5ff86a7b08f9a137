"""JSON from outside may be spread over many lines. Whatever has one value per line must still have it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import ClientConfig, create_client
from a2a.types.a2a_pb2 import AgentCard, TaskState
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st

from commands import weftline_beside
from weftline.client import AsyncClient, ClientEvent
from weftline.events import RunEnded
from weftline.events.frames import frame
from weftline.framing import one_line
from weftline.replay.format import EntryLine, decode_line, encode_line, entry_line, stored
from weftline.store import open_store
from weftline.store.rows import Item
from weftline.testing import ServerProcess

from ..hosted.a2a_calls import Caller
from ..hosted.test_a2a_1_0 import request
from ..hosted.test_mcp import connected
from ..kit import TIMEOUT_S, Json, local_tool, of_type, parse_frame
from .conftest import Team
from .dialects import FAMILIES, Call

ENDS = pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "notes": {"type": "string"}},
    "required": ["city", "notes"],
    "additionalProperties": False,
}
VALUE = {"city": "Oslo", "notes": "two\nlines\r\nof text"}
MODEL = FAMILIES["openai_chat"]
BREAKS = st.text(alphabet="\r\n \t", min_size=1, max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def pretty(value: Any, end: str) -> str:
    return json.dumps(value, indent=2).replace("\n", end)


@given(VALUES, BREAKS)
def test_a_value_on_one_line_is_the_same_value(value: Any, breaks: str) -> None:
    written = json.dumps([value], indent=1, separators=("," + breaks, breaks + ":")).encode()
    line = one_line(written)
    assert json.loads(line) == [value] and not {*b"\r\n"} & {*line}
    sent = frame(7, "note", b'{"data_":%b}' % written)
    assert b"\r" not in sent and parse_frame(sent.removesuffix(b"\n\n"))["data_"] == [value]
    item = Item(0, "call.closed", b'{"a":%b}' % written, written, seq=1)
    exported = entry_line("run_1", item)
    assert exported.count(b"\n") == 1 and b"\r" not in exported
    read = decode_line(exported)
    assert isinstance(read, EntryLine) and json.loads(stored(read).body) == [value]
    assert encode_line(read) == exported


async def posted(team: Team, path: str, body: Json, end: str, *, method: str = "POST") -> Json:
    reply = await team.api.call(
        method, path, data=pretty(body, end).encode(), headers={"Content-Type": "application/json"}
    )
    assert reply.status in (200, 201, 202), reply.body
    return reply.json


async def played(team: Team, end: str, **fields: Any) -> str:
    """A run in which everybody spreads their JSON over many lines."""
    model = await team.bring(MODEL, name=f"mine{len(team.upstream.asked)}")
    team.upstream.answers(
        MODEL.answer("Wait.", calls=[Call("lookup", pretty({"q": "one"}, end), "call_1")]),
        MODEL.answer(pretty(VALUE, end)),
    )
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    body = {
        "modelId": model,
        "prompt": "Which city?",
        "tools": [local_tool(parameters=schema)],
        "outputSchema": {"name": "city", "schema": SCHEMA},
        "metadata": {"team": "a"},
    }
    run: str = (await posted(team, "agent-runs", body | fields, end))["runId"]
    async with team.api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        assert call["args"] == {"q": "one"}
        answer = {"toolUseId": call["toolUseId"], "result": pretty({"found": [1, 2]}, end)}
        await posted(team, f"agent-runs/{run}/tool-results", answer, end)
        await stream.rest()
        assert all(b"\r" not in one.raw for one in stream.frames)
    assert stream.frames[-1].type == "result" and json.loads(stream.frames[-1]["text"]) == VALUE, stream.frames[-1]
    return run


@ENDS
async def test_every_frame_of_a_stream_is_one_line(team: Team, end: str) -> None:
    run = await played(team, end)
    frames = await team.api.events(run)
    assert of_type(frames, "local_tool_call")[0]["args"] == {"q": "one"}
    reply = await team.api.get(f"agent-runs/{run}/stream?profile=all")
    assert b"\r" not in reply.body
    for raw in reply.body.removesuffix(b"\n\n").split(b"\n\n"):
        *_, data = raw.split(b"\n")
        assert raw.count(b"\n") <= 2 and data.startswith(b"data: ") and json.loads(data[6:])
    async with AsyncClient(base_url=team.api.url, workspace=team.api.slug, api_key=team.api.key) as client:
        attached = await client.attach(run)
        events: list[ClientEvent] = [event async for event in attached.events()]
    assert isinstance(events[-1], RunEnded) and events[-1].seq == frames[-1].seq


@ENDS
async def test_a_run_survives_export_and_import(team: Team, server: ServerProcess, tmp_path: Path, end: str) -> None:
    alone, model = await played(team, end), await team.bring(MODEL, name="another")
    body = {"name": "talk", "modelId": model, "metadata": {"team": "a"}}
    session = (await posted(team, "agent-sessions", body, end))["sessionId"]
    team.upstream.answers(MODEL.answer(pretty(VALUE, end)))
    sent = await posted(team, f"agent-sessions/{session}/messages", {"prompt": "Which?"}, end)
    await team.api.events(threaded := sent["runId"])
    elsewhere = tmp_path / "data"
    await open_store(elsewhere).close()
    for exported, run in ((alone, alone), (session, threaded)):
        file = tmp_path / f"{exported}.jsonl"
        written = await weftline_beside("export", exported, "-o", str(file), "--db", str(server.db))
        assert written.code == 0, written
        lines = file.read_bytes().split(b"\n")
        assert b"\r" not in file.read_bytes() and lines.pop() == b"" and all(map(json.loads, lines))
        again = await weftline_beside("replay", str(file))
        assert again.code == 0, again
        for db in (server.db, elsewhere):
            read = await weftline_beside("import", str(file), "--workspace", team.api.slug, "--db", str(db))
            assert read.code == 0 and run in read.out + read.err, read
        there, here = [
            json.loads((await weftline_beside("runs", "show", run, "--json", "--db", str(db))).out)
            for db in (elsewhere, server.db)
        ]
        assert there | {"sessionId": None} == here | {"sessionId": None}  # an imported session gets a new id


@ENDS
async def test_agents_are_listed_and_shown_beside_the_server(
    team: Team, server: ServerProcess, tmp_path: Path, end: str
) -> None:
    spec = {"tools": [local_tool(parameters=SCHEMA)], "outputSchema": {"name": "city", "schema": SCHEMA}}
    file = tmp_path / "agent.json"
    file.write_bytes(pretty({"name": "From a file", "slug": "filed", "spec": spec}, end).encode())
    options = ("--workspace", team.api.slug, "--db", str(server.db))
    assert (await weftline_beside("agents", "create", "--file", str(file), *options)).code == 0
    body = {"name": "Sent", "slug": "sent", "spec": spec, "metadata": {"team": "a"}}
    made = await posted(team, "agents", body, end)
    assert (await posted(team, f"agents/{made['id']}", body, end, method="PUT"))["spec"] == spec
    listed = await weftline_beside("agents", "list", "--json", *options)
    assert listed.code == 0 and [one["spec"] for one in json.loads(listed.out)] == [spec, spec], listed
    for slug in ("filed", "sent"):
        shown = await weftline_beside("agents", "show", slug, "--json", *options)
        assert shown.code == 0 and json.loads(shown.out)["spec"] == spec, shown


@ENDS
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_the_official_a2a_client_reads_a_stream(team: Team, version: str, end: str) -> None:
    model = await team.bring(MODEL)
    spec = {"modelId": model, "outputSchema": {"name": "city", "schema": SCHEMA}}
    await posted(team, "agents", {"name": "Helper", "spec": spec}, end)
    caller = Caller(team.api, version)
    card = await team.api.get(f"{caller.path}/.well-known/agent-card.json", headers={"A2A-Version": "1.0"})
    parsed = ParseDict(card.json, AgentCard())
    kept = [one for one in parsed.supported_interfaces if one.protocol_version == version]
    del parsed.supported_interfaces[:]
    parsed.supported_interfaces.extend(kept)
    headers = {"Authorization": f"Bearer {team.api.key}"}
    async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http:
        client = await create_client(parsed, ClientConfig(httpx_client=http))
        team.upstream.answers(MODEL.answer(pretty(VALUE, end)))
        events = [event async for event in client.send_message(request("Which city?", message_id="m1"))]
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    team.upstream.answers(MODEL.answer(pretty(VALUE, end)))
    params = caller.message(parts=[{"data": VALUE} if version == "1.0" else {"kind": "data", "data": VALUE}])
    method = "SendStreamingMessage" if version == "1.0" else "message/stream"
    called = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    reply = await team.api.post(
        caller.path, data=pretty(called, end).encode(), headers={"A2A-Version": version, "Accept": "text/event-stream"}
    )
    assert b"\r" not in reply.body and reply.body.count(b"\n") == 2 * reply.body.count(b"data: "), reply.body


@ENDS
async def test_an_official_mcp_client_calls_an_agent(team: Team, end: str) -> None:
    model = await team.bring(MODEL)
    spec = {"modelId": model, "outputSchema": {"name": "city", "schema": SCHEMA}}
    await posted(team, "agents", {"name": "Helper", "spec": spec}, end)
    team.upstream.answers(MODEL.answer(pretty(VALUE, end)))
    async with asyncio.timeout(TIMEOUT_S), connected(team.api) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["helper"]
        result = await client.call_tool("helper", {"message": "Which city?"})
    assert not result.is_error and json.loads(result.content[0].text) == VALUE  # type: ignore[union-attr]
