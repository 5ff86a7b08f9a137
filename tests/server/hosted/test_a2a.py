"""Agents for A2A callers: raw JSON-RPC first, then the official client."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from a2a.client import ClientConfig, create_client
from a2a.types.a2a_pb2 import CancelTaskRequest, GetTaskRequest, Message, Part, Role, SendMessageRequest, TaskState

from ..kit import TIMEOUT_S, Api, Json, Reply, check_error


async def stored(api: Api, script: str = "seen", **fields: Any) -> Json:
    reply = await api.post("agents", {"name": "Helper", "spec": {"modelId": f"scripted:{script}"}, **fields})
    assert reply.status == 201, reply.body
    return reply.json


def message(text: str = "hello", **fields: Any) -> Json:
    parts = [{"kind": "text", "text": text}]
    return {"message": {"kind": "message", "role": "user", "messageId": "m1", "parts": parts, **fields}}


def path(api: Api, slug: str = "helper") -> str:
    return f"/api/a2a/{api.slug}/agents/{slug}"


async def rpc(api: Api, method: str, params: Any, *, slug: str = "helper", id: Any = "r1") -> Json:
    reply = await api.post(path(api, slug), {"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    assert reply.status == 200, reply.body
    body: Json = reply.json
    assert body["jsonrpc"] == "2.0" and body["id"] == id
    return body


async def frames(api: Api, method: str, params: Any) -> list[Json]:
    body = {"jsonrpc": "2.0", "id": 5, "method": method, "params": params}
    reply = await api.post(path(api), body)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    events = [json.loads(part[6:]) for part in reply.body.decode().split("\n\n") if part.startswith("data: ")]
    assert all(event["id"] == 5 for event in events)
    return [event["result"] for event in events]


async def key_of(api: Api, usage: str, *agents: str) -> str:
    reply = await api.post("api-keys", {"name": "k", "usage": usage, "agentIds": agents or None})
    assert reply.status == 201, reply.body
    return reply.json["key"]


@pytest.mark.requirement("wire.a2a.send")
async def test_message_runs_the_agent_and_answers_under_its_id(api: Api) -> None:
    await stored(api, "counted")
    for identity in ("r1", 7, None):
        body = await rpc(api, "message/send", message(), id=identity)
        result = body["result"]
        assert (result["kind"], result["role"], result["parts"]) == (
            "message",
            "agent",
            [{"kind": "text", "text": "ok"}],
        )
        usage = result["metadata"]["mantyx"]
        assert usage["turns"] == 2 and usage["tokens"]["inputTokens"] == 250
        assert usage["model"]["id"] == "scripted:counted"
    snapshot = await api.snapshot(result["taskId"])
    assert snapshot["status"] == "succeeded" and snapshot["spec"]["agentId"].startswith("agent_")


@pytest.mark.requirement("wire.a2a.send")
async def test_text_parts_of_either_spelling_are_joined(api: Api) -> None:
    await stored(api)
    parts: list[Json] = [{"kind": "text", "text": "one"}, {"kind": "data", "data": {}}, {"type": "text", "text": "two"}]
    body = await rpc(api, "message/send", message(parts=parts))
    assert body["result"]["parts"][0]["text"] == "one\ntwo / 1"


@pytest.mark.requirement("wire.a2a.context")
async def test_messages_of_one_context_continue_one_session(api: Api) -> None:
    agent = await stored(api)
    texts: list[str] = []
    for text in ("one", "two"):
        result = (await rpc(api, "message/send", message(text, contextId="ctx-1")))["result"]
        assert result["contextId"] == "ctx-1"
        texts.append(result["parts"][0]["text"])
    assert texts == ["one / 1", "one | two / 3"]
    listed = (await api.get("agent-sessions?metadata=a2a_context_id:ctx-1")).json["sessions"]
    assert len(listed) == 1 and listed[0]["agentId"] == agent["id"]
    assert listed[0]["metadata"] == {"a2a_context_id": "ctx-1"}


@pytest.mark.requirement("wire.a2a.context")
async def test_same_context_of_another_agent_or_workspace_is_another_session(api: Api, other_api: Api) -> None:
    await stored(api)
    await stored(api, name="Second")
    await stored(other_api)
    await rpc(api, "message/send", message("mine", contextId="c"))
    for where, slug in ((api, "second"), (other_api, "helper")):
        result = (await rpc(where, "message/send", message("new", contextId="c"), slug=slug))["result"]
        assert result["parts"][0]["text"] == "new / 1"


@pytest.mark.requirement("wire.a2a.context")
async def test_message_without_context_begins_one_that_can_be_continued(api: Api) -> None:
    await stored(api)
    first = (await rpc(api, "message/send", message("one")))["result"]
    second = (await rpc(api, "message/send", message("two", contextId=first["contextId"])))["result"]
    assert "one" in second["parts"][0]["text"] and second["contextId"] == first["contextId"]


@pytest.mark.requirement("wire.a2a.tasks")
async def test_streamed_message_brings_its_text_and_final_state(api: Api) -> None:
    await stored(api, "hello")
    task, *changes, last = await frames(api, "message/stream", message())
    assert task["kind"] == "task" and task["status"]["state"] in ("submitted", "working")
    updates = changes if task["status"]["state"] == "working" else changes[1:]
    assert [update["kind"] for update in updates] == ["artifact-update"] * 4
    assert [update["artifact"]["parts"][0]["text"] for update in updates] == ["Hel", "lo ", "wörld", ""]
    assert [update["append"] for update in updates] == [False, True, True, True]
    assert [update["lastChunk"] for update in updates] == [False, False, False, True]
    assert (last["kind"], last["final"], last["status"]["state"]) == ("status-update", True, "completed")
    assert last["status"]["message"]["parts"][0]["text"] == "Hello wörld"
    assert last["metadata"]["mantyx"]["turns"] == 1
    assert (await frames(api, "tasks/resubscribe", {"id": task["id"]}))[-1] == last


@pytest.mark.requirement("wire.a2a.tasks")
async def test_a_retried_turn_of_a_stream_begins_its_text_anew(api: Api) -> None:
    await stored(api, "flaky")
    updates = [one for one in await frames(api, "message/stream", message()) if one["kind"] == "artifact-update"]
    text = ""
    for update in updates:
        piece = update["artifact"]["parts"][0]["text"]
        text = text + piece if update["append"] else piece
    assert text == "whole answer"


@pytest.mark.requirement("wire.a2a.tasks")
async def test_a_task_can_be_asked_for_and_cancelled(api: Api) -> None:
    await stored(api, "stuck")
    task = (await rpc(api, "message/send", {**message(), "configuration": {"blocking": False}}))["result"]
    assert task["kind"] == "task" and task["status"]["state"] in ("submitted", "working")
    async with api.stream(task["id"]) as stream:
        await stream.until("assistant_delta")
    assert (await rpc(api, "tasks/get", {"id": task["id"]}))["result"]["status"]["state"] == "working"
    cancelled = (await rpc(api, "tasks/cancel", {"id": task["id"]}))["result"]
    assert cancelled["status"]["state"] == "canceled" and cancelled["id"] == task["id"]
    assert (await api.snapshot(task["id"]))["status"] == "cancelled"
    assert (await rpc(api, "tasks/cancel", {"id": task["id"]}))["error"]["code"] == -32002


@pytest.mark.requirement("wire.a2a.tasks")
async def test_a_finished_task_has_its_result(api: Api) -> None:
    await stored(api, "hello")
    run = (await rpc(api, "message/send", message()))["result"]["taskId"]
    task = (await rpc(api, "tasks/get", {"id": run}))["result"]
    assert task["status"]["state"] == "completed"
    assert task["artifacts"][0]["parts"] == [{"kind": "text", "text": "Hello wörld"}]
    other = await api.start("hello")
    for unknown in ("run_1", other):
        assert (await rpc(api, "tasks/get", {"id": unknown}))["error"]["code"] == -32001


@pytest.mark.requirement("wire.a2a.errors")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[]", -32600),
        (b'"x"', -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"message/send"}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"message/send"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"none/such"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"message/send"}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":[]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"parts":[]}}}', -32602),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"message/stream","params":{"message":{"parts":[{"kind":"file"}]}}}',
            -32005,
        ),
        (b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{}}', -32602),
    ],
)
async def test_invalid_call_is_answered_as_json_rpc_says(api: Api, body: bytes, code: int) -> None:
    await stored(api)
    reply = await api.post(path(api), data=body)
    assert reply.status == 200 and reply.headers["Content-Type"] == "application/json"
    error = reply.json["error"]
    assert error["code"] == code and isinstance(error["message"], str) and error["message"]
    assert reply.json["id"] == (1 if b'"id":1' in body else None)


@pytest.mark.requirement("wire.a2a.errors")
async def test_failed_or_cancelled_run_is_error_of_call(api: Api) -> None:
    await stored(api, "fails_auth")
    error = (await rpc(api, "message/send", message()))["error"]
    assert isinstance(error["code"], int) and error["message"] == "the model says auth"
    assert error["data"]["errorClass"] == "auth" and error["data"]["taskId"].startswith("run_")


@pytest.mark.requirement("wire.a2a.errors")
async def test_credentials_are_judged_before_json_rpc_begins(api: Api, other_api: Api) -> None:
    agent = await stored(api)
    second = await stored(api, name="Second")
    bad = b"not json"

    async def post(key: str | None, slug: str = "helper") -> Reply:
        return await api.post(path(api, slug), data=bad, key=key)

    check_error(await post(None), 401, "unauthorized")
    check_error(await post("mantyx_wrong"), 401, "unauthorized")
    check_error(await post(other_api.key), 404, "not_found")
    check_error(await post(await key_of(api, "mcp")), 403, "forbidden")
    assert check_error(await post(api.key, "nobody"), 404, "not_found")["agentId"] == "nobody"
    # For a narrow key, another agent does not exist.
    narrow = await key_of(api, "a2a", second["id"])
    assert check_error(await post(narrow), 404, "not_found")["agentId"] == "helper"
    assert check_error(await post(narrow, "nobody"), 404, "not_found")["agentId"] == "nobody"
    for key in (api.key, await key_of(api, "a2a"), await key_of(api, "a2a", agent["id"])):
        assert (await post(key)).json["error"]["code"] == -32700


async def token_of(api: Api, *scopes: str) -> str:
    """An access token of an app that acts for itself."""
    body = {"name": "caller", "allowedScopes": scopes, "allowsClientCredentials": True}
    app = (await api.post("oauth-apps", body)).json
    form = {
        "grant_type": "client_credentials",
        "client_id": app["clientId"],
        "client_secret": app["clientSecret"],
    }
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    reply = await api.post("/api/oauth/token", data=urlencode(form).encode(), headers=headers, key=None)
    assert reply.status == 200, reply.body
    return reply.json["access_token"]


@pytest.mark.requirement("wire.a2a.errors", "wire.a2a.card")
async def test_access_token_needs_two_scopes_to_call(api: Api) -> None:
    await stored(api)
    asked = [f"/api/a2a/{api.slug}/discovery", f"{path(api)}/.well-known/agent-card.json"]
    for scopes in (("a2a:invoke",), ("agents:invoke", "runs:write")):
        token = await token_of(api, *scopes)
        reply = await api.post(path(api), data=b"not json", key=token)
        assert reply.status == 403 and reply.json["required"] == ["a2a:invoke", "agents:invoke"]
        assert reply.json["error"] == "insufficient_scope"
        assert 'scope="a2a:invoke agents:invoke"' in reply.headers["WWW-Authenticate"]
        for address in asked:
            refused = await api.get(address, key=token)
            assert refused.status == 403 and refused.json["required"] == "a2a:discovery"
    both = await token_of(api, "a2a:invoke", "agents:invoke", "a2a:discovery")
    assert (await api.post(path(api), data=b"not json", key=both)).json["error"]["code"] == -32700
    assert [(await api.get(address, key=both)).status for address in asked] == [200, 200]


@pytest.mark.requirement("wire.a2a.card")
async def test_an_agents_card_says_where_and_how_it_is_called(api: Api) -> None:
    await stored(api, description="Helps with things.")
    cards = [(await api.get(f"{path(api)}/.well-known/{name}")).json for name in ("agent-card.json", "agent.json")]
    assert cards[0] == cards[1]
    card = cards[0]
    assert card["protocolVersion"] == "0.3.0" and card["name"] == "Helper"
    assert card["description"] == "Helps with things." and card["url"] == f"{api.url}{path(api)}"
    assert isinstance(card["version"], str) and card["version"]
    assert card["capabilities"]["streaming"] is True
    assert card["defaultInputModes"] == card["defaultOutputModes"] == ["text/plain"]
    assert card["skills"][0]["name"] == "Helper"
    assert card["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}


@pytest.mark.requirement("wire.a2a.card")
async def test_discovery_lists_the_cards_that_the_credential_may_use(api: Api) -> None:
    agent = await stored(api)
    await stored(api, name="Second")
    await stored(api, name="Inner", system=True)
    listed = (await api.get(f"/api/a2a/{api.slug}/discovery")).json["agents"]
    assert [card["name"] for card in listed] == ["Helper", "Second"]
    narrow = await key_of(api, "a2a", agent["id"])
    listed = (await api.get(f"/api/a2a/{api.slug}/discovery", key=narrow)).json["agents"]
    assert [card["name"] for card in listed] == ["Helper"]
    check_error(await api.get(f"/api/a2a/{api.slug}/discovery", key=None), 401, "unauthorized")


def sdk_message(text: str, *, context: str = "") -> SendMessageRequest:
    sent = Message(role=Role.ROLE_USER, message_id="m1", parts=[Part(text=text)], context_id=context)
    return SendMessageRequest(message=sent)


@pytest.mark.requirement("wire.a2a.send", "wire.a2a.card", "wire.a2a.context")
async def test_the_official_client_finds_the_agent_and_talks_to_it(api: Api) -> None:
    await stored(api, "seen", description="Helps.")
    headers = {"Authorization": f"Bearer {api.key}"}
    async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http:
        client = await create_client(f"{api.url}{path(api)}", ClientConfig(httpx_client=http, streaming=False))
        replies = [reply async for reply in client.send_message(sdk_message("one", context="sdk"))]
        assert replies[-1].task.artifacts[0].parts[0].text == "one / 1"
        replies = [reply async for reply in client.send_message(sdk_message("two", context="sdk"))]
        assert "one" in replies[-1].task.artifacts[0].parts[0].text and replies[-1].task.context_id == "sdk"


@pytest.mark.requirement("wire.a2a.tasks")
async def test_the_official_client_streams_asks_and_cancels(api: Api) -> None:
    await stored(api, "hello")
    await stored(api, "stuck", name="Slow")
    headers = {"Authorization": f"Bearer {api.key}"}
    async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http:
        config = ClientConfig(httpx_client=http)
        client = await create_client(f"{api.url}{path(api)}", config)
        events = [event async for event in client.send_message(sdk_message("hi"))]
        pieces = [event.artifact_update.artifact.parts[0].text for event in events if event.HasField("artifact_update")]
        assert "".join(pieces) == "Hello wörld"
        assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        task = await client.get_task(GetTaskRequest(id=events[0].task.id))
        assert task.artifacts[0].parts[0].text == "Hello wörld"

        slow = await create_client(f"{api.url}{path(api, 'slow')}", config)
        stream = slow.send_message(sdk_message("hi"))
        first = await anext(stream)
        cancelled = await slow.cancel_task(CancelTaskRequest(id=first.task.id))
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
        rest = [event async for event in stream]
        assert rest[-1].status_update.status.state == TaskState.TASK_STATE_CANCELED


async def test_task_waits_for_input_and_a_message_answers(api: Api) -> None:
    await stored(api, spec={"modelId": "scripted:ask", "tools": [{"kind": "server", "name": "ask_user"}]})
    task = (await rpc(api, "message/send", message()))["result"]
    assert task["status"]["state"] == "input-required"
    assert task["status"]["message"]["parts"][0]["text"] == "Which one? (red / blue)"
    wrong = await rpc(api, "message/send", message("green", messageId="m2", taskId=task["id"]))
    assert "must be one of 'red', 'blue'" in json.dumps(wrong["error"])
    for _ in range(2):  # the same message twice is one answer
        done = await rpc(api, "message/send", message("blue", messageId="m3", taskId=task["id"]))
        assert "heard blue" in json.dumps(done["result"])
    snapshot = await api.snapshot(task["id"])
    assert (snapshot["status"], snapshot["finalText"]) == ("succeeded", "heard blue")
