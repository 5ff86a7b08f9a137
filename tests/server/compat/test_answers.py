"""Answers outside the stream: typed clients decode them, and people see what those clients keep."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.json import decode

from ..kit import Api, Json, check_error, local_tool
from .readers import GoCatalog, GoError, GoSession

GO = {"User-Agent": "Go-http-client/1.1"}


@pytest.mark.requirement("wire.models.list", "wire.session.info")
async def test_client_with_static_types_decodes_catalog_and_session(api: Api) -> None:
    catalog = decode((await api.get("models")).body, type=GoCatalog)
    assert any(model.id == "scripted:hello" and model.provider == "scripted" for model in catalog.models)
    session = await api.session("seen", metadata={"team": "red"})
    await api.events(await api.send(session, "one"))
    info = decode((await api.get(f"agent-sessions/{session}")).body, type=GoSession)
    assert [message.role for message in info.messages] == ["user", "assistant"]
    assert info.status == "active" and info.metadata == {"team": "red"} and info.name


@pytest.mark.requirement("wire.http.error_body")
@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "shown"),
    [
        ("POST", "agent-runs", {"prompt": "x", "modelId": "nope"}, 400, "invalid_model", "nope"),
        ("POST", "agent-runs", {"prompt": "x", "metadata": {"bad key": "v"}}, 400, "invalid_request", "bad key"),
        (
            "POST",
            "agent-runs",
            {"prompt": "x", "tools": [{"kind": "mcp_local", "name": "s", "tools": [{"name": "s get-weather"}]}]},
            400,
            "invalid_request",
            "s get-weather",
        ),
        (
            "POST",
            "agent-runs",
            {"prompt": "x", "modelId": "scripted:hello", "tools": [{"kind": "mantyx_plugin", "name": "@no/such"}]},
            400,
            "invalid_plugin",
            "@no/such",
        ),
    ],
)
async def test_clients_that_drop_the_message_still_say_what_was_wrong(
    api: Api, method: str, path: str, body: Json, status: int, code: str, shown: str
) -> None:
    reply = await api.call(method, path, {"systemPrompt": "You help.", **body})
    check_error(reply, status, code)
    kept = decode(reply.body, type=GoError)
    assert shown in kept.hint and kept.code == code


@pytest.mark.requirement("wire.http.error_body")
@pytest.mark.parametrize("path", ["agent-runs/run_%E9", "agent-runs/nope", "agent-sessions/%00", "agent-runs/a%2Fb"])
async def test_ids_that_client_escapes_naively_are_unknown_and_nothing_worse(api: Api, path: str) -> None:
    check_error(await api.get(path), 404, "not_found")


@pytest.mark.requirement("wire.tools.local_output_schema")
async def test_the_model_is_told_what_a_local_tool_returns(api: Api) -> None:
    schema = {"type": "object", "properties": {"celsius": {"type": "number"}}}
    frames = await api.play("described", tools=[local_tool(outputSchema=schema)])
    assert frames[-1]["text"].startswith("Looks something up.") and "celsius" in frames[-1]["text"]
    frames = await api.play("described", tools=[local_tool(outputSchema={"type": "array"})])
    assert frames[-1]["text"] == "Looks something up."


NEWER: list[Json] = [
    {"supervisor": False},
    {"plan": False},
    {"plan": "off"},
    {"plan": {"mode": "off", "steps": ["one"]}},
    {"plan": {"planOnly": False}},
    {"planOnly": False},
    {"fallbackModelId": "scripted:seen"},
    {"attachments": []},
    {"prompt": None, "messages": [{"role": "user", "content": "hello", "attachments": []}]},
]


@pytest.mark.requirement("wire.http.optional_fields")
@pytest.mark.parametrize("newer", NEWER)
async def test_fields_of_newer_clients_do_no_harm(api: Api, newer: Json) -> None:
    assert (await api.play("seen", **newer))[-1]["text"] == "hello / 1"


DRY = {"planOnly": True, "steps": ["one"], "brief": "b"}


def written(body: Json) -> list[bytes]:
    """A body as programs send it, and as people do."""
    return [json.dumps(body, separators=(",", ":")).encode(), json.dumps(body, indent=2).encode()]


@pytest.mark.parametrize(
    "asked",
    [
        *({"plan": plan} for plan in ({"planOnly": True}, DRY, {"planOnly": "true"}, {"plan_only": 1}, "planOnly")),
        {"planOnly": True},
    ],
)
async def test_a_dry_run_is_refused_and_not_carried_out(api: Api, asked: Json) -> None:
    session = await api.session("seen")
    spec = {"modelId": "scripted:seen", **asked}
    bodies = {
        "agent-runs": {"prompt": "x", **spec},
        "agent-sessions": spec,
        f"agent-sessions/{session}/messages": {"prompt": "x", **asked},
        "agents": {"name": "dry", "spec": spec},
        "schedules": {"name": "dry", "cron": "0 9 * * *", "spec": {"prompt": "x", **spec}},
    }
    for path, body in bodies.items():
        for data in written(body):
            reply = await api.call("POST", path, data=data, headers={"Content-Type": "application/json"})
            check_error(reply, 400, "invalid_request")
            assert "asks for a dry run" in reply.json["message"]
    assert (await api.get("agent-runs")).json["runs"] == []


async def test_an_agent_is_not_changed_to_run_dry(api: Api) -> None:
    agent = {"name": "a", "spec": {"modelId": "scripted:seen"}}
    made = (await api.post("agents", agent)).json["id"]
    reply = await api.call("PUT", f"agents/{made}", {**agent, "spec": {"modelId": "scripted:seen", "plan": DRY}})
    check_error(reply, 400, "invalid_request")
    assert reply.json["message"].startswith("spec: plan: asks for a dry run")


async def test_a_fork_is_not_carried_out_as_a_dry_run(api: Api) -> None:
    run = await api.start("seen")
    await api.events(run)
    check_error(await api.post(f"agent-runs/{run}/fork", {"turn": 0, "plan": DRY}), 400, "invalid_request")


WITHOUT_EFFECT = [True, "auto", "required", {"mode": "auto"}, {"steps": ["one"]}, {"brief": "b"}, "sometimes"]


@pytest.mark.parametrize("plan", WITHOUT_EFFECT)
async def test_a_plan_beside_the_run_is_ignored_with_a_warning(api: Api, plan: object) -> None:
    session = await api.session("seen")
    spec: Json = {"modelId": "scripted:seen", "plan": plan}
    bodies: dict[str, Json] = {
        "agent-runs": {"prompt": "hello", **spec},
        f"agent-sessions/{session}/messages": {"prompt": "hello", "plan": plan},
        "agent-sessions": spec,
        "agents": {"name": "planned", "spec": spec},
    }
    for path, body in bodies.items():
        for data in written(body):
            reply = await api.call("POST", path, data=data, headers={"Content-Type": "application/json"})
            (warning,) = reply.json["warnings"]
            assert warning["path"].endswith("plan") and "checklist" in warning["message"]
            if "runId" in reply.json:
                assert (await api.events(reply.json["runId"]))[-1].type == "result"


async def test_off_is_no_plan_and_no_warning(api: Api) -> None:
    session = await api.session("seen")
    for plan in (None, False, "off", {"mode": "off", "steps": ["one"]}, {}):
        for path, body in (("agent-runs", {"modelId": "scripted:seen"}), (f"agent-sessions/{session}/messages", {})):
            reply = await api.post(path, {"prompt": "x", "plan": plan, **body})
            assert reply.status == 202 and "warnings" not in reply.json


async def test_the_one_fallback_of_newer_clients_is_tried(api: Api) -> None:
    spec = {"modelId": "scripted:fails_auth", "fallbackModelId": "scripted:seen"}
    run = await api.start("fails_auth", **spec)
    assert (await api.events(run))[-1]["text"] == "hello / 1"
    assert (await api.snapshot(run))["spec"]["modelFallbacks"] == ["scripted:seen"]
    session = await api.session("fails_auth", **spec)
    assert (await api.events(await api.send(session)))[-1]["text"] == "hello / 1"
    agent = (await api.post("agents", {"name": "a", "spec": spec})).json["id"]
    assert (await api.events((await api.post("agent-runs", {"agentId": agent, "prompt": "hello"})).json["runId"]))[-1][
        "text"
    ] == "hello / 1"
    both = {**spec, "prompt": "x", "modelFallbacks": ["scripted:hello"]}
    check_error(await api.post("agent-runs", both), 400, "invalid_request")


async def test_a_fork_may_name_the_one_fallback_of_newer_clients(api: Api) -> None:
    run = await api.start("seen", modelFallbacks=["scripted:hello"])
    await api.events(run)
    asked = {"turn": 0, "modelId": "scripted:fails_auth", "fallbackModelId": "scripted:seen"}
    fork = (await api.post(f"agent-runs/{run}/fork", asked)).json["runId"]
    assert (await api.events(fork))[-1].type == "result"
    assert (await api.snapshot(fork))["spec"]["modelFallbacks"] == ["scripted:seen"]


async def test_newer_clients_read_totals_and_dates_of_sessions(api: Api) -> None:
    made = [await api.session("seen", metadata={"n": str(number % 2)}) for number in range(5)]
    page = (await api.get("agent-sessions?limit=2&offset=1")).json
    assert [row["sessionId"] for row in page["sessions"]] == made[3:1:-1]
    assert (page["total"], page["limit"], page["offset"]) == (5, 2, 1)
    for row in page["sessions"]:
        assert (row["creationDate"], row["lastInteractionDate"]) == (row["createdAt"], row["lastUsedAt"])
    assert (await api.get("agent-sessions?metadata=n:0&limit=1")).json["total"] == 3
    assert (await api.get("agent-sessions?offset=9")).json["sessions"] == []
    check_error(await api.get("agent-sessions?offset=-1"), 400, "invalid_request")


async def test_newer_clients_replay_a_session_page_by_page(api: Api) -> None:
    session = await api.session("seen", systemPrompt="You help.")
    for number in range(3):
        await api.events(await api.send(session, f"{number}\n"))
    path = f"agent-sessions/{session}/events"
    whole = (await api.get(path)).json
    assert [(one["seq"], one["type"]) for one in whole["events"]] == [
        (seq, "user_message" if seq % 2 else "assistant_message") for seq in range(1, 7)
    ]
    assert [one["text"] for one in whole["events"][::2]] == ["0\n", "1\n", "2\n"]
    assert (whole["sessionId"], whole["total"], whole["nextBeforeSeq"], whole["truncated"]) == (session, 6, None, False)
    assert (await api.get(f"{path}?full=1&lastMessages=1")).json == whole
    seen, query = list[Json](), "lastMessages=4"
    while query:
        page = (await api.get(f"{path}?{query}")).json
        seen = page["events"] + seen
        assert page["truncated"] is (page["nextBeforeSeq"] is not None) and page["total"] == 6
        query = f"lastMessages=4&beforeSeq={page['nextBeforeSeq']}" if page["truncated"] else ""
    assert seen == whole["events"]
    check_error(await api.get(f"{path}?lastMessages=0"), 400, "invalid_request")


@pytest.mark.parametrize("path", ["eval-datasets", "eval-runs", "eval-runs/x/stream", "agent-runs/run_1/feedback"])
async def test_unsupported_feature_is_refused_in_words(api: Api, path: str) -> None:
    reply = await api.call("POST", path, {})
    check_error(reply, 404, "not_found")
    assert "This server" in reply.json["message"]


async def test_attachments_may_be_described_in_the_words_of_newer_clients(api: Api) -> None:
    sent = {"type": "input_file", "mimeType": "text/csv", "filename": "a.csv", "data": "YSxiCg=="}
    run = await api.start("attached", prompt="see", attachments=[sent])
    assert (await api.events(run))[-1]["text"] == "see: text/csv 4 bytes"
    stored = (await api.snapshot(run))["spec"]["attachments"][0]
    assert (stored["mediaType"], stored["name"], "mimeType" in stored) == ("text/csv", "a.csv", False)


async def asked(api: Api) -> tuple[str, str]:
    run = await api.start("lookup", tools=[local_tool()])
    async with api.stream(run) as stream:
        return run, (await stream.until("local_tool_call"))["toolUseId"]


@pytest.mark.requirement("wire.toolresult.empty_go", "wire.toolresult.validation")
async def test_only_the_go_client_may_leave_out_an_empty_result(api: Api) -> None:
    run, call = await asked(api)
    path = f"agent-runs/{run}/tool-results"
    check_error(await api.post(path, {"toolUseId": call}, headers={"User-Agent": "node"}), 400, "invalid_request")
    assert (await api.post(path, {"toolUseId": call}, headers=GO)).status == 200
    assert (await api.events(run))[-1]["text"] == "found "


@pytest.mark.requirement("wire.toolresult.oversize", "wire.toolresult.duplicate")
async def test_error_posted_after_an_oversized_result_is_too_late(api: Api) -> None:
    run, call = await asked(api)
    check_error(await api.answer(run, call, result="x" * 2_100_000), 400, "invalid_request")
    second = await api.answer(run, call, error="Local tool failed: invalid_request")
    assert (second.status, second.json["code"]) in ((404, "unknown_tool_use"), (409, "run_terminal"))
    assert (await api.events(run))[-1]["text"] == "found The client's result was too large to be taken."


@pytest.mark.requirement("wire.toolresult.validation")
async def test_extensions_of_newer_clients_do_no_harm(api: Api) -> None:
    run, call = await asked(api)
    assert (await api.answer(run, call, result="r", files=[])).status == 200
    assert (await api.events(run))[-1]["text"] == "found r"


@pytest.mark.requirement("wire.session.overrides", "wire.session.end")
@pytest.mark.parametrize("resent", [{}, {"tools": []}, {"tools": [local_tool()]}])
async def test_a_session_keeps_its_tools_however_the_client_resends_them(api: Api, resent: dict[str, Any]) -> None:
    session = await api.session("lookup", tools=[local_tool()])
    run = await api.send(session, **resent)
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        assert (await api.answer(run, call["toolUseId"], result="r")).status == 200
        assert (await stream.rest())[-1]["text"] == "found r"
    # Neither body nor content type, as the clients end a session.
    assert (await api.call("DELETE", f"agent-sessions/{session}")).status == 200
    check_error(await api.post(f"agent-sessions/{session}/messages", {"prompt": "x"}), 409, "session_ended")


@pytest.mark.requirement("wire.toolresult.duplicate", "wire.sse.replay_finished")
async def test_client_that_replays_finished_run_answers_its_calls_in_vain(api: Api) -> None:
    run, call = await asked(api)
    assert (await api.answer(run, call, result="first")).status == 200
    whole = [frame.raw for frame in await api.events(run)]
    check_error(await api.answer(run, call, result="again"), 409, "run_terminal")
    assert [frame.raw for frame in await api.events(run)] == whole
