"""What the agents below an agent ask is asked by its A2A task: shown, waited for and answered there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, asgi, ask_user, tool
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

from ..hosted.a2a_calls import Caller, answer
from ..hosted.test_a2a_asking import asked, data_part, said
from ..kit import TIMEOUT_S, Api, Json, check_error
from .test_mounted import joined, listening

pytestmark = pytest.mark.requirement("wire.a2a.send", "wire.a2a.tasks")


class Beside:
    """A tool that a test lets end."""

    def __init__(self) -> None:
        self.begun, self.free = asyncio.Event(), asyncio.Event()


@tool(effect="once", confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


@tool(effect="read")
def note() -> str:
    """Takes a note."""
    return "noted"


@tool(effect="once", external=True, description="Somebody else fetches it.")
def fetch(number: int) -> str: ...


def team(beside: Beside) -> list[Agent]:
    @tool(effect="read", concurrent=True)
    async def look() -> str:
        """Looks."""
        beside.begun.set()
        await beside.free.wait()
        return "seen"

    colour = calls("ask_user", question="Which colour?", options=["red", "blue"])
    child = Agent(ScriptedModel([colour, "{{tool_results.0}}"]), name="child", tools=[ask_user])
    asks, below = child.as_tool("Asks."), ("child", {"task": "Ask."})
    mid = Agent(ScriptedModel([calls("child", task="Ask."), "{{tool_results.0}}"]), name="mid", tools=[asks])
    payer = Agent(ScriptedModel([calls("pay", amount=5), "{{tool_results.0}}"]), name="payer", tools=[pay])
    every, both = "{{all_tool_results}} / {{user_messages}}", calls(below, ("ask_user", {"question": "Why?"}))
    twice = calls(("pay", {"amount": 1}))
    notes: list[tuple[str, dict[str, object]]] = [("note", {})] * 120
    return [
        Agent(ScriptedModel([calls("mid", task="Ask."), every]), name="top", tools=[mid.as_tool("Knows.")]),
        Agent(ScriptedModel([both, every]), name="both", tools=[asks, ask_user]),
        Agent(ScriptedModel([calls("payer", task="Pay."), every]), name="shop", tools=[payer.as_tool("Pays.")]),
        Agent(ScriptedModel([calls(below, ("look", {})), every]), name="busy", tools=[asks, look]),
        Agent(ScriptedModel([calls("fetch", number=1), every]), name="outside", tools=[fetch]),
        Agent(ScriptedModel([calls(*notes), "Noted."]), name="busybody", tools=[note]),
        Agent(ScriptedModel([twice, twice, every]), name="strict", tools=[pay], limits=Limits(four_eyes=True)),
    ]


@pytest.fixture
def beside() -> Beside:
    return Beside()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def url(store: Path, beside: Beside) -> AsyncGenerator[str]:
    async with listening(asgi(Engine(store, agents=team(beside), models=Catalog()))) as address:
        yield address


@pytest.fixture
async def api(url: str, store: Path) -> AsyncGenerator[Api]:
    async with joined(url, store) as client:
        yield client


@pytest.fixture(params=["0.3", "1.0"])
def caller(request: pytest.FixtureRequest, api: Api) -> Caller:
    return Caller(api, request.param)


async def last(caller: Caller, method: str, params: Any) -> Json:
    async with asyncio.timeout(TIMEOUT_S):
        return (await caller.events("stream", params))[-1] if method == "stream" else await caller.call("send", params)


@pytest.mark.parametrize("method", ["send", "stream"])
async def test_message_answers_a_question_two_runs_below_once(caller: Caller, method: str) -> None:
    top = caller.of("top")
    task = await last(top, method, top.message("Go."))
    assert task["status"]["state"] == "input-required" and said(task) == ["Which colour? (red / blue)"]
    id = task.get("taskId") or task["id"]
    run, _, name = asked(task)[0]["awaitId"].partition("/")
    assert name == "await_0_0_1" and run != id
    refused = await top.error("send", top.message("green", taskId=id))
    assert refused["code"] == -32602 and "'red', 'blue'" in refused["message"]
    message = top.message("blue", taskId=id)
    for _ in range(2):
        await last(top, method, message)
        ended = await top.get(id)
        assert ended["status"]["state"] == "completed" and answer(ended) == "blue / Go."


async def test_questions_of_several_runs_are_told_apart_by_their_ids(caller: Caller) -> None:
    both, other = caller.of("both"), caller.of("top")
    task = await both.send("Go.")
    parts = {one["args"]["question"]: one["awaitId"] for one in asked(task)}
    assert sorted(parts) == ["Which colour?", "Why?"] and "/" not in parts["Why?"]
    assert (await both.error("send", both.message("blue", taskId=task["id"])))["code"] == -32602
    elsewhere = await other.send("Go.")
    for name in (asked(elsewhere)[0]["awaitId"], "run_1/await_0_0_1", f"{task['id']}/await_0_0_1"):
        part = data_part(both, {"awaitId": name, "value": "blue"})
        refused = await both.error("send", both.message(parts=[part], taskId=task["id"]))
        assert refused["code"] == -32602, refused
    part = data_part(both, {"awaitId": parts["Which colour?"], "value": "blue"})
    left = await both.send(parts=[part], taskId=task["id"])
    assert left["status"]["state"] == "input-required" and said(left) == ["Why?"]
    assert answer(await both.send("so", taskId=task["id"])) == "blue || so / Go."


async def test_call_below_is_approved_elsewhere_and_message_waits_for_that(caller: Caller) -> None:
    shop = caller.of("shop")
    task = await shop.send("Go.")
    assert said(task)[0] == "Pay 5?" and "on the server" in said(task)[1]
    waiting = await shop.send("Thanks.", taskId=task["id"])
    assert waiting["status"]["state"] == "input-required" and said(waiting)[0] == "Pay 5?"
    name = asked(task)[0]["awaitId"]
    part = data_part(shop, {"awaitId": name, "value": "yes"})
    assert (await shop.error("send", shop.message(parts=[part], taskId=task["id"])))["code"] == -32602
    run, _, id = name.partition("/")
    approved = await shop.api.post(f"agent-runs/{run}/awaits/{id}", {"outcome": "approved"})
    assert approved.status == 200, approved.body
    await shop.api.events(task["id"])
    assert answer(await shop.get(task["id"])) == "paid 5 / Go. | Thanks."


@pytest.mark.parametrize("method", ["send", "stream"])
async def test_task_does_not_wait_while_its_run_works(caller: Caller, beside: Beside, method: str) -> None:
    busy = caller.of("busy")
    sending = asyncio.ensure_future(last(busy, method, busy.message("Go.")))
    async with asyncio.timeout(TIMEOUT_S):
        await beside.begun.wait()
        while not (open_ := (await caller.api.get("awaits")).json["awaits"]):
            pass
        task = await busy.get(open_[0]["rootRunId"])
        assert task["status"]["state"] == "working" and not sending.done()
        beside.free.set()
        shown = await sending
    assert shown["status"]["state"] == "input-required" and said(shown) == ["Which colour? (red / blue)"]


async def test_whoever_steers_task_may_not_approve_what_it_does_then(url: str, store: Path) -> None:
    async with joined(url, store) as ann, joined(url, store) as bob, joined(url, store) as eve:
        strict = Caller(ann, "1.0", "strict")
        task = await strict.send("Go.")
        assert said(await strict.of("strict", bob).send("Pay again.", taskId=task["id"])) != []
        (open_,) = (await ann.get(f"awaits?runId={task['id']}")).json["awaits"]
        where = f"agent-runs/{task['id']}/awaits/{open_['id']}"
        assert open_["id"].startswith("await_1_")
        for who in (ann, bob):
            check_error(await who.post(where, {"outcome": "approved"}), 403, "four_eyes")
        assert (await eve.post(where, {"outcome": "approved"})).status == 200


async def test_message_does_not_say_what_became_of_call_in_doubt(store: Path) -> None:
    begun = asyncio.Event()

    @tool(effect="once")
    async def launch() -> str:
        """Launches."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    script = ScriptedModel([calls("launch"), "{{all_tool_results}}"])
    risky = Agent(script, name="risky", tools=[launch], limits=Limits(in_doubt="ask"))
    cut = Engine(store, agents=[risky], models=Catalog(), drain_s=0.05)
    async with listening(asgi(cut)) as url, joined(url, store) as api:
        first = Caller(api, "1.0", "risky")
        id = (await first.send("Go.", config=first.at_once))["id"]
        async with asyncio.timeout(TIMEOUT_S):
            await begun.wait()
    async with listening(asgi(Engine(store, agents=[risky], models=Catalog()))) as url, joined(url, store) as api:
        second = Caller(api, "1.0", "risky")
        *_, task = await second.events("stream", second.message("Well?", taskId=id))
        (doubt,) = asked(task)
        part = data_part(second, {"awaitId": doubt["awaitId"], "value": "It flew."})
        refused = await second.error("send", second.message(parts=[part], taskId=id))
        assert doubt["kind"] == "doubt" and refused["code"] == -32602 and "on the server" in refused["message"]
        where = f"agent-runs/{id}/awaits/{doubt['awaitId']}"
        assert (await api.post(where, {"outcome": "answered", "value": "It flew."})).status == 200
        await api.events(id)
        assert answer(await second.get(id)) == "It flew."


async def test_call_of_external_tool_is_question_that_next_message_answers(caller: Caller) -> None:
    outside = caller.of("outside")
    task = await outside.send("Please.")
    assert task["status"]["state"] == "input-required"
    assert task["status"]["message"]["parts"][0]["text"] == 'fetch {"number":1}'
    ended = await outside.send("fetched", taskId=task["id"])
    assert ended["status"]["state"] == "completed" and "fetched" in answer(ended)


async def test_many_calls_push_no_message_out_of_the_history(caller: Caller) -> None:
    task = await caller.of("busybody").send("Go.")
    history = (await caller.of("busybody").get(task["id"], historyLength=50))["history"]
    assert [one["parts"][0]["text"] for one in history] == ["Go.", "Noted."]
