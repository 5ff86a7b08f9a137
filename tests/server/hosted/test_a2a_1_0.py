"""What only A2A 1.0 has: versions by header, its card, its errors, its lists of tasks, the other spelling of fields."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import ClientConfig, create_client
from a2a.client.errors import A2AClientError
from a2a.types.a2a_pb2 import (
    AgentCard,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import TaskNotFoundError, UnsupportedOperationError
from google.protobuf.json_format import ParseDict

from ..kit import TIMEOUT_S, Api, Json
from .a2a_calls import METHODS, Caller, answer, stored

pytestmark = pytest.mark.requirement("wire.a2a.send", "wire.a2a.tasks")
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


@pytest.fixture
def caller(api: Api) -> Caller:
    return Caller(api, "1.0")


# Versions


async def ask(caller: Caller, method: str, *, version: str | None, query: str = "", params: Any = None) -> Json:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {"id": "run_1"}}
    headers = {} if version is None else {"A2A-Version": version}
    reply = await caller.api.post(caller.path + query, body, headers=headers)
    assert reply.status == 200
    return reply.json["error"]


@pytest.mark.parametrize(
    ("version", "known", "unknown"),
    [
        (None, ["tasks/get", "GetTask"], []),
        ("", ["tasks/get", "GetTask"], []),
        ("0.3", ["tasks/get"], ["GetTask"]),
        ("0.3.0", ["tasks/get"], ["GetTask"]),
        ("1.0", ["GetTask"], ["tasks/get"]),
        ("1.0.1", ["GetTask"], ["tasks/get"]),
    ],
)
async def test_the_header_says_which_versions_methods_there_are(
    caller: Caller, version: str | None, known: list[str], unknown: list[str]
) -> None:
    await stored(caller.api)
    assert [(await ask(caller, method, version=version))["code"] for method in known] == [-32001] * len(known)
    assert [(await ask(caller, method, version=version))["code"] for method in unknown] == [-32601] * len(unknown)


@pytest.mark.parametrize("version", ["99.0", "0.2", "1.1", "2", "one"])
async def test_another_version_is_refused(caller: Caller, version: str) -> None:
    await stored(caller.api)
    for method in ("GetTask", "tasks/get"):
        error = await ask(caller, method, version=version)
        assert error["code"] == -32009 and "1.0 or 0.3" in error["message"]


async def test_the_version_may_stand_in_the_query(caller: Caller) -> None:
    await stored(caller.api)
    assert (await ask(caller, "GetTask", version=None, query="?A2A-Version=1.0"))["data"][0]["@type"] == ERROR_INFO
    assert (await ask(caller, "GetTask", version=None, query="?A2A-Version=99.0"))["code"] == -32009


async def test_card_has_an_interface_of_each_version(caller: Caller) -> None:
    await stored(caller.api, description="Helps.")
    address = f"{caller.path}/.well-known/agent-card.json"
    both = (await caller.api.get(address)).json
    url = f"{caller.api.url}{caller.path}"
    assert [(one["protocolVersion"], one["protocolBinding"], one["url"]) for one in both["supportedInterfaces"]] == [
        ("1.0", "JSONRPC", url),
        ("0.3", "JSONRPC", url),
    ]
    assert both["capabilities"]["extendedAgentCard"] is False and both["capabilities"]["pushNotifications"] is False
    assert both["skills"][0]["inputModes"][:3] == ["text/plain", "application/json", "image/png"]
    alone = (await caller.api.get(address, headers={"A2A-Version": "1.0"})).json
    # Refuses what the version does not know.
    card = ParseDict(alone, AgentCard())
    assert card.security_schemes["bearer"].http_auth_security_scheme.scheme == "bearer"
    assert "bearer" in card.security_requirements[0].schemes
    assert card.supported_interfaces[0].url == url


# Errors


async def test_errors_of_a2a_have_reason_and_wrong_parameters_field(caller: Caller) -> None:
    await stored(caller.api)
    error = await caller.error("get", {"id": "run_1"})
    assert error["data"] == [
        {
            "@type": ERROR_INFO,
            "reason": "TASK_NOT_FOUND",
            "domain": "a2a-protocol.org",
            "metadata": {"taskId": "run_1"},
        }
    ]
    error = await caller.error("send", caller.message(role="ROLE_AGENT"))
    assert error["data"] == [
        {
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{"field": "message.role", "description": "must be ROLE_USER."}],
        }
    ]
    assert (await caller.error("send", caller.message("two", taskId=(await caller.send())["id"])))["data"][0][
        "reason"
    ] == "UNSUPPORTED_OPERATION"


async def test_a_run_that_fails_is_a_failed_task(caller: Caller) -> None:
    await stored(caller.api, "fails_auth")
    task = await caller.send()
    assert task["status"]["state"] == "failed" and "artifacts" not in task
    assert task["status"]["message"]["parts"][0]["text"] == "the model says auth"


async def test_body_with_another_content_type_is_refused(caller: Caller) -> None:
    await stored(caller.api)
    for kind, code in (("text/plain", -32005), ("application/json", -32700), ("application/a2a+json", -32700)):
        headers = {"A2A-Version": "1.0", "Content-Type": kind}
        reply = await caller.api.post(caller.path, data=b"{'jsonrpc'", headers=headers)
        assert reply.json["error"]["code"] == code


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_refused_stream_is_an_event_for_0_3_callers(api: Api, version: str) -> None:
    caller = Caller(api, version)
    await stored(api)
    body = {"jsonrpc": "2.0", "id": 1, "method": METHODS[version]["stream"], "params": caller.message(taskId="run_1")}
    reply = await api.post(caller.path, body, headers={"Accept": "text/event-stream", "A2A-Version": version})
    assert reply.status == 200 and b'"code":-32001' in reply.body
    if version == "0.3":
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        assert reply.body.startswith(b"data: {") and reply.body.endswith(b"}\n\n")
    else:
        assert reply.headers["Content-Type"] == "application/json"


# Results


async def test_the_call_of_the_docs_works(caller: Caller) -> None:
    await stored(caller.api)
    page = Path(__file__).parents[3] / "docs" / "a2a.md"
    shown = re.search(r"-H '(A2A-Version): (.+?)' -d '(.+?)'\n", page.read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    name, version, body = shown.groups()
    reply = await caller.api.post(caller.path, json.loads(body), headers={name: version})
    assert answer(reply.json["result"]["task"]) == "What is on today? / 1"


async def test_an_answer_that_fits_a_schema_is_data(caller: Caller) -> None:
    schema = {"name": "answer", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    await stored(caller.api, "json_answer", spec={"outputSchema": schema})
    task = await caller.send()
    assert task["artifacts"][0]["parts"] == [{"data": {"n": 4}, "mediaType": "application/json"}]
    assert task["status"]["message"]["parts"] == [{"text": '{"n": 4}'}]


async def test_fields_may_be_spelt_as_in_the_proto_file(caller: Caller) -> None:
    await stored(caller.api, "stuck")
    message = caller.message("hi", messageId=None, message_id="m-1", context_id="c-1")
    sent = {**message, "configuration": {"return_immediately": True, "history_length": 1}, "tenant": None}
    task = await caller.call("send", sent)
    assert task["contextId"] == "c-1" and task["history"][0]["messageId"] == "m-1"
    assert "history" not in await caller.get(task["id"], history_length=0)


async def test_subscriber_gets_the_task_and_its_later_changes(caller: Caller) -> None:
    api = caller.api
    await stored(api, "stuck")
    task = await caller.call("send", caller.message(config=caller.at_once))
    async with api.stream(task["id"]) as stream:
        await stream.until("assistant_delta")
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task["id"]}}
    headers = {"Authorization": f"Bearer {api.key}"}
    async with AsyncExitStack() as stack, asyncio.timeout(TIMEOUT_S):
        readers = [
            (await stack.enter_async_context(api.http.post(api.url + caller.path, json=body, headers=headers))).content
            for _ in range(2)
        ]
        begun = [await reader.readuntil(b"\n\n") + await reader.readuntil(b"\n\n") for reader in readers]
        await caller.call("cancel", {"id": task["id"]})
        first, second = [start + await reader.read() for start, reader in zip(begun, readers, strict=True)]
    assert first == second
    events = [json.loads(line[6:])["result"] for line in first.decode().split("\n\n") if line]
    assert events[0]["task"]["status"]["state"] == "TASK_STATE_WORKING"
    assert events[1]["artifactUpdate"]["artifact"]["parts"] == [{"text": "begun"}]
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"
    assert (await caller.error("subscribe", {"id": task["id"]}))["code"] == -32004


# Lists


async def test_tasks_are_listed_by_when_they_changed_page_at_time(caller: Caller) -> None:
    api = caller.api
    await stored(api, "stuck")
    await stored(api, "seen", name="Second")
    other = await caller.of("second").send()
    tasks = [
        await caller.call("send", caller.message(str(n), contextId=f"c{n % 2}{n}", config=caller.at_once))
        for n in range(3)
    ]
    for task in tasks:
        async with api.stream(task["id"]) as stream:
            await stream.until("assistant_delta")
    await caller.call("cancel", {"id": tasks[0]["id"]})
    # The first began first, but it changed last.
    order = [tasks[0]["id"], tasks[2]["id"], tasks[1]["id"]]
    page = await caller.call("list", {})
    assert [task["id"] for task in page["tasks"]] == order
    assert (page["totalSize"], page["pageSize"], page["nextPageToken"]) == (3, 50, "")
    assert all("artifacts" not in task and "history" not in task for task in page["tasks"])
    seen: list[str] = []
    token = ""
    for expected in (2, 1):
        page = await caller.call("list", {"pageSize": 2, "pageToken": token})
        assert len(page["tasks"]) == expected and page["totalSize"] == 3
        seen += [task["id"] for task in page["tasks"]]
        token = page["nextPageToken"]
    assert seen == order and token == ""
    page = await caller.of("second").call("list", {"includeArtifacts": True, "historyLength": 1})
    assert [task["id"] for task in page["tasks"]] == [other["id"]]
    assert answer(page["tasks"][0]) == "hello / 1" and len(page["tasks"][0]["history"]) == 1


async def test_a_list_can_be_narrowed(caller: Caller) -> None:
    await stored(caller.api, "stuck")
    first = await caller.call("send", caller.message("one", contextId="c1", config=caller.at_once))
    await caller.call("cancel", {"id": first["id"]})
    second = await caller.call("send", caller.message("two", contextId="c2", config=caller.at_once))
    async with caller.api.stream(second["id"]) as stream:
        await stream.until("assistant_delta")

    async def found(**params: Any) -> list[str]:
        return [task["id"] for task in (await caller.call("list", params))["tasks"]]

    assert await found(contextId="c1") == await found(status="TASK_STATE_CANCELED") == [first["id"]]
    assert await found(status="TASK_STATE_WORKING") == [second["id"]]
    assert await found(status="TASK_STATE_REJECTED") == await found(status="TASK_STATE_INPUT_REQUIRED") == []
    assert await found(status="TASK_STATE_UNSPECIFIED") == [second["id"], first["id"]]
    at = (await caller.get(second["id"]))["status"]["timestamp"]
    assert await found(statusTimestampAfter=at) == [second["id"]]
    assert await found(statusTimestampAfter="2999-01-01T00:00:00Z") == []


@pytest.mark.parametrize(
    "params",
    [
        {"pageSize": 0},
        {"pageSize": 101},
        {"pageSize": "many"},
        {"pageToken": "x"},
        {"pageToken": "1-2-3"},
        {"pageToken": "9" * 4000},
        {"status": "DONE"},
        {"status": 3},
        {"historyLength": -1},
        {"statusTimestampAfter": "yesterday"},
        {"statusTimestampAfter": 7},
    ],
)
async def test_a_list_that_cannot_be_is_refused(caller: Caller, params: Json) -> None:
    await stored(caller.api)
    assert (await caller.error("list", params))["code"] == -32602


# The official client


def request(text: str, **fields: Any) -> SendMessageRequest:
    return SendMessageRequest(message=Message(role=Role.ROLE_USER, parts=[Part(text=text)], **fields))


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_the_official_client_is_told_what_is_wrong(caller: Caller, version: str) -> None:
    await stored(caller.api)
    await stored(caller.api, "lookup", name="Asks", tools=[{"kind": "local", "name": "lookup", "description": "Asks."}])
    headers = {"Authorization": f"Bearer {caller.api.key}"}
    async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http:

        async def client(slug: str) -> Any:
            url = f"{caller.api.url}{caller.of(slug).path}"
            card = ParseDict(
                (
                    await caller.api.get(
                        f"{caller.of(slug).path}/.well-known/agent-card.json", headers={"A2A-Version": "1.0"}
                    )
                ).json,
                AgentCard(),
            )
            kept = [one for one in card.supported_interfaces if one.protocol_version == version]
            del card.supported_interfaces[:]
            card.supported_interfaces.extend(kept)
            assert card.supported_interfaces[0].url == url
            return await create_client(card, ClientConfig(httpx_client=http))

        helper, asks = await client("helper"), await client("asks")
        events = [event async for event in helper.send_message(request("one", message_id="m1"))]
        ended = events[0].task.id
        with pytest.raises(UnsupportedOperationError):
            [event async for event in helper.send_message(request("two", message_id="m2", task_id=ended))]
        with pytest.raises(TaskNotFoundError):
            [event async for event in helper.send_message(request("two", message_id="m2", task_id="nope"))]
        with pytest.raises(TaskNotFoundError if version == "1.0" else A2AClientError):
            [event async for event in helper.subscribe(SubscribeToTaskRequest(id="nope"))]
        with pytest.raises(TaskNotFoundError):
            await helper.get_task(GetTaskRequest(id="nope"))
        events = [event async for event in asks.send_message(request("one", message_id="m1"))]
        assert events[-1].status_update.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        task = events[-1].status_update.task_id
        events = [event async for event in asks.send_message(request("42", message_id="m2", task_id=task))]
        assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        assert events[-1].status_update.status.message.parts[0].text == "found 42"
        history = (await asks.get_task(GetTaskRequest(id=task, history_length=2))).history
        assert [one.role for one in history] == [Role.ROLE_USER, Role.ROLE_AGENT]
        if version == "1.0":
            listed = await asks.list_tasks(ListTasksRequest(page_size=1))
            assert [one.id for one in listed.tasks] == [task] and listed.total_size == 1
