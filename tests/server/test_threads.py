"""Threads over HTTP: created, listed, read and terminated; their values and environment values."""

from __future__ import annotations

from uuid import UUID

import pytest

from .kit import Api, check_error

SCRIPTED = {"name": "Greeter", "spec": {"modelId": "scripted:hello"}}


@pytest.fixture
async def agent(api: Api) -> str:
    return (await api.post("agents", SCRIPTED)).json["id"]


async def test_thread_is_created_with_tags_values_and_env(api: Api, agent: str) -> None:
    given = {"agentId": agent, "userId": "ann", "tags": ["vip"], "values": {"n": [1, None]}, "env": {"KEY": "k"}}
    made = await api.post("threads", given)
    assert made.status == 201, made.body
    thread = made.json
    assert UUID(thread["id"]).version == 4
    assert (thread["agentId"], thread["userId"], thread["tags"], thread["status"]) == (agent, "ann", ["vip"], "active")
    assert (thread["parentId"], thread["depth"], thread["terminatedAt"]) == (None, 0, None)
    assert (await api.get(f"threads/{thread['id']}/values/n")).json == {"key": "n", "value": [1, None]}
    [env] = (await api.get(f"threads/{thread['id']}/env")).json["env"]
    assert (env["name"], env["type"]) == ("KEY", "secret") and "value" not in env


async def test_session_is_a_thread_under_either_id(api: Api, agent: str) -> None:
    session = (await api.post("agent-sessions", {"agentId": agent})).json["sessionId"]
    thread = (await api.get(f"threads/{session}")).json
    assert thread["sessionId"] == session
    assert (await api.get(f"threads/{thread['id']}")).json == thread
    assert (await api.get(f"agent-sessions/{thread['id']}")).json["id"] == session
    assert (await api.call("PUT", f"threads/{session}/values/a", {"value": 1})).status == 200
    run = await api.send(thread["id"])
    await api.events(run)
    assert [one["id"] for one in (await api.get("threads")).json["threads"]] == [thread["id"]]


async def test_repeated_create_gives_the_same_thread(api: Api, agent: str) -> None:
    given, once = {"agentId": agent, "values": {"a": 1}}, {"Idempotency-Key": "t-1"}
    first = await api.post("threads", given, headers=once)
    assert (await api.post("threads", given, headers=once)).json["id"] == first.json["id"]
    other = await api.post("threads", {**given, "values": {"a": 2}}, headers=once)
    check_error(other, 409, "idempotency_conflict")


async def test_threads_are_listed_by_agent_user_tag_and_status(api: Api, agent: str) -> None:
    other = (await api.post("agents", {**SCRIPTED, "name": "Other"})).json["id"]
    made = [
        (await api.post("threads", {"agentId": named, "userId": user, "tags": tags})).json["id"]
        for named, user, tags in ((agent, "ann", ["a"]), (agent, "bob", ["b"]), (other, "ann", ["a", "b"]))
    ]
    assert (await api.call("DELETE", f"threads/{made[0]}")).status == 200

    async def listed(query: str) -> list[int]:
        return [made.index(one["id"]) for one in (await api.get(f"threads?{query}")).json["threads"]]

    assert await listed("") == [2, 1, 0]
    assert await listed(f"agentId={agent}") == [1, 0]
    assert await listed("userId=ann") == [2, 0]
    assert await listed("tag=b") == [2, 1]
    assert await listed("status=terminated") == [0]
    assert await listed("status=active&userId=ann") == [2]
    page = (await api.get("threads?limit=2")).json
    following = (await api.get(f"threads?limit=2&cursor={page['nextCursor']}")).json
    assert [one["id"] for one in page["threads"] + following["threads"]] == made[::-1]
    assert following["nextCursor"] is None


async def test_values_of_two_threads_are_apart(api: Api, agent: str) -> None:
    one, other = [(await api.post("threads", {"agentId": agent, "userId": "ann"})).json["id"] for _ in range(2)]
    await api.call("PUT", f"threads/{one}/values/a", {"value": {"deep": True}})
    await api.call("PUT", f"threads/{one}/env/A", {"value": "x", "type": "text"})
    assert (await api.get(f"threads/{one}/values")).json["values"] == [{"key": "a", "value": {"deep": True}}]
    assert (await api.get(f"threads/{other}/values")).json["values"] == []
    assert (await api.get(f"threads/{other}/env")).json["env"] == []
    check_error(await api.get(f"threads/{other}/values/a"), 404, "not_found")


