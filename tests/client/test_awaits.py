"""People in runs, from the client: what is asked, and what they say."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.json import decode, encode

from weftline.client import AsyncClient, AsyncRun, BadRequest, BudgetLimit, Client, Conflict, NotFound, server_tool
from weftline.events import AwaitClosed, AwaitOpened, CallOpened, MessagesTaken, RunPaused, RunResumed

TOOLS = [server_tool("ask_user"), server_tool("present_plan")]


async def asked(run: AsyncRun) -> AwaitOpened:
    async with asyncio.timeout(60):
        async for event in run.events():
            if isinstance(event, AwaitOpened):
                return event
    raise AssertionError("it asked nothing")


async def offered(run: AsyncRun) -> CallOpened:
    async with asyncio.timeout(60):
        async for event in run.events():
            if isinstance(event, CallOpened):
                return event
    raise AssertionError("it called nothing")


async def test_a_question_is_seen_listed_and_answered(client: AsyncClient) -> None:
    async with await client.start("hi", model_id="scripted:ask", tools=TOOLS) as run:
        event = await asked(run)
        assert (event.kind, event.question, event.options) == ("question", "Which one?", ("red", "blue"))
        (question,) = await run.awaits()
        assert (question.id, question.run_id, question.root_run_id) == (event.id, run.id, run.id)
        assert (question.question, question.name, question.options) == ("Which one?", "ask_user", ("red", "blue"))
        assert question.opened_at is not None and question.expires_at is None
        later = datetime.now(UTC) + timedelta(hours=1)
        assert (await client.awaits(run_id=run.id, kind="question", waiting_since=later)).items == (question,)
        assert (await client.awaits(run_id=run.id, name="pay")).items == ()
        with pytest.raises(BadRequest, match="must be one of 'red', 'blue'"):
            await run.answer(event.id, "green")
        with pytest.raises(BadRequest, match="a question cannot be approved"):
            await run.approve(event.id)
        with pytest.raises(NotFound):
            await run.deny("await_9_9")
        answered = await run.answer(event.id, "blue")
        assert answered.outcome == "answered" and answered.by.startswith("key:")
        result = await run.result()
        assert result.text == "heard blue"
        (closed,) = [one for one in [frame.event for frame in result.frames] if isinstance(one, AwaitClosed)]
        assert (closed.id, closed.outcome, closed.by) == (event.id, "answered", answered.by)
        with pytest.raises(Conflict):
            await client.answer_await(run.id, event.id, "answered", value="red")


async def test_a_run_goes_on_when_its_limit_is_raised(client: AsyncClient) -> None:
    async with await client.start(
        "hi", model_id="scripted:plan", tools=TOOLS, budget={"tokens": 1, "onExceeded": "ask"}
    ) as run:
        assert (await asked(run)).kind == "budget"
        budget = await client.budgets.set("run", run.id, limits=[BudgetLimit("tokens", 100_000)])
        assert (budget.level, budget.id, budget.limits[0].limit) == ("run", run.id, 100_000)
        async for event in run.events():
            if isinstance(event, AwaitClosed):
                assert (event.outcome, event.by) == ("approved", budget.limits[0].set_by)
                break
        await run.cancel()


async def test_run_is_paused_and_resumed_with_words_for_model(client: AsyncClient) -> None:
    async with await client.start("hi", model_id="scripted:plan", tools=TOOLS) as run:
        event = await asked(run)
        await run.pause("lunch", labels={"ticket": "7"})
        await client.answer_await(run.id, event.id, "denied", reason="Not yet.")
        await run.resume("back", messages=["Be quick."])
        result = await run.result()
    seen = [frame.event for frame in result.frames]
    (paused,) = [one for one in seen if isinstance(one, RunPaused)]
    assert (paused.reason, paused.labels) == ("lunch", {"ticket": "7"}) and paused.by.startswith("key:")
    (resumed,) = [one for one in seen if isinstance(one, RunResumed)]
    assert (resumed.notes, resumed.message_count) == ("back", 1)
    assert [one.texts for one in seen if isinstance(one, MessagesTaken)] == [("Be quick.",)]
    assert "Not yet." in result.text


async def test_message_of_client_steers_run_and_another_follows_up(client: AsyncClient) -> None:
    async with await client.start("hi", model_id="scripted:plan", tools=TOOLS) as run:
        await asked(run)
        later = await run.follow_up("And then?")
        assert later != await run.steer("Forget the plan.", labels={"ticket": "7"})
        result = await run.result()
    taken = [one.texts for one in [frame.event for frame in result.frames] if isinstance(one, MessagesTaken)]
    assert taken == [("Forget the plan.",), ("And then?",)]
    with pytest.raises(Conflict):
        await run.steer("Too late.")


def test_without_async_it_is_the_same(sync_client: Client) -> None:
    with sync_client.start("hi", model_id="scripted:plan", tools=TOOLS) as run:
        event = next(one for one in run.events() if isinstance(one, AwaitOpened))
        assert [one.id for one in sync_client.awaits(run_id=run.id).items] == [one.id for one in run.awaits()]
        run.pause("lunch")
        run.resume("back")
        assert run.follow_up("And then?")
        assert run.approve(event.id).outcome == "approved"
        assert "approved" in run.result().text


async def test_the_calls_of_a_turn_are_answered_together(client: AsyncClient) -> None:
    ref = {"kind": "local", "name": "lookup"}
    body = encode({"prompt": "hi", "modelId": "scripted:lookup", "tools": [ref]})
    run_id = decode(await client.http.call("POST", "/agent-runs", body=body))["runId"]
    run = await client.attach(run_id)
    call = await offered(run)
    with pytest.raises(BadRequest, match="give a result for each call"):
        await client.provide(run.id, "external_0", [])
    await client.provide(run.id, "external_0", [{"toolUseId": call.call_id, "result": 7}])
    assert (await run.result()).text == "It is 7."
