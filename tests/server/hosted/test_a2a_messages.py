"""What becomes of a message over A2A, in both versions: which task it goes to, what it may hold, and what is kept."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from weftline import prompts
from weftline.testing import ServerProcess
from weftline.wire.limits import MAX_RESULT_BYTES

from ..kit import TIMEOUT_S, Api, Json, local_tool
from ..scripts import SCRIPTS
from .a2a_calls import METHODS, Caller, Gate, answer, gate, stored, texts

pytestmark = pytest.mark.requirement("wire.a2a.send", "wire.a2a.tasks", "wire.a2a.context", "wire.a2a.errors")
ASK = local_tool("lookup")
IMAGE = b"\x89PNG\r\n\x1a\n rest"
PNG = b64encode(IMAGE).decode()


@pytest.fixture(params=["0.3", "1.0"])
def caller(request: pytest.FixtureRequest, api: Api) -> Caller:
    return Caller(api, request.param)


async def runs(api: Api) -> list[str]:
    return [run["runId"] for run in (await api.get("agent-runs")).json["runs"]]


@asynccontextmanager
async def at_work(caller: Caller, script: str = "steered") -> AsyncGenerator[tuple[Json, Gate]]:
    """A task of an agent whose tool is at work until the gate opens."""
    async with gate() as closed:
        await stored(caller.api, script, tools=[await closed.tool(caller.api)])
        task = await caller.call("send", caller.message("begin", config=caller.at_once))
        await closed.entered.wait()
        yield task, closed


# Where it goes


async def test_a_message_to_a_running_task_goes_to_that_task(caller: Caller) -> None:
    async with at_work(caller) as (task, closed):
        more = caller.message("and the floor", taskId=task["id"], config=caller.at_once)
        same = await caller.call("send", more)
        assert same["id"] == task["id"] and same["status"]["state"] == "working"
        following = asyncio.ensure_future(caller.send("and the roof", taskId=task["id"], contextId=task["contextId"]))
        while len((await caller.get(task["id"]))["history"]) < 3:
            pass
        closed.opened.set()
        ended = await following
    assert ended["id"] == task["id"] and answer(ended) == "begin | and the floor | and the roof"
    assert await runs(caller.api) == [task["id"]]
    session = (await caller.api.snapshot(task["id"]))["sessionId"]
    said = [one["content"] for one in (await caller.api.get(f"agent-sessions/{session}")).json["messages"]]
    assert said == ["begin", "and the floor", "and the roof", answer(ended)]


async def test_a_message_to_a_task_that_has_ended_is_refused(caller: Caller) -> None:
    await stored(caller.api)
    task = await caller.send("one")
    for method in ("send", "stream"):
        error = await caller.error(method, caller.message("two", taskId=task["id"]))
        assert error["code"] == -32004 and "has ended" in error["message"]
    assert await runs(caller.api) == [task["id"]]


async def test_message_to_an_unknown_or_foreign_task_is_refused(caller: Caller, other_api: Api) -> None:
    api = caller.api
    await stored(api)
    await stored(api, name="Second")
    await stored(other_api)
    own = await caller.of("second").send("one")
    foreign = await caller.of("helper", other_api).send("one")
    for task in ("nope", "run_1", own["id"], foreign["id"]):
        for method in ("send", "stream"):
            error = await caller.error(method, caller.message("two", taskId=task))
            assert error["code"] == -32001, task
        assert (await caller.error("get", {"id": task}))["code"] == -32001
        assert (await caller.error("cancel", {"id": task}))["code"] == -32001
    assert await runs(api) == [own["id"]]


async def test_task_and_context_that_do_not_belong_together_are_refused(caller: Caller) -> None:
    async with at_work(caller) as (task, _):
        error = await caller.error("send", caller.message("two", taskId=task["id"], contextId="another"))
    assert error["code"] == -32602 and "message.contextId" in error["message"]


async def test_missing_task_subscription_is_an_error_of_http_or_call(caller: Caller) -> None:
    await stored(caller.api)
    error = await caller.error("subscribe", {"id": "run_1"}, status=200 if caller.newer else 404)
    assert error["code"] == -32001


async def test_the_same_message_twice_is_one(caller: Caller) -> None:
    await stored(caller.api)
    message = caller.message("one", messageId="m-1")
    first, *others = await asyncio.gather(*[caller.call("send", message) for _ in range(4)])
    context = first["contextId"]
    assert all(other == first for other in others)
    assert len(await runs(caller.api)) == 1
    assert (await caller.send("one", messageId="m-2"))["contextId"] != context
    # A sender that always gives the same name still says something else.
    assert (await caller.send("two", messageId="m-1"))["contextId"] != context
    assert len(await runs(caller.api)) == 3


async def test_same_message_finds_its_task_after_the_session(caller: Caller) -> None:
    await stored(caller.api)
    message = caller.message("one", messageId="m-1")
    first = await caller.call("send", message)
    (session,) = [one["id"] for one in (await caller.api.get("agent-sessions")).json["sessions"]]
    await caller.api.call("DELETE", f"agent-sessions/{session}")
    assert await caller.call("send", message) == first
    assert len((await caller.api.get("agent-sessions")).json["sessions"]) == 1


async def test_same_message_twice_to_a_task_counts_once(caller: Caller) -> None:
    api = caller.api
    async with at_work(caller) as (task, closed):
        more = caller.message("more", taskId=task["id"], messageId="m-1", config=caller.at_once)
        await asyncio.gather(*[caller.call("send", more) for _ in range(5)])
        closed.opened.set()
        async with api.stream(task["id"]) as stream:
            await stream.rest()
    again = await caller.call("send", more)
    assert (again["id"], again["status"]["state"]) == (task["id"], "completed")
    assert texts(again["history"]) == ["user: begin", "user: more", "agent: begin | more"]
    assert again["history"][1]["messageId"] == "m-1"
    assert (await caller.error("send", caller.message("new", taskId=task["id"])))["code"] == -32004


async def test_a_name_for_a_message_is_its_senders_own(caller: Caller, second_key: str) -> None:
    await stored(caller.api)
    message = caller.message("one", messageId="m-1")
    await caller.call("send", message)
    caller.api.key = second_key
    await caller.call("send", message)
    assert len(await runs(caller.api)) == 2


async def test_same_message_counts_once_across_a_kill(tmp_path: Path) -> None:
    scripts = {name: SCRIPTS[name] for name in ("steered", "seen")}
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http, AsyncExitStack() as stack:
        with ServerProcess(tmp_path, scripts=scripts) as server:
            caller = Caller(Api(http, server.url, "acme", server.create_key("acme")), "1.0")
            closed = await stack.enter_async_context(gate())
            await stored(caller.api, "steered", tools=[await closed.tool(caller.api)])
            begun = caller.message("begin", config=caller.at_once)
            task = await caller.call("send", begun)
            await closed.entered.wait()
            more = caller.message("more", taskId=task["id"], config=caller.at_once)
            await caller.call("send", more)
            server.kill()
            server.start()
            assert (await caller.call("send", begun))["id"] == task["id"]
            assert (await caller.call("send", more))["id"] == task["id"]
            closed.opened.set()
            async with caller.api.stream(task["id"]) as stream:
                await stream.rest()
            ended = await caller.get(task["id"])
            assert texts(ended["history"]) == ["user: begin", "user: more", "agent: begin | more"]
            assert await runs(caller.api) == [task["id"]]


# What it waits for


async def test_call_for_client_is_question_that_next_message_answers(caller: Caller) -> None:
    await stored(caller.api, "twice", tools=[ASK])
    task = await caller.send("please")
    assert task["status"]["state"] == "input-required"
    asked = task["status"]["message"]
    assert asked["parts"][0]["text"] == 'lookup {"q":"a"}'
    assert asked["parts"][1]["data"] == {
        "toolUseId": asked["messageId"],
        "name": "lookup",
        "args": {"q": "a"},
        "kind": "local",
    }
    first = caller.message("A", taskId=task["id"], messageId="m-a")
    again = await caller.call("send", first)
    assert again["id"] == task["id"] and again["status"]["message"]["parts"][0]["text"] == 'lookup {"q":"b"}'
    # The same answer again is not the answer to the next question.
    assert (await caller.call("send", first))["status"]["message"]["parts"][1]["data"]["args"] == {"q": "b"}
    ended = await caller.send("B", taskId=task["id"], contextId=task["contextId"])
    assert ended["status"]["state"] == "completed" and answer(ended) == "A || B"
    assert texts(ended["history"]) == [
        "user: please",
        'agent: lookup {"q":"a"}',
        "user: A",
        'agent: lookup {"q":"b"}',
        "user: B",
        "agent: A || B",
    ]


async def test_result_that_is_too_large_closes_its_call_with_error(caller: Caller) -> None:
    await stored(caller.api, "twice", tools=[ASK])
    task = await caller.send("please")
    large = caller.message("x" * (MAX_RESULT_BYTES + 1), taskId=task["id"], messageId="m-a")
    for _ in range(2):  # the same message again does not close the next call
        refused = await caller.error("send", large)
        assert refused["code"] == -32602 and "larger than the limit" in refused["message"]
    waiting = await caller.get(task["id"])
    assert waiting["status"]["message"]["parts"][1]["data"]["args"] == {"q": "b"}
    ended = await caller.send("B", taskId=task["id"])
    assert answer(ended) == f"{prompts.calls.RESULT_TOO_LARGE} || B"


async def test_message_that_is_too_large_for_running_task_is_refused(caller: Caller) -> None:
    async with at_work(caller) as (task, closed):
        large = caller.message("x" * (MAX_RESULT_BYTES + 1), taskId=task["id"], config=caller.at_once)
        assert "must not be larger" in (await caller.error("send", large))["message"]
        closed.opened.set()


@pytest.mark.parametrize(
    ("script", "tool", "asked"),
    [
        ("delegate", {"kind": "a2a_local", "name": "peer", "agentCard": {"name": "Peer"}}, "do it"),
        (
            "mcp",
            {"kind": "mcp_local", "name": "files", "tools": [{"name": "files_read"}]},
            'files_read {"path":"/etc/motd"}',
        ),
    ],
)
async def test_every_kind_of_call_for_the_client_is_a_question(
    caller: Caller, script: str, tool: Json, asked: str
) -> None:
    await stored(caller.api, script, tools=[tool])
    task = await caller.send("please")
    assert task["status"]["state"] == "input-required"
    words, data = task["status"]["message"]["parts"]
    assert words["text"] == asked and data["data"]["kind"] == tool["kind"]
    ended = await caller.send("it is done", taskId=task["id"])
    assert ended["status"]["state"] == "completed" and answer(ended).endswith(": it is done")


async def test_stream_ends_with_a_question_and_continues_after_it(caller: Caller) -> None:
    await stored(caller.api, "lookup", tools=[ASK])
    *_, last = await caller.events("stream", caller.message("please"))
    assert last["status"]["state"] == "input-required" and "lookup" in last["status"]["message"]["parts"][0]["text"]
    if not caller.newer:
        assert last["final"] is True
    *_, last = await caller.events("stream", caller.message("forty-two", taskId=last["taskId"]))
    assert last["status"]["state"] == "completed"
    assert last["status"]["message"]["parts"][0]["text"] == "found forty-two"


# What is streamed


def assembled(events: list[Json]) -> dict[str, str]:
    """The artifacts by id as a client puts them together from a stream."""
    made: dict[str, str] = {}
    for event in events:
        for artifact in event.get("artifacts", []):
            made[artifact["artifactId"]] = text_of(artifact)
        if "artifact" in event:
            identity, text = event["artifact"]["artifactId"], text_of(event["artifact"])
            made[identity] = made[identity] + text if event["append"] else text
    return made


def text_of(artifact: Json) -> str:
    (part,) = artifact["parts"]
    return part["text"] if "text" in part else json.dumps(part["data"])


@pytest.mark.parametrize("script", ["hello", "echo", "flaky", "quiet_end", "json_answer"])
async def test_stream_and_task_that_has_ended_have_same_artifacts(caller: Caller, script: str) -> None:
    schema = {"schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    spec = {"outputSchema": schema} if script == "json_answer" else {}
    await stored(caller.api, script, tools=[{"kind": "server", "name": "echo"}], spec=spec)
    message = caller.message("one")
    events = await caller.events("stream", message)
    states = [event["status"]["state"] for event in events if "status" in event]
    # The run may begin, or even end, before its stream does: then its task comes first as it is by then.
    assert states in (["submitted", "working", "completed"], ["working", "completed"], ["completed", "completed"])
    task = await caller.get(events[0]["id"])
    assert assembled(events) == assembled([task])
    pieces = [event["lastChunk"] for event in events if "artifact" in event]
    assert pieces == [False] * (len(pieces) - 1) + [True] * bool(pieces)
    # The same message again, or somebody who subscribes too late, gets the end and no text twice.
    again = [await caller.events("stream", message)]
    if not caller.newer:
        again.append(await caller.events("subscribe", {"id": task["id"]}))
    for ended in again:
        assert assembled(ended) == assembled([task]) and ended[-1] == events[-1]
        assert [event["status"]["state"] for event in ended] == ["completed", "completed"]


@asynccontextmanager
async def subscribed(caller: Caller, task: str) -> AsyncGenerator[AsyncIterator[Json]]:
    """The events as they come."""
    api = caller.api
    body = {"jsonrpc": "2.0", "id": 1, "method": METHODS[caller.version]["subscribe"], "params": {"id": task}}
    headers = {"Authorization": f"Bearer {api.key}"}

    async def events(content: aiohttp.StreamReader) -> AsyncIterator[Json]:
        while not content.at_eof():
            frame = await content.readuntil(b"\n\n")
            if frame.startswith(b"data: "):
                yield caller.plain(json.loads(frame[6:])["result"])

    async with asyncio.timeout(TIMEOUT_S), api.http.post(api.url + caller.path, json=body, headers=headers) as reply:
        yield events(reply.content)


async def test_a_subscriber_who_comes_late_gets_an_empty_answer_too(caller: Caller) -> None:
    async with at_work(caller, "silent") as (task, closed), subscribed(caller, task["id"]) as events:
        first = await anext(events)
        closed.opened.set()
        got = [first] + [event async for event in events]
    assert assembled(got) == assembled([await caller.get(task["id"])]) == {"result": ""}


async def test_subscriber_in_middle_gets_text_of_turn_once(caller: Caller) -> None:
    await stored(caller.api, "echo_stuck", tools=[{"kind": "server", "name": "echo"}])
    api = caller.api
    task = await caller.call("send", caller.message(config=caller.at_once))
    async with api.stream(task["id"]) as stream:
        await stream.until("tool_result")
        await stream.until("assistant_delta")
    async with subscribed(caller, task["id"]) as events:
        begun = [await anext(events), await anext(events)]
        await caller.call("cancel", {"id": task["id"]})
        events = begun + [event async for event in events]
    assert list(assembled(events).values()) == ["begun"] and events[-1]["status"]["state"] == "canceled"


# What is kept


async def test_history_has_only_what_was_said_and_requested(caller: Caller) -> None:
    await stored(caller.api, "echo", tools=[{"kind": "mantyx_plugin", "name": "echo"}])
    task = await caller.send("one", messageId="m-1")
    whole = texts(task["history"])
    assert whole == ["user: one", "agent: let me see", "agent: heard echo said"]
    assert task["history"][0]["messageId"] == "m-1"
    assert {one["taskId"] for one in task["history"]} == {task["id"]}
    for length in (1, 2, 3, 1000, 2**31 - 1):
        shown = await caller.get(task["id"], historyLength=length)
        assert texts(shown["history"]) == whole[-length:]
    assert "history" not in await caller.get(task["id"], historyLength=0)
    for wrong in (-1, "two", 1.5):
        assert (await caller.error("get", {"id": task["id"], "historyLength": wrong}))["code"] == -32602
    sent = await caller.call("send", caller.message("two", config={**caller.at_once, "historyLength": 0}))
    assert "history" not in sent


# What it may be


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messageId": None}, "message.messageId"),
        ({"messageId": ""}, "message.messageId"),
        ({"messageId": 7}, "message.messageId"),
        ({"messageId": "m" * 513}, "message.messageId"),
        ({"role": None}, "message.role"),
        ({"role": "agent"}, "message.role"),
        ({"role": "ROLE_AGENT"}, "message.role"),
        ({"role": ["user"]}, "message.role"),
        ({"contextId": "c" * 513}, "message.contextId"),
        ({"contextId": 7}, ""),
        ({"taskId": 7}, ""),
        ({"parts": []}, "message.parts"),
        ({"parts": "hello"}, ""),
        ({"parts": [7]}, ""),
    ],
)
async def test_a_message_without_what_it_must_have_is_refused(caller: Caller, fields: Json, path: str) -> None:
    await stored(caller.api)
    for method in ("send", "stream"):
        error = await caller.error(method, caller.message(**fields))
        assert error["code"] == -32602 and error["message"].startswith(path)
    assert await runs(caller.api) == []


def part(caller: Caller, kind: str, **fields: Any) -> Json:
    """A part in the caller's spelling: `data`, or a file by `raw` or `url`, with `media` and `name`."""
    if kind == "data":
        return {"data": fields["data"]} if caller.newer else {"kind": "data", "data": fields["data"]}
    media, name = fields.get("media"), fields.get("name")
    content = {name: value for name, value in fields.items() if name in ("raw", "url")}
    if caller.newer:
        return {**content, "mediaType": media, "filename": name}
    older = {"bytes": content.get("raw"), "uri": content.get("url"), "mimeType": media, "name": name}
    return {"kind": "file", "file": {key: value for key, value in older.items() if value is not None}}


