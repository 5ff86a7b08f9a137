"""An agent that asks people, over A2A in both versions: when calls come back, what they show, what a message does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weftline import prompts

from ..kit import TIMEOUT_S, Api, Json
from .a2a_calls import Caller, answer, gate, stored, texts
from .test_a2a_messages import subscribed

pytestmark = pytest.mark.requirement("wire.a2a.send", "wire.a2a.tasks")
TOOLS: list[Json] = [{"kind": "server", "name": name} for name in ("pay", "ask_user", "present_plan", "echo")]
PAYMENT = {"amount": 1, "payee": "Ann"}


@pytest.fixture(params=["0.3", "1.0"])
def caller(request: pytest.FixtureRequest, api: Api) -> Caller:
    return Caller(api, request.param)


async def asked_by(caller: Caller, script: str) -> Json:
    """The task of an agent that asks, as its caller sees it when it waits."""
    await stored(caller.api, script, tools=TOOLS)
    task = await caller.send("go")
    assert task["status"]["state"] == "input-required", task
    return task


def data_part(caller: Caller, value: Any) -> Json:
    return {"data": value} if caller.newer else {"kind": "data", "data": value}


def said(task: Json) -> list[str]:
    return [part["text"] for part in task["status"]["message"]["parts"] if "text" in part]


def asked(task: Json) -> list[Json]:
    return [part["data"] for part in task["status"]["message"]["parts"] if "data" in part]


@pytest.mark.parametrize("method", ["send", "stream"])
async def test_call_comes_back_when_work_beside_a_question_is_done(caller: Caller, method: str) -> None:
    api = caller.api
    async with gate() as closed:
        await stored(api, "ask_beside", tools=[*TOOLS, await closed.tool(api)])
        call = caller.call if method == "send" else caller.events
        sending = asyncio.ensure_future(call(method, caller.message("go")))
        await closed.entered.wait()
        while not (asked_so_far := (await api.get("awaits")).json["awaits"]):
            pass
        task = await caller.get(asked_so_far[0]["runId"])
        assert task["status"]["state"] == "working" and not sending.done()
        closed.opened.set()
        async with asyncio.timeout(TIMEOUT_S):
            reply = await sending
    last = reply[-1] if isinstance(reply, list) else reply
    assert last["status"]["state"] == "input-required" and said(last) == ["Why?"]


async def test_run_of_given_id_is_task_of_that_id(caller: Caller) -> None:
    await stored(caller.api, "pay_then_ask", tools=TOOLS)
    reply = await caller.api.post("agent-runs", {"agentId": "helper", "prompt": "go", "runId": "invoice-7"})
    assert reply.status == 202, reply.body
    async with caller.api.stream("invoice-7") as stream:
        await stream.until("await_opened")
    task = await caller.get("invoice-7")
    assert (task["id"], task["status"]["state"]) == ("invoice-7", "input-required")
    assert said(await caller.send("rather not", taskId="invoice-7")) == ["Then what?"]
    ended = await caller.send("nothing", taskId="invoice-7")
    assert (ended["id"], answer(ended)) == ("invoice-7", "go | rather not")


@pytest.mark.parametrize("method", ["send", "stream"])
async def test_message_that_steers_a_waiting_task_returns_its_outcome(caller: Caller, method: str) -> None:
    task = await asked_by(caller, "pay_then_ask")
    assert said(task)[0] == "Pay 5 to Ann?" and "does not approve" in said(task)[1]
    message = caller.message("rather not", taskId=task["id"])
    if method == "send":
        task = await caller.call("send", message)
    else:
        *_, task = await caller.events("stream", message)
    assert task["status"]["state"] == "input-required" and said(task) == ["Then what?"]
    ended = await caller.send("nothing", taskId=message["message"]["taskId"])
    assert answer(ended) == "go | rather not"


async def test_every_open_question_is_shown_and_answered_by_its_id(caller: Caller) -> None:
    task = await asked_by(caller, "ask_two")
    assert said(task)[0] == "1. One?\n2. Two?" and "awaitId" in said(task)[1]
    one, two = asked(task)
    assert (one["kind"], one["args"]["question"], two["args"]["question"]) == ("question", "One?", "Two?")
    refused = await caller.error("send", caller.message("both", taskId=task["id"]))
    assert refused["code"] == -32602 and one["awaitId"] in refused["message"] and two["awaitId"] in refused["message"]
    second = [data_part(caller, {"awaitId": two["awaitId"], "value": "2"})]
    message = caller.message(parts=second, taskId=task["id"])
    for _ in range(2):  # the same message twice is one answer
        left = await caller.call("send", message)
        assert left["status"]["state"] == "input-required"
        assert said(left) == ["One?"] and [data["awaitId"] for data in asked(left)] == [one["awaitId"]]
    late = caller.message(parts=second, taskId=task["id"])
    assert (await caller.error("send", late))["code"] == -32602
    ended = await caller.send("1", taskId=task["id"])
    assert answer(ended) == "1 || 2"


async def test_questions_are_answered_together_or_by_id(caller: Caller) -> None:
    task = await asked_by(caller, "ask_two")
    ids = [one["awaitId"] for one in asked(task)]
    unclear = [data_part(caller, {"awaitId": ids[0], "value": "1"}), data_part(caller, {"other": 1})]
    assert (await caller.error("send", caller.message(parts=unclear, taskId=task["id"])))["code"] == -32602
    unknown = [data_part(caller, {"awaitId": "await_9_9_9", "value": "1"})]
    assert (await caller.error("send", caller.message(parts=unknown, taskId=task["id"])))["code"] == -32602
    both = [data_part(caller, {"awaitId": id, "value": "same"}) for id in ids]
    assert answer(await caller.send(parts=both, taskId=task["id"])) == "same || same"
    task = await caller.send("go")
    text = caller.message("two")["message"]["parts"][0]
    beside = [text, data_part(caller, {"awaitId": asked(task)[1]["awaitId"]})]
    left = await caller.send(parts=beside, taskId=task["id"])
    assert said(left) == ["One?"]
    assert answer(await caller.send("one", taskId=task["id"])) == "one || two"


async def test_a_message_answers_the_question_and_leaves_the_approval_open(caller: Caller) -> None:
    task = await asked_by(caller, "ask_and_pay")
    assert said(task)[0] == "1. Pay 1 to Ann?\n2. Why?" and "answers number 2" in said(task)[1]
    left = await caller.send("because", taskId=task["id"])
    assert said(left)[0] == "Pay 1 to Ann?"
    (confirm,) = asked(left)
    assert (confirm["kind"], confirm["args"]) == ("confirm", PAYMENT)
    approves = [data_part(caller, {"awaitId": confirm["awaitId"], "value": "yes"})]
    assert (await caller.error("send", caller.message(parts=approves, taskId=task["id"])))["code"] == -32602
    ended = await caller.send("yes", taskId=task["id"])
    first, second, third = answer(ended).split(" || ")
    assert first.startswith("Skipped") and (second, third) == ("because", "echo said")


@pytest.mark.parametrize(
    ("value", "heard"), [(["a", "b"], "a\nb"), ({"value": ["a", "b"]}, "a\nb"), ("c", "c"), ({"value": "c"}, "c")]
)
async def test_options_can_be_chosen_with_data(caller: Caller, value: Any, heard: str) -> None:
    task = await asked_by(caller, "ask_several")
    (question,) = asked(task)
    assert question["multiple"] is True and question["options"] == ["a", "b", "c"]
    assert said(task)[0].endswith("(a / b / c)") and said(task)[1] == prompts.people.A2A_CHOICES
    text = {"text": "a, b"} if caller.newer else {"kind": "text", "text": "a, b"}
    for part in (data_part(caller, ["a", "d"]), text):
        wrong = caller.message(parts=[part], taskId=task["id"])
        refused = (await caller.error("send", wrong))["message"]
        assert "must be some of 'a', 'b', 'c', in a list. Several can be chosen, with data such as" in refused
    ended = await caller.send(parts=[data_part(caller, value)], taskId=task["id"])
    assert answer(ended) == f"heard {heard}"


async def test_a_message_about_a_plan_is_a_comment(caller: Caller) -> None:
    task = await asked_by(caller, "plan")
    assert "comment" in said(task)[1]
    ended = await caller.send("looks good", taskId=task["id"])
    assert "but said: looks good" in answer(ended)


async def test_the_history_has_questions_and_answers(caller: Caller) -> None:
    task = await asked_by(caller, "ask_two")
    await caller.send(
        parts=[data_part(caller, {"awaitId": asked(task)[1]["awaitId"], "value": ["x", 2]})], taskId=task["id"]
    )
    await caller.send("first", taskId=task["id"])
    history = (await caller.get(task["id"]))["history"]
    assert texts(history) == [
        "user: go",
        "agent: One?",
        "agent: Two?",
        'user: ["x",2]',
        "user: first",
        'agent: first || ["x",2]',
    ]
    assert history[1]["parts"][1]["data"]["awaitId"] == asked(task)[0]["awaitId"]
    assert len({one["messageId"] for one in history}) == len(history)


async def test_the_history_has_what_was_decided_elsewhere(caller: Caller) -> None:
    task = await asked_by(caller, "pay_twice")
    async with caller.api.stream(task["id"]) as stream:
        for said_so in ({"outcome": "approved"}, {"outcome": "denied", "reason": "too much"}):
            opened = await stream.until("await_opened")
            await caller.api.post(f"agent-runs/{task['id']}/awaits/{opened['awaitId']}", said_so)
        await stream.rest()
    assert texts((await caller.get(task["id"]))["history"])[:-1] == [
        "user: go",
        "agent: Pay 5 to Ann?",
        "user: Approved.",
        "agent: Pay 6 to Ann?",
        "user: Denied: too much",
    ]


async def test_a_subscriber_sees_what_is_still_asked(caller: Caller) -> None:
    task = await asked_by(caller, "ask_two")
    one, two = asked(task)
    async with subscribed(caller, task["id"]) as events:
        assert asked(await anext(events)) == [one, two]
        part = data_part(caller, {"awaitId": one["awaitId"], "value": "1"})
        await caller.call("send", caller.message(parts=[part], taskId=task["id"]))
        async for event in events:
            if event["status"]["state"] == "input-required":
                assert asked(event) == [two]
                break
        await caller.call("cancel", {"id": task["id"]})
        assert [event["status"]["state"] async for event in events][-1] == "canceled"
