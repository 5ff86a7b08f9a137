"""Runs: created, read, refused, repeated."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from .kit import Api, Json, check_error, local_tool, of_type, types

KEYS = {
    "id",
    "runId",
    "sessionId",
    "status",
    "finalText",
    "error",
    "failureReason",
    "spec",
    "agentSpec",
    "metadata",
    "name",
    "createdAt",
    "startedAt",
    "finishedAt",
    "tokens",
    "turns",
    "model",
}
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
ID = re.compile(r"[A-Za-z0-9_-]+")


@pytest.mark.requirement("wire.run.create")
async def test_a_created_run_can_be_read_and_followed_at_once(api: Api) -> None:
    reply = await api.post("agent-runs", {"modelId": "scripted:stuck", "prompt": "hi"})
    assert reply.status == 202
    run = reply.json["runId"]
    assert reply.json == {"runId": run, "streamUrl": f"{api.base}/agent-runs/{run}/stream"}
    assert (await api.snapshot(run))["status"] in ("queued", "running")
    async with api.stream(run) as stream:
        assert await stream.until("assistant_delta")
    await api.cancel(run)


@pytest.mark.requirement("wire.run.create", "wire.sse.headers")
async def test_the_stream_that_create_names_is_the_runs_stream(api: Api) -> None:
    created = (await api.post("agent-runs", {"modelId": "scripted:hello", "prompt": "hi"})).json
    reply = await api.get(created["streamUrl"])
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["Cache-Control"] == "no-cache, no-transform"
    assert reply.headers["X-Accel-Buffering"] == "no"
    assert "Content-Encoding" not in reply.headers


async def test_files_of_a_result_reach_the_model(api: Api) -> None:
    run = await api.start("lookup_files", tools=[local_tool()])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        files = [{"filename": "note.txt", "mimeType": "text/plain", "data": "YWJj"}]
        reply = await api.answer(run, call["toolUseId"], result="two", files=files)
        assert reply.status == 200 and "warnings" not in reply.json
        assert (await stream.until("result"))["text"] == "two: text/plain 3 bytes"


@pytest.mark.requirement("wire.run.snapshot", "wire.http.naming")
async def test_a_snapshot_has_every_key_before_and_after_the_end(api: Api) -> None:
    run = await api.start("lookup", tools=[local_tool()], name="ask", metadata={"team": "a"})
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        live = await api.snapshot(run)
        await api.answer(run, call["toolUseId"], result="42")
        await stream.rest()
    ended = await api.snapshot(run)
    for shown in (live, ended):
        assert set(shown) >= KEYS
        assert shown["id"] == shown["runId"] == run and ID.fullmatch(run)
        assert shown["spec"] == shown["agentSpec"] and shown["spec"]["tools"] == [local_tool()]
        assert shown["metadata"] == {"team": "a"} and shown["name"] == "ask" and shown["sessionId"] is None
        assert ISO.fullmatch(shown["createdAt"]) and ISO.fullmatch(shown["startedAt"])
    assert live["status"] == "running" and live["finishedAt"] is None
    assert (live["tokens"], live["turns"], live["model"], live["finalText"]) == (None, None, None, None)
    assert ended["status"] == "succeeded" and ISO.fullmatch(ended["finishedAt"])
    assert ended["finalText"] == "found 42" and ended["error"] is None and ended["failureReason"] is None
    assert ended["turns"] == 2 and ended["model"]["id"] == "scripted:lookup"


@pytest.mark.requirement("wire.run.snapshot_terminal")
@pytest.mark.parametrize(
    ("script", "text", "reason"),
    [
        ("hello", "Hello wörld", None),
        ("cut", "so far so good", {"errorClass": "truncation", "finishReason": "max_tokens"}),
        ("fails_auth", None, {"errorClass": "auth", "finishReason": None}),
    ],
)
async def test_a_terminal_snapshot_says_what_the_terminal_event_said(
    api: Api, script: str, text: str | None, reason: Json | None
) -> None:
    run = await api.start(script)
    terminal = (await api.events(run))[-1]
    shown = await api.snapshot(run)
    assert shown["finalText"] == text
    assert shown["error"] == terminal.body.get("error")
    assert shown["failureReason"] == reason
    assert [shown[key] for key in ("tokens", "turns", "attempts", "model")] == [
        terminal[key] for key in ("tokens", "turns", "attempts", "model")
    ]


@pytest.mark.requirement("wire.http.optional_fields")
async def test_null_is_absent_and_unknown_fields_come_back_unchanged(api: Api) -> None:
    spec = {
        "modelId": "scripted:inside",
        "messages": None,
        "prompt": "hi",
        "systemPrompt": None,
        "reasoningLevel": None,
        "tools": None,
        "outputSchema": None,
        "loopDetection": None,
        "toolBudgets": None,
        "budgets": None,
        "metadata": None,
        "name": None,
        "agentId": None,
        "myOwn": {"deep": [1, 2.0, None]},
    }
    reply = await api.post("agent-runs", spec)
    assert reply.status == 202
    assert (await api.events(reply.json["runId"]))[-1]["text"] == "||none"
    shown = await api.snapshot(reply.json["runId"])
    assert shown["spec"] == spec and shown["name"] == "ephemeral" and shown["metadata"] == {}


@pytest.mark.requirement("wire.spec.system_prompt")
async def test_the_system_prompt_is_optional(api: Api) -> None:
    for prompt, seen in (("be kind", "be kind"), ("", ""), (None, "")):
        assert (await api.play("inside", systemPrompt=prompt))[-1]["text"] == f"{seen}||none"
    check_error(await api.post("agent-runs", {"prompt": "hi", "systemPrompt": 5}), 400, "invalid_request")


@pytest.mark.requirement("wire.spec.prompt_or_messages")
async def test_messages_reach_the_model_in_order(api: Api) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    assert (await api.play("seen", messages=messages))[-1]["text"] == "one | three / 3"


@pytest.mark.requirement("wire.spec.reasoning_level")
@pytest.mark.parametrize(
    ("level", "number"),
    [("off", 0), ("minimal", 15), ("low", 30), ("medium", 50), ("high", 80), (0, 0), (100, 100), (33.0, 33)],
)
async def test_reasoning_levels_reach_the_model_as_a_number(api: Api, level: Any, number: int) -> None:
    terminal = (await api.play("inside", reasoningLevel=level))[-1]
    assert terminal["text"] == f"||{number}"
    effort = "off" if number == 0 else "low" if number <= 35 else "medium" if number <= 65 else "high"
    assert terminal["model"]["reasoningEffort"] == effort


def a2a_with_headers(name: str, count: int, size: int) -> dict[str, Any]:
    headers = {f"X-{index}": "x" * size for index in range(count)}
    return {"kind": "a2a", "name": name, "agentCardUrl": "https://a.example", "headers": headers}


def mcp_with_header(value: object) -> Json:
    return {"kind": "mcp", "name": "s", "url": "https://x.test", "headers": {"X": value}}


def mcp_local(tools: int) -> Json:
    return {"kind": "mcp_local", "name": "s", "tools": [{"name": f"t{number}"} for number in range(tools)]}


BAD_SPECS: list[tuple[Json, str]] = [
    ({}, "prompt"),
    ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "b"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": ["b"]}]}, "messages[0].content"),
    ({"prompt": 7}, "prompt"),
    ({"prompt": "a", "reasoningLevel": True}, "reasoningLevel"),
    ({"prompt": "a", "reasoningLevel": 1.5}, "reasoningLevel"),
    ({"prompt": "a", "reasoningLevel": 101}, "reasoningLevel"),
    ({"prompt": "a", "reasoningLevel": "extreme"}, "reasoningLevel"),
    ({"prompt": "a", "outputSchema": {"schema": []}}, "outputSchema.schema"),
    ({"prompt": "a", "outputSchema": {"schema": {}, "name": "no good"}}, "outputSchema.name"),
    ({"prompt": "a", "outputSchema": {"schema": {"description": "x" * 33_000}}}, "outputSchema"),
    ({"prompt": "a", "loopDetection": True}, "loopDetection"),
    ({"prompt": "a", "loopDetection": {"consecutiveThreshold": 1}}, "loopDetection.consecutiveThreshold"),
    ({"prompt": "a", "loopDetection": {"consecutiveThreshold": 5, "hardCutoffThreshold": 5}}, "loopDetection"),
    ({"prompt": "a", "toolBudgets": {"t": {"maxCalls": -1}}}, "toolBudgets.t.maxCalls"),
    ({"prompt": "a", "toolBudgets": {f"t{i}": {"maxCalls": 1} for i in range(33)}}, "toolBudgets"),
    ({"prompt": "a", "budgets": {"maxToolTurns": -1}}, "budgets.maxToolTurns"),
    ({"prompt": "a", "budgets": {"maxToolTurns": 2.5}}, "budgets.maxToolTurns"),
    ({"prompt": "a", "budgets": {"maxToolTurnsExceeded": "explode"}}, "budgets.maxToolTurnsExceeded"),
    ({"prompt": "a", "budgets": {"onLocalToolTimeout": "shrug"}}, "budgets.onLocalToolTimeout"),
    ({"prompt": "a", "metadata": {"a b": "c"}}, "metadata.a b"),
    ({"prompt": "a", "metadata": {"a": 5}}, "metadata.a"),
    ({"prompt": "a", "metadata": {"a": "x" * 513}}, "metadata.a"),
    ({"prompt": "a", "metadata": {f"k{i}": "v" for i in range(17)}}, "metadata"),
    ({"prompt": "a", "tools": {}}, "tools"),
    ({"prompt": "a", "tools": [{"kind": "teapot", "name": "t"}]}, "tools[0].kind"),
    ({"prompt": "a", "tools": [{"name": "t"}]}, "tools[0].kind"),
    ({"prompt": "a", "tools": [local_tool("a"), local_tool("get-weather")]}, "tools[1].name"),
    ({"prompt": "a", "tools": [local_tool("a"), local_tool("a")]}, "tools[1].name"),
    ({"prompt": "a", "tools": [{"kind": "mcp_local", "name": "s", "tools": []}]}, "tools[0].tools"),
    ({"prompt": "a", "tools": [{"kind": "a2a_local", "name": "p", "agentCard": {}}]}, "tools[0].agentCard"),
    ({"prompt": "a", "tools": [{"kind": "a2a", "name": "p"}]}, "tools[0].agentCardUrl"),
    ({"prompt": "a", "tools": [{"kind": "mcp", "name": "s", "url": "ftp://x"}]}, "tools[0].url"),
    ({"prompt": "a", "tools": [mcp_with_header(7)]}, "tools[0].headers.X"),
    ({"prompt": "a", "tools": [mcp_with_header("x" * 8193)]}, "tools[0].headers.X"),
    ({"prompt": "a", "tools": [a2a_with_headers(f"t{i}", 8, 8000) for i in range(5)]}, "tools"),
    ({"prompt": "a", "tools": [mcp_local(65)]}, "tools[0].tools"),
    ({"prompt": "a", "tools": [local_tool("t0"), mcp_local(1)]}, "tools[1].tools[0].name"),
    ({"prompt": "a", "loopDetection": {"hardCutoffThreshold": 101}}, "loopDetection.hardCutoffThreshold"),
    ({"prompt": "a", "toolBudgets": {"t": {"maxCalls": 1001}}}, "toolBudgets.t.maxCalls"),
    ({"prompt": "a", "toolBudgets": {"t": {"maxCalls": "3"}}}, "toolBudgets.t.maxCalls"),
    ({"prompt": "a", "metadata": {f"k{i}": "ü" * 512 for i in range(16)}}, "metadata"),
    ({"prompt": "a", "agentId": "no such/id"}, "agentId"),
    ({"prompt": "a", "modelId": ""}, "modelId"),
]


@pytest.mark.requirement(
    "wire.spec.prompt_or_messages",
    "wire.spec.reasoning_level",
    "wire.spec.output_schema",
    "wire.spec.loop_detection_limits",
    "wire.spec.tool_budgets_limits",
    "wire.spec.max_tool_turns",
    "wire.spec.metadata_limits",
    "wire.tools.ref_validation",
    "wire.tools.names",
    "wire.run.rejected",
)
async def test_spec_that_breaks_a_rule_is_refused_with_its_field(api: Api) -> None:
    first = await api.start("hello")

    async def refused(spec: Json, field: str) -> None:
        body = check_error(await api.post("agent-runs", {"modelId": "scripted:hello", **spec}), 400, "invalid_request")
        assert body["message"].startswith(f"{field}: "), (spec, body["message"])
        assert field in [issue["path"] for issue in body["issues"]]

    await asyncio.gather(*(refused(spec, field) for spec, field in BAD_SPECS))
    # Run ids count up: nothing lies between the run before and the run after.
    second = await api.start("hello")
    assert int(second[4:-12], 16) == int(first[4:-12], 16) + 1


async def test_server_tools_are_named_bare_and_must_be_installed(api: Api) -> None:
    frames = await api.play("echo", tools=[{"kind": "mantyx_plugin", "name": "echo"}])
    assert frames[-1]["text"] == "heard echo said"
    for name in ("web_search", "@acme/web_search"):
        spec = {"prompt": "a", "tools": [{"kind": "mantyx_plugin", "name": name}]}
        body = check_error(await api.post("agent-runs", {"modelId": "scripted:hello", **spec}), 400, "invalid_plugin")
        assert name in body["message"]


async def test_a_repeated_create_with_one_idempotency_key_makes_one_run(api: Api) -> None:
    spec = {"modelId": "scripted:hello", "prompt": "once"}
    headers = {"Idempotency-Key": "order-1"}
    replies = await asyncio.gather(*(api.post("agent-runs", spec, headers=headers) for _ in range(8)))
    assert {reply.status for reply in replies} == {202}
    assert len({reply.json["runId"] for reply in replies}) == 1
    assert (await api.post("agent-runs", spec, headers=headers)).json["runId"] == replies[0].json["runId"]
    other = await api.post("agent-runs", {**spec, "prompt": "twice"}, headers=headers)
    check_error(other, 409, "idempotency_conflict")
    for key in ("", "x" * 256):
        check_error(await api.post("agent-runs", spec, headers={"Idempotency-Key": key}), 400, "invalid_request")


async def test_repeated_create_finds_its_run_though_its_agent_was_deleted(api: Api) -> None:
    agent = (await api.post("agents", {"name": "Fleeting", "spec": {"modelId": "scripted:hello"}})).json["id"]
    spec, headers = {"agentId": agent, "prompt": "once"}, {"Idempotency-Key": "of an agent"}
    first = await api.post("agent-runs", spec, headers=headers)
    assert (await api.call("DELETE", f"agents/{agent}")).status == 200
    again = await api.post("agent-runs", spec, headers=headers)
    assert (again.status, again.json) == (202, first.json)
    check_error(await api.post("agent-runs", spec), 404, "not_found")
    check_error(await api.post("agent-runs", {**spec, "prompt": "two"}, headers=headers), 409, "idempotency_conflict")


async def test_create_during_commit_of_its_twin_does_not_stall(api: Api) -> None:
    spec = {"modelId": "scripted:hello", "prompt": "once"}

    async def repeat(key: str) -> int:
        headers = {"Idempotency-Key": key}
        replies = await asyncio.gather(*(api.post("agent-runs", spec, headers=headers) for _ in range(8)))
        return len({reply.json["runId"] for reply in replies})

    assert [await repeat(f"key-{number}") for number in range(80)] == [1] * 80


async def test_the_idempotency_keys_of_two_workspaces_do_not_meet(api: Api, other_api: Api) -> None:
    spec, headers = {"modelId": "scripted:hello", "prompt": "x"}, {"Idempotency-Key": "same"}
    ours, theirs = [(await one.post("agent-runs", spec, headers=headers)).json["runId"] for one in (api, other_api)]
    assert ours != theirs


@pytest.mark.requirement("wire.spec.output_schema")
async def test_output_schema_is_stored_verbatim_and_its_answer_is_text(api: Api) -> None:
    schema: Json = {"name": "num", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "x-own": 1.0}}
    run = await api.start("json_answer", outputSchema=schema)
    assert (await api.events(run))[-1]["text"] == '{"n": 4}'
    assert (await api.snapshot(run))["spec"]["outputSchema"] == schema


async def test_answer_that_never_fits_output_schema_fails_with_its_text(api: Api) -> None:
    frames = await api.play("hello", outputSchema={"schema": {"type": "object"}})
    assert types(frames) == ["started", "assistant_message", "output_rejected", "assistant_message", "error"]
    assert frames[-1]["code"] == "invalid_output" and frames[-1]["partialText"] == "Hello wörld"
    assert of_type(frames, "assistant_message")[1]["turn"] == 1