async def test_data_and_text_files_are_taken(caller: Caller) -> None:
    await stored(caller.api)
    text = {"text": "look:"} if caller.newer else {"kind": "text", "text": "look:"}
    notes = part(caller, "file", raw=b64encode("Milch für zwei".encode()).decode(), media="text/markdown", name="a.md")
    parts = [text, part(caller, "data", data={"a": [1, None]}), notes]
    task = await caller.send(parts=parts)
    assert answer(task) == 'look:\n{"a":[1,null]}\nAttached file "a.md":\nMilch für zwei / 1'


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"raw": b64encode(b"x").decode(), "media": "image/png", "name": "a.png"}, -32005),
        ({"raw": PNG, "media": "application/pdf"}, -32005),
        ({"raw": PNG, "media": "video/mp4"}, -32005),
        ({"url": "https://example.com/a.png", "media": "image/png"}, -32005),
        ({"raw": "!!", "media": "image/png"}, -32602),
        ({"raw": PNG, "media": "image/png", "name": "n" * 256}, -32602),
        ({"raw": b64encode(b"x").decode()}, -32005),
        ({"url": "https://example.com/a.txt", "media": "text/plain"}, -32005),
        ({"raw": "!!", "media": "text/plain"}, -32602),
        ({"raw": b64encode(b"\xff\xfe\x00").decode(), "media": "text/plain"}, -32602),
    ],
)
async def test_unacceptable_result_is_refused_and_not_dropped(caller: Caller, fields: Json, code: int) -> None:
    await stored(caller.api)
    text = {"text": "look:"} if caller.newer else {"kind": "text", "text": "look:"}
    error = await caller.error("send", caller.message(parts=[text, part(caller, "file", **fields)]))
    assert error["code"] == code and "message.parts[1]" in error["message"]
    assert await runs(caller.api) == []


