"""A slip in a field's name is told in the answer and in the log, or refused on request."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from weftline.testing import ServerProcess

from ..kit import Api, Json, check_error, local_tool, logged

SLIPS = {"modelid": "scripted:hello", "system_prompt": "Be brief.", "max_tokens": 3}
STRICT = {"Prefer": 'respond-async, handling="strict"'}


def paths(body: Json) -> list[str]:
    return [warning["path"] for warning in body["warnings"]]


async def test_unknown_fields_of_a_run_are_named_in_the_202(api: Api, server: ServerProcess) -> None:
    reply = await api.post("agent-runs", {"modelId": "scripted:hello", "prompt": "hi", **SLIPS})
    assert reply.status == 202
    assert reply.json["warnings"] == [
        {
            "code": "unknown_field",
            "path": path,
            "message": f"is not a known field and was ignored; did you mean {nearest}?",
            "nearest": nearest,
        }
        for path, nearest in [
            ("modelid", "modelId"),
            ("system_prompt", "systemPrompt"),
            ("max_tokens", "maxOutputTokens"),
        ]
    ]
    assert (await api.snapshot(reply.json["runId"]))["spec"]["modelid"] == "scripted:hello"
    (line,) = await logged(server, "modelid (modelId?)", reply.headers["X-Request-Id"])
    assert "\n" not in line.strip()


async def test_a_request_without_slips_gets_no_warnings(api: Api) -> None:
    reply = await api.post("agent-runs", {"modelId": "scripted:hello", "prompt": "hi", "tools": []})
    assert "warnings" not in reply.json


async def test_sessions_messages_agents_tools_and_results_warn_too(api: Api) -> None:
    session = await api.post("agent-sessions", {"modelId": "scripted:hello", "systemprompt": "x"})
    assert (session.status, paths(session.json)) == (201, ["systemprompt"])
    message = await api.post(f"agent-sessions/{session.json['sessionId']}/messages", {"prompt": "x", "modelId": "y"})
    assert (message.status, paths(message.json)) == (202, ["modelId"])

    agent: Json = {"name": "a", "spec": {"modelId": "scripted:hello", "tols": []}}
    stored = await api.post("agents", agent)
    assert (stored.status, paths(stored.json)) == (201, ["spec.tols"])
    replaced = await api.call("PUT", f"agents/{stored.json['id']}", {**agent, "descripton": "x"})
    assert (replaced.status, paths(replaced.json)) == (200, ["descripton", "spec.tols"])
    assert "warnings" not in (await api.get(f"agents/{stored.json['id']}")).json

    tool = await api.post("tools", {"name": "t", "url": "https://example.com", "timeout": 3})
    assert (tool.status, paths(tool.json)) == (201, ["timeout"])
    changed = await api.call("PATCH", f"tools/{tool.json['id']}", {"descr": "x"})
    assert (changed.status, paths(changed.json)) == (200, ["descr"])

    run = await api.start("lookup", tools=[local_tool()])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        answer = await api.answer(run, call["toolUseId"], result="r", results="s")
    assert (answer.status, paths(answer.json)) == (200, ["results"])


async def test_a_client_can_ask_for_errors_instead(api: Api) -> None:
    body = {"modelId": "scripted:hello", "prompt": "hi", **SLIPS}
    refused = check_error(await api.post("agent-runs", body, headers=STRICT), 400, "invalid_request")
    assert refused["issues"][0] == {"path": "modelid", "message": "is not a known field; did you mean modelId?"}
    assert len(refused["issues"]) == 3
    assert (await api.get("agent-runs")).json["runs"] == []
    lenient = await api.post("agent-runs", body, headers={"Prefer": "handling=lenient"})
    assert lenient.status == 202
    good = await api.post("agent-runs", {"modelId": "scripted:hello", "prompt": "hi"}, headers=STRICT)
    assert good.status == 202


async def test_the_operator_can_have_them_refused_for_everybody(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    scripts = {"hello": {"turns": [{"text": "hi"}]}}
    body = {"modelId": "scripted:hello", "prompt": "hi"}
    with ServerProcess(tmp_path, scripts=scripts, config='[server]\nunknown_fields = "refuse"\n') as server:
        api = Api(http, server.url, "acme", server.create_key("acme"))
        assert (await api.post("agent-runs", body)).status == 202
        refused = await api.post("agent-runs", {**body, "tols": []}, headers={"Prefer": "handling=lenient"})
        assert check_error(refused, 400, "invalid_request")["issues"][0]["path"] == "tols"
        session = await api.post("agent-sessions", {"modelId": "scripted:hello", "tols": []})
        check_error(session, 400, "invalid_request")


async def test_a_refusal_names_the_slip_that_may_be_its_cause(api: Api) -> None:
    refused: list[tuple[str, Json, str, str, str]] = [
        ("agent-runs", {"modelId": "scripted:hello", "promt": "hi"}, "invalid_request", "promt", "prompt"),
        ("agent-runs", {"modelID": "scripted:hello", "prompt": "hi"}, "invalid_model", "modelID", "modelId"),
        ("agent-sessions", {"model": "scripted:hello"}, "invalid_model", "model", "modelId"),
        (
            "agent-runs",
            {"modelId": "scripted:hello", "prompt": "hi", "attachments": [{"base64": "aGk="}]},
            "invalid_request",
            "attachments[0].base64",
            "data",
        ),
        ("agents", {"nmae": "a", "spec": {}}, "invalid_request", "nmae", "name"),
        ("tools", {"name": "t", "uri": "https://example.com"}, "invalid_request", "uri", "url"),
        ("webhooks", {"urls": "https://example.com"}, "invalid_request", "urls", "url"),
    ]
    for path, body, code, slip, meant in refused:
        shown = check_error(await api.post(path, body), 400, code)
        assert shown["message"].endswith(f" Did you mean {meant} instead of {slip}?"), shown
        assert {"path": slip, "message": f"is not a known field; did you mean {meant}?"} in shown["issues"]

    run = await api.start("lookup", tools=[local_tool()])
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
    shown = check_error(
        await api.post(f"agent-runs/{run}/tool-results", {"toolUseID": call["toolUseId"], "result": "r"}),
        400,
        "invalid_request",
    )
    assert "Did you mean toolUseId instead of toolUseID?" in shown["message"]
    await api.cancel(run)
