"""The three clients read one and the same run out of the stream."""

from __future__ import annotations

from typing import Any

import pytest

from ..kit import TERMINAL, Api, Frame, Json, local_tool
from .readers import READERS, go_tokens

CARD: Json = {"name": "Peer", "url": "http://127.0.0.1:9/a2a", "skills": [], "x-extra": {"kept": [1, None]}}
TOOLS: dict[str, Json] = {
    "lookup": local_tool(),
    "delegate": {"kind": "a2a_local", "name": "peer", "agentCard": CARD},
    "mcp": {"kind": "mcp_local", "name": "files", "serverInfo": {"name": "f"}, "tools": [{"name": "files_read"}]},
}
NEEDED: dict[str, tuple[str, ...]] = {
    "started": ("runId",),
    "assistant_delta": ("text",),
    "thinking_delta": ("text",),
    "assistant_message": ("text", "turn", "finishReason"),
    "local_tool_call": ("toolUseId", "name", "args", "kind"),
    "local_tool_result_in": ("toolUseId", "result", "output"),
    "tool_call": ("toolUseId", "name", "args", "input"),
    "tool_result": ("toolUseId", "name", "ok", "summary", "result", "args", "phase"),
    "loop_detected": ("consecutiveCount", "hardCutoff", "tools"),
    "tool_budget_exceeded": ("tool", "maxCalls", "callIndex"),
    "result": ("subtype", "ok", "tokens", "turns", "model"),
    "error": ("error", "code", "tokens", "turns", "model"),
    "cancelled": ("reason",),
}
"""What a client, or the code that uses it, takes from each event."""


async def followed(api: Api, script: str, **spec: Any) -> list[Frame]:
    """Follows a run as a client does: each local call is answered once it has been read."""
    run = await api.start(script, **spec)
    async with api.stream(run) as stream:
        while (frame := await stream.next()) is not None:
            if frame.type == "local_tool_call":
                assert (await api.answer(run, frame["toolUseId"], result="r")).status == 200
        return stream.frames


@pytest.mark.requirement("wire.sse.hybrid", "wire.sse.frame")
@pytest.mark.parametrize(
    ("script", "spec"),
    [
        ("hello", {}),
        ("thoughts", {"reasoningLevel": "high"}),
        ("lookup", {"tools": [TOOLS["lookup"]]}),
        ("delegate", {"tools": [TOOLS["delegate"]]}),
        ("mcp", {"tools": [TOOLS["mcp"]]}),
        ("echo", {"tools": [{"kind": "mantyx_plugin", "name": "@tools/echo"}]}),
        ("echo_loop", {"tools": [{"kind": "mantyx_plugin", "name": "@tools/echo"}]}),
        ("greedy_local", {"tools": [TOOLS["lookup"]], "toolBudgets": {"lookup": {"maxCalls": 1}}}),
        ("cut", {}),
        ("fails_auth", {}),
        ("looper", {"tools": [TOOLS["lookup"]], "loopDetection": False, "budgets": {"maxToolTurns": 2}}),
    ],
)
async def test_every_client_reads_the_same_events(api: Api, script: str, spec: Json) -> None:
    frames = await followed(api, script, **spec)
    for frame in frames:
        seen = {name: read(frame.raw) for name, read in READERS.items()}
        assert {(seq, kind) for seq, kind, _ in seen.values()} == {(frame.seq, frame.type)}
        payloads = [{key: payload[key] for key in frame.payload} for _, _, payload in seen.values()]
        assert payloads[0] == payloads[1] == payloads[2] == frame.payload
        assert set(NEEDED.get(frame.type, ())) <= set(frame.payload), frame.raw
    seqs = [frame.seq for frame in frames]
    assert seqs == sorted(set(seqs)) and frames[-1].type in TERMINAL
    end = frames[-1]
    assert type(end["turns"]) is int and end["model"]["provider"]
    assert go_tokens(end["tokens"]).output_tokens >= 0
    # A client that finds no subtype, or an error that is no text, cannot tell what happened.
    assert (end["subtype"] == "success") if end.type == "result" and end["ok"] else bool(end["error"])


@pytest.mark.requirement("wire.tools.a2a_local_call", "wire.tools.mcp_local_call", "wire.tools.passthrough")
async def test_call_names_handler_that_client_has_to_find(api: Api) -> None:
    by_kind: dict[str, Frame] = {}
    for script, tool in TOOLS.items():
        frames = await followed(api, script, tools=[tool])
        by_kind |= {frame["kind"]: frame for frame in frames if frame.type == "local_tool_call"}
    assert by_kind["local"]["name"] == "lookup" and by_kind["local"]["args"] == {"q": "one"}
    assert by_kind["a2a_local"]["agentCard"] == CARD and by_kind["a2a_local"]["args"] == {"message": "do it"}
    call = by_kind["mcp_local"]
    assert (call["mcpServer"], call["mcpToolName"], call["name"]) == ("files", "files_read", "files_read")
    assert call["mcpServerInfo"] == {"name": "f"}


@pytest.mark.requirement("wire.event.size")
async def test_largest_result_makes_no_line_that_go_client_cannot_read(api: Api) -> None:
    run = await api.start("lookup_size", tools=[local_tool()])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        # Each of these takes six bytes in JSON.
        assert (await api.answer(run, call["toolUseId"], result="\x01" * 2_000_000)).status == 200
        frames = await stream.rest()
    assert frames[-1]["text"] == "2000000"
    for frame in frames:
        READERS["go"](frame.raw)