async def test_images_and_pdf_files_are_attached(caller: Caller) -> None:
    await stored(caller.api, "attached")
    text = {"text": "look:"} if caller.newer else {"kind": "text", "text": "look:"}
    cat = part(caller, "file", raw=PNG, media="image/png", name="cat.png")
    paper = part(caller, "file", raw=b64encode(b"%PDF-1.7 rest").decode(), media="application/pdf")
    untyped = part(caller, "file", raw=PNG)
    message = caller.message(parts=[text, cat, paper])
    task = await caller.call("send", message)
    task = await caller.get(task.get("taskId") or task["id"])
    assert answer(task) == f"look:: image/png {len(IMAGE)} bytes, application/pdf 13 bytes"
    first = task["history"][0]["parts"]
    assert first[0]["text"] == "look:"
    assert [file["name"] for file in first[1]["data"]["attachments"]] == ["cat.png", None]
    await caller.call("send", message)
    assert len(await runs(caller.api)) == 1
    # The same text with another picture is another message.
    other = {"message": {**message["message"], "parts": [text, untyped]}}
    await caller.call("send", other)
    assert len(await runs(caller.api)) == 2
    alone = await caller.send(parts=[untyped], contextId=task["contextId"])
    assert answer(alone).endswith(
        f"image/png {len(IMAGE)} bytes, application/pdf 13 bytes, image/png {len(IMAGE)} bytes"
    )


