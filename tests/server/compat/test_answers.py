"""Answers outside the stream: typed clients decode them, and people see what those clients keep."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.json import decode

from ..kit import Api, Json, check_error, local_tool
from .readers import GoCatalog, GoError, GoSession

GO = {"User-Agent": "Go-http-client/1.1"}


@pytest.mark.requirement("wire.models.list", "wire.session.info")
async def test_a_client_with_static_types_decodes_the_catalog_and_a_session(api: Api) -> None:
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
async def test_ids_that_a_client_escapes_naively_are_unknown_and_nothing_worse(api: Api, path: str) -> None:
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
    {"fallbackModelId": "scripted:seen"},
    {"attachments": []},
    {"prompt": None, "messages": [{"role": "user", "content": "hello", "attachments": []}]},
]


@pytest.mark.requirement("wire.http.optional_fields")
@pytest.mark.parametrize("newer", NEWER)
async def test_fields_of_newer_clients_do_no_harm(api: Api, newer: Json) -> None:
    assert (await api.play("seen", **newer))[-1]["text"] == "hello / 1"


async def test_a_dry_run_is_refused_and_not_carried_out(api: Api) -> None:
    reply = await api.post("agent-runs", {"prompt": "x", "modelId": "scripted:seen", "plan": True})
    check_error(reply, 400, "invalid_request")
    assert "plan: asks for a dry run" in reply.json["message"]


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
async def test_a_client_that_posts_an_error_after_an_oversized_result_is_too_late_and_the_run_goes_on(api: Api) -> None:
    run, call = await asked(api)
    check_error(await api.answer(run, call, result="x" * 2_100_000), 400, "invalid_request")
    second = await api.answer(run, call, error="Local tool failed: invalid_request")
    assert (second.status, second.json["code"]) in ((404, "unknown_tool_use"), (409, "run_terminal"))
    assert (await api.events(run))[-1]["text"] == "found The client's result was too large to be taken."


@pytest.mark.requirement("wire.toolresult.validation")
async def test_what_newer_clients_add_to_a_result_does_no_harm(api: Api) -> None:
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
async def test_a_client_that_replays_a_finished_run_answers_its_calls_in_vain(api: Api) -> None:
    run, call = await asked(api)
    assert (await api.answer(run, call, result="first")).status == 200
    whole = [frame.raw for frame in await api.events(run)]
    check_error(await api.answer(run, call, result="again"), 409, "run_terminal")
    assert [frame.raw for frame in await api.events(run)] == whole
