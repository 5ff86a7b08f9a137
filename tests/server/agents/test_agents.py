"""Stored agents: kept, changed, removed, and used by runs and sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import weftline_beside
from weftline.cli.reach import Reached
from weftline.testing import ServerProcess

from ..kit import Api, Json, check_error, local_tool, types


async def stored(api: Api, script: str = "inside", **fields: Any) -> Json:
    spec = {"systemPrompt": "You are stored.", "modelId": f"scripted:{script}", **fields.pop("spec", {})}
    reply = await api.post("agents", {"name": "Helper", "spec": spec, **fields})
    assert reply.status == 201, reply.body
    return reply.json


async def narrowed(api: Api, *agents: str) -> str:
    """A key that may use these agents alone."""
    reply = await api.post("api-keys", {"name": "narrow", "agentIds": agents})
    assert reply.status == 201, reply.body
    return reply.json["key"]


async def run_text(api: Api, body: Json, **options: Any) -> str:
    reply = await api.post("agent-runs", body, **options)
    assert reply.status == 202, reply.body
    await api.events(reply.json["runId"])
    return (await api.snapshot(reply.json["runId"]))["finalText"]


async def test_agent_is_stored_as_sent_until_replaced_or_removed(api: Api) -> None:
    made = await stored(
        api, description="Helps.", metadata={"team": "a"}, spec={"tools": [local_tool()], "reasoningLevel": "low"}
    )
    assert made["id"].startswith("agent_") and made["slug"] == "helper" and made["system"] is False
    assert made["spec"]["tools"] == [local_tool()] and made["metadata"] == {"team": "a"}
    path = f"agents/{made['id']}"
    assert (await api.get(path)).json == made == (await api.get("agents/helper")).json
    assert (await api.get("agents")).json == {"agents": [made], "nextCursor": None}
    body = {"name": "Other", "spec": {"systemPrompt": "New."}}
    changed = (await api.call("PUT", path, body)).json
    assert (changed["name"], changed["slug"], changed["spec"]) == ("Other", "helper", {"systemPrompt": "New."})
    assert changed["createdAt"] == made["createdAt"] and changed["updatedAt"] > made["updatedAt"]
    assert (await api.call("DELETE", path)).json == {"ok": True}
    check_error(await api.get(path), 404, "not_found")
    assert (await api.get("agents")).json == {"agents": [], "nextCursor": None}


async def test_second_agent_of_a_name_gets_its_own_slug(api: Api) -> None:
    assert [(await stored(api))["slug"] for _ in range(2)] == ["helper", "helper-2"]
    reply = await api.post("agents", {"name": "x", "slug": "helper", "spec": {}})
    check_error(reply, 409, "conflict")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "x"},
        {"name": "", "spec": {}},
        {"name": "x", "spec": []},
        {"name": "x", "spec": {}, "slug": "Not A Slug"},
        {"name": "x", "spec": {"prompt": "hi"}},
        {"name": "x", "spec": {"agentId": "agent_1"}},
        {"name": "x", "spec": {"tools": [{"kind": "nothing"}]}},
        {"name": "x", "spec": {"modelId": "scripted:none-such"}},
        {"name": "x", "spec": {}, "metadata": {"bad key": "v"}},
    ],
)
async def test_a_definition_that_no_run_could_have_is_refused(api: Api, body: Json) -> None:
    reply = await api.post("agents", body)
    assert reply.status == 400 and reply.json["code"] in ("invalid_request", "invalid_model"), reply.body
    assert (await api.get("agents")).json == {"agents": [], "nextCursor": None}


async def test_agents_of_another_workspace_are_not_there(api: Api, other_api: Api) -> None:
    made = await stored(api)
    for method in ("GET", "PUT", "DELETE"):
        body: Json | None = {"name": "x", "spec": {}} if method == "PUT" else None
        check_error(await other_api.call(method, f"agents/{made['id']}", body), 404, "not_found")


@pytest.mark.requirement("wire.spec.agent_id")
async def test_run_with_agent_has_its_prompt_model_and_reasoning(api: Api) -> None:
    agent = await stored(api, spec={"reasoningLevel": "medium"})
    text = await run_text(api, {"agentId": agent["id"], "systemPrompt": "ignored", "prompt": "hi"})
    assert text == "You are stored.||50"
    assert await run_text(api, {"agentId": agent["id"], "prompt": "hi", "reasoningLevel": 0}) == "You are stored.||0"


@pytest.mark.requirement("wire.spec.agent_id")
async def test_a_runs_own_model_and_tools_come_over_the_agents(api: Api) -> None:
    agent = await stored(api, "hello", spec={"tools": [local_tool("first"), local_tool("lookup", description="old")]})
    body = {
        "agentId": agent["id"],
        "modelId": "scripted:described",
        "tools": [local_tool("lookup", description="new")],
        "prompt": "hi",
    }
    assert await run_text(api, body) == "new"
    assert await run_text(api, {**body, "modelId": "scripted:inside"}) == "You are stored.|first,lookup|none"


@pytest.mark.requirement("wire.spec.agent_id")
async def test_guards_schema_and_metadata_apply_to_run_with_agent(api: Api) -> None:
    guarded = {"loopDetection": {"hardCutoffThreshold": 4}, "tools": [{"kind": "mantyx_plugin", "name": "echo"}]}
    agent = await stored(api, "echo_loop", metadata={"agents": "own"}, spec=guarded)
    schema = {"schema": {"type": "object"}}
    body = {"agentId": agent["id"], "prompt": "hi", "metadata": {"k": "v"}, "outputSchema": schema}
    run = (await api.post("agent-runs", body)).json["runId"]
    assert "loop_detected" in types(await api.events(run))
    snapshot = await api.snapshot(run)
    assert snapshot["metadata"] == {"k": "v"} and snapshot["spec"]["outputSchema"] == schema
    assert snapshot["spec"]["agentId"] == agent["id"] and snapshot["name"] == "Helper"


@pytest.mark.requirement("wire.auth.agent_allow_list")
async def test_narrowed_credentials_cannot_distinguish_foreign_agents(api: Api, other_api: Api) -> None:
    allowed, other, foreign = await stored(api), await stored(api), await stored(other_api)
    key = await narrowed(api, allowed["id"])
    refused: list[bytes] = []
    for agent in (other["id"], foreign["id"], "agent_none"):
        for path, body in (("agent-runs", {"prompt": "hi"}), ("agent-sessions", {})):
            reply = await api.post(path, {"agentId": agent, **body}, key=key)
            shown = check_error(reply, 403, "forbidden")
            refused.append(shown["message"])
    assert len(set(refused)) == 1
    assert (await api.post("agent-runs", {"agentId": allowed["id"], "prompt": "hi"}, key=key)).status == 202


@pytest.mark.requirement("wire.spec.agent_id", "wire.auth.agent_allow_list")
async def test_agent_is_named_by_slug_wherever_its_id_works(api: Api) -> None:
    agent, other = await stored(api), await stored(api)
    run = (await api.post("agent-runs", {"agentId": "helper", "prompt": "hi"})).json["runId"]
    session = (await api.post("agent-sessions", {"agentId": "helper"})).json["sessionId"]
    assert (await api.events(run))[-1]["text"] == "You are stored.||none"
    assert (await api.snapshot(run))["spec"]["agentId"] == agent["id"]
    for name in ("helper", agent["id"]):
        listed = (await api.get(f"agent-runs?agentId={name}")).json["runs"]
        assert [(one["runId"], one["agentId"]) for one in listed] == [(run, agent["id"])]
        listed = (await api.get(f"agent-sessions?agentId={name}")).json["sessions"]
        assert [(one["sessionId"], one["agentId"]) for one in listed] == [(session, agent["id"])]

    key = await narrowed(api, "helper")
    assert (await api.get("api-keys")).json["keys"][-1]["agentIds"] == [agent["id"]]
    assert (await api.post("agent-runs", {"agentId": "helper", "prompt": "hi"}, key=key)).status == 202
    assert (await api.post("agent-sessions", {"agentId": "helper"}, key=key)).status == 201
    assert (await api.get("agent-runs?agentId=helper-2", key=key)).json["runs"] == []
    refused = [
        check_error(await api.post("agent-runs", {"agentId": name, "prompt": "hi"}, key=key), 403, "forbidden")
        for name in ("helper-2", other["id"], "nobody")
    ]
    assert len({shown["message"] for shown in refused}) == 1
    changed = await api.call("PUT", "agents/helper-2", {"name": "Other", "spec": {}})
    assert changed.json["id"] == other["id"]
    assert (await api.call("DELETE", "agents/helper-2")).status == 200
    check_error(await api.get(f"agents/{other['id']}"), 404, "not_found")


async def test_agent_that_is_not_there_is_not_found_and_named(api: Api, other_api: Api) -> None:
    foreign = await stored(other_api)
    for agent in (foreign["id"], "agent_none"):
        for path, body in (("agent-runs", {"prompt": "hi"}), ("agent-sessions", {})):
            shown = check_error(await api.post(path, {"agentId": agent, **body}), 404, "not_found")
            assert shown["agentId"] == agent and repr(agent) in shown["message"]
        for method in ("GET", "PUT", "DELETE"):
            definition: Json | None = {"name": "x", "spec": {}} if method == "PUT" else None
            shown = check_error(await api.call(method, f"agents/{agent}", definition), 404, "not_found")
            assert shown["agentId"] == agent


@pytest.mark.requirement("wire.auth.agent_allow_list")
async def test_a_malformed_agent_id_is_a_bad_request(api: Api) -> None:
    for agent in ("no spaces please", "a/b", 7, ""):
        check_error(await api.post("agent-runs", {"agentId": agent, "prompt": "hi"}), 400, "invalid_request")


@pytest.mark.requirement("wire.auth.agent_allow_list")
async def test_a_system_agent_is_for_credentials_that_name_it(api: Api) -> None:
    agent = await stored(api, system=True)
    body = {"agentId": agent["id"], "prompt": "hi"}
    check_error(await api.post("agent-runs", body), 403, "forbidden")
    assert (await api.post("agent-runs", body, key=await narrowed(api, agent["id"]))).status == 202


async def test_a_narrowed_credential_sees_its_agents_and_changes_none(api: Api) -> None:
    agent, other = await stored(api), await stored(api)
    key = await narrowed(api, agent["id"])
    assert [one["id"] for one in (await api.get("agents", key=key)).json["agents"]] == [agent["id"]]
    check_error(await api.get(f"agents/{other['id']}", key=key), 404, "not_found")
    for method, path in (("POST", "agents"), ("PUT", f"agents/{agent['id']}"), ("DELETE", f"agents/{agent['id']}")):
        body: Json | None = {"name": "x", "spec": {}} if method != "DELETE" else None
        check_error(await api.call(method, path, body, key=key), 403, "forbidden")


async def test_a_session_keeps_the_definition_that_it_began_with(api: Api) -> None:
    agent = await stored(api)
    session = (await api.post("agent-sessions", {"agentId": agent["id"]})).json
    assert session["name"] == "Helper"
    await api.call("PUT", f"agents/{agent['id']}", {"name": "Helper", "spec": {"systemPrompt": "Changed."}})
    run = await api.send(session["sessionId"])
    await api.events(run)
    assert (await api.snapshot(run))["finalText"] == "You are stored.||none"
    await api.call("DELETE", f"agents/{agent['id']}")
    again = await api.send(session["sessionId"])
    await api.events(again)
    assert (await api.snapshot(again))["finalText"] == "You are stored.||none"


async def test_agent_session_is_closed_to_unauthorized_credentials(
    api: Api,
) -> None:
    agent, other = await stored(api), await stored(api)
    session = (await api.post("agent-sessions", {"agentId": agent["id"]})).json["sessionId"]
    key = await narrowed(api, other["id"])
    check_error(await api.post(f"agent-sessions/{session}/messages", {"prompt": "hi"}, key=key), 404, "not_found")


async def test_secret_headers_of_an_agents_tools_are_never_shown(api: Api) -> None:
    tool = {"kind": "mcp", "name": "files", "url": "http://127.0.0.1:9/mcp", "headers": {"X-Key": "hush-hush"}}
    agent = await stored(api, spec={"tools": [tool]})
    assert agent["spec"]["tools"][0]["headers"] == {"X-Key": "[redacted]"}
    run = (await api.post("agent-runs", {"agentId": agent["id"], "prompt": "hi"})).json["runId"]
    assert "hush-hush" not in json.dumps(await api.snapshot(run))
    await api.cancel(run)


async def test_agents_are_kept_by_command_too(api: Api, server: ServerProcess, tmp_path: Path) -> None:
    async def command(*arguments: str) -> str:
        done = await weftline_beside("agents", *arguments, "--workspace", api.slug, "--db", str(server.db))
        assert done.code == 0, done.err
        return done.out.strip()

    file = tmp_path / "agent.json"
    file.write_text(json.dumps({"name": "By hand", "spec": {"systemPrompt": "S", "modelId": "scripted:inside"}}))
    identity = await command("create", "--file", str(file))
    assert await command("list", "-q") == identity
    shown = json.loads(await command("show", "by-hand", "--json"))
    assert shown == (await api.get(f"agents/{identity}")).json
    assert await run_text(api, {"agentId": identity, "prompt": "hi"}) == "S||none"
    assert await command("delete", identity) == identity
    assert await command("list") == "" and await command("list", "--json") == "[]"


async def test_a_command_lists_agents_page_by_page(
    api: Api, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors: list[object] = []
    get = Reached.get

    def counted(self: Reached, path: str, **query: str | int | None) -> Any:
        cursors.append(query["cursor"])
        return get(self, path, **query)

    monkeypatch.setattr(Reached, "get", counted)
    made = [await stored(api, name=f"large {number}", spec={"systemPrompt": "x" * 900_000}) for number in range(6)]
    done = await weftline_beside("agents", "list", "--json", "--workspace", api.slug, "--db", str(server.db))
    assert json.loads(done.out) == made and done.out == json.dumps(made, indent=2) + "\n"
    assert len(cursors) == 2 and cursors[0] is None and cursors[1] is not None