async def test_file_for_task_that_is_under_way_is_refused(caller: Caller) -> None:
    async with at_work(caller) as (task, _):
        cat = part(caller, "file", raw=PNG, media="image/png")
        error = await caller.error("send", caller.message(parts=[cat], taskId=task["id"]))
        assert error["code"] == -32005 and "begins a task" in error["message"]


async def test_a_part_of_an_unknown_kind_is_refused(caller: Caller) -> None:
    await stored(caller.api)
    older: list[Json] = [{"kind": "video"}, {}, {"kind": "data"}]
    newer: list[Json] = [{"video": "x"}, {}, {"text": "a", "raw": "eA=="}]
    for one in newer if caller.newer else older:
        assert (await caller.error("send", caller.message(parts=[one])))["code"] == -32602


# What is not for this server


@pytest.mark.parametrize("id", [1, ...])
async def test_push_notifications_are_refused_by_their_own_code(caller: Caller, id: Any) -> None:
    await stored(caller.api)
    older = [f"tasks/pushNotificationConfig/{what}" for what in ("set", "get", "list", "delete")]
    newer = [f"{what}TaskPushNotificationConfig" for what in ("Create", "Get", "Delete")]
    for method in [*newer, "ListTaskPushNotificationConfigs"] if caller.newer else older:
        reply = await caller.post(method, {"id": "x", "taskId": "x"}, id=id)
        if id is ...:
            assert (reply.status, reply.body) == (204, b"")
        else:
            assert reply.json["error"]["code"] == -32003
    name = "taskPushNotificationConfig" if caller.newer else "pushNotificationConfig"
    config = {name: {"url": "http://127.0.0.1:9/"}}
    reply = await caller.post("send", caller.message(config=config), id=id)
    assert reply.status == 204 if id is ... else reply.json["error"]["code"] == -32003
    assert await runs(caller.api) == []