async def test_account_and_workspace_env_are_set_listed_and_removed(api: Api, agent: str) -> None:
    for path in ("accounts/ann/env", "env"):
        put = await api.call("PUT", f"{path}/REGION", {"value": "eu", "type": "text"})
        assert (put.status, put.json["value"], put.json["type"]) == (200, "eu", "text")
        secret = await api.call("PUT", f"{path}/TOKEN", {"value": "t0p"})
        assert secret.json["type"] == "secret" and "value" not in secret.json
        again = await api.call("PUT", f"{path}/REGION", {"value": ""})
        assert (again.json["type"], again.json["value"]) == ("text", "")
        listed = (await api.get(path)).json["env"]
        assert [(one["name"], one["type"]) for one in listed] == [("REGION", "text"), ("TOKEN", "secret")]
        assert b"t0p" not in (await api.get(path)).body
        assert (await api.call("DELETE", f"{path}/TOKEN")).status == 200
        check_error(await api.call("DELETE", f"{path}/TOKEN"), 404, "not_found")


async def test_thread_of_another_workspace_is_unknown(api: Api, other_api: Api, agent: str) -> None:
    thread = (await api.post("threads", {"agentId": agent})).json
    for id in (thread["id"], thread["sessionId"], "9f3c1f8e-0000-4000-8000-000000000000", "nonsense"):
        for path in ("", "/values", "/env", "/values/a"):
            check_error(await other_api.get(f"threads/{id}{path}"), 404, "not_found")
        check_error(await other_api.call("DELETE", f"threads/{id}"), 404, "not_found")


async def test_terminated_thread_takes_nothing_and_stays_readable(api: Api, agent: str) -> None:
    thread = (await api.post("threads", {"agentId": agent, "values": {"a": 1}, "env": {"A": "x"}})).json["id"]
    assert (await api.call("DELETE", f"threads/{thread}")).status == 200
    ended = (await api.get(f"threads/{thread}")).json
    assert ended["status"] == "terminated" and ended["terminatedAt"]
    assert (await api.call("DELETE", f"threads/{thread}")).status == 200
    assert (await api.get(f"threads/{thread}")).json["terminatedAt"] == ended["terminatedAt"]
    assert (await api.get(f"threads/{thread}/values/a")).json["value"] == 1
    for reply in (
        await api.call("PUT", f"threads/{thread}/values/a", {"value": 2}),
        await api.call("DELETE", f"threads/{thread}/values/a"),
        await api.call("PUT", f"threads/{thread}/env/A", {"value": "y"}),
        await api.call("DELETE", f"threads/{thread}/env/A"),
    ):
        check_error(reply, 409, "thread_ended")


async def test_too_much_is_refused_and_changes_nothing(api: Api, agent: str) -> None:
    thread = (await api.post("threads", {"agentId": agent})).json["id"]
    large = await api.call("PUT", f"threads/{thread}/values/a", {"value": "x" * (1024 * 1024)})
    check_error(large, 413, "quota_exceeded")
    check_error(await api.call("PUT", f"threads/{thread}/values/{'k' * 257}", {"value": 1}), 400, "invalid_request")
    check_error(await api.call("PUT", f"threads/{thread}/env/A%3DB", {"value": "1"}), 400, "invalid_request")
    refused = await api.post("threads", {"agentId": agent, "values": {"a": "x" * (1024 * 1024)}})
    check_error(refused, 413, "quota_exceeded")
    assert (await api.get(f"threads/{thread}/values")).json["values"] == []
    assert len((await api.get("threads")).json["threads"]) == 1


async def test_what_a_thread_is_created_from_is_checked(api: Api, agent: str) -> None:
    check_error(await api.post("threads", {}), 400, "invalid_request")
    check_error(await api.post("threads", {"agentId": "nobody"}), 404, "not_found")
    check_error(await api.post("threads", {"agentId": agent, "tags": [""]}), 400, "invalid_request")
    check_error(await api.post("threads", {"agentId": agent, "env": {"": "x"}}), 400, "invalid_request")
    unknown = await api.post("threads", {"agentId": agent, "colour": "red"})
    assert unknown.status == 201 and unknown.json["warnings"][0]["path"] == "colour", unknown.body


async def test_fork_has_a_copy_of_values_and_text_variables(api: Api, agent: str) -> None:
    thread = (await api.post("threads", {"agentId": agent, "values": {"a": [1]}, "env": {"SECRET": "s"}})).json["id"]
    await api.call("PUT", f"threads/{thread}/env/TEXT", {"value": "t", "type": "text"})
    run = await api.send(thread)
    await api.events(run)
    fork = (await api.post(f"agent-runs/{run}/fork", {"turn": 0})).json
    await api.events(fork["runId"])
    copy = (await api.snapshot(fork["runId"]))["sessionId"]
    assert (await api.get(f"threads/{copy}/values")).json["values"] == [{"key": "a", "value": [1]}]
    assert [(one["name"], one["value"]) for one in (await api.get(f"threads/{copy}/env")).json["env"]] == [
        ("TEXT", "t")
    ]
    await api.call("PUT", f"threads/{copy}/values/a", {"value": 2})
    assert (await api.get(f"threads/{thread}/values/a")).json["value"] == [1]