async def test_an_extended_card_is_refused_by_its_own_code(caller: Caller) -> None:
    await stored(caller.api)
    method, code = ("GetExtendedAgentCard", -32004) if caller.newer else ("agent/getAuthenticatedExtendedCard", -32007)
    assert (await caller.error(method, {}))["code"] == code


async def test_call_without_id_is_carried_out_and_gets_no_answer(caller: Caller) -> None:
    await stored(caller.api, "stuck")
    for method in ("send", "stream"):
        reply = await caller.post(method, caller.message(method), id=...)
        assert (reply.status, reply.body) == (204, b"")
    begun = await runs(caller.api)
    assert len(begun) == 2
    for method, params in [
        ("cancel", {"id": begun[0]}),
        ("get", {"id": begun[0]}),
        ("get", {"id": "unknown"}),
        ("none/such", {}),
        ("send", {"message": 7}),
        ("subscribe", {"id": begun[1]}),
    ]:
        reply = await caller.post(method, params, id=...)
        assert (reply.status, reply.body) == (204, b"")
    assert (await caller.api.snapshot(begun[0]))["status"] == "cancelled"
    assert len(await runs(caller.api)) == 2
    assert (await caller.post("get", {"id": "unknown"}, id=None)).json == {
        "jsonrpc": "2.0",
        "id": None,
        "error": (await caller.error("get", {"id": "unknown"})),
    }
