"""Durable runs: they outlive whoever started them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from agent.kit import workspace_of
from weftline import Agent, Engine, ToolContext, WeftlineError, details, events, hook, tool
from weftline.agent.engine.starting import Models
from weftline.errors import Conflict, NotFound, StoreError
from weftline.hooks import MessagesTaken, RunStarted
from weftline.messages import Assistant, User
from weftline.providers.catalog import Catalog
from weftline.store.rows import RunFilter
from weftline.testing import ScriptedModel, calls


def catalog(model: ScriptedModel) -> Catalog:
    models = Catalog()
    models.add(model, name="lab")
    return models


async def test_run_is_found_again_by_id_and_key(tmp_path: Path) -> None:
    model = ScriptedModel(['{"value": 7}'])
    agent = Agent("lab:script", name="billing", output=int)
    async with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        run = await engine.start(agent, "Migrate.", key="migrate-1")
        assert (await run.result()).output == 7
        again = await engine.start(agent, "Migrate.", key="migrate-1")
        assert again.id == run.id
        assert (await engine.attach(run.id, agent).result()).output == 7
        with pytest.raises(Conflict):
            await engine.start(agent, "Something else.", key="migrate-1")
    assert len(model.requests) == 1


@pytest.mark.parametrize("durable", [True, False])
async def test_events_tools_and_questions_name_agent_as_it_is_named(durable: bool, tmp_path: Path) -> None:
    seen: list[str | None] = []

    @tool(confirm="Look?")
    async def look(context: ToolContext) -> str:
        """Looks."""
        seen.append(context.agent_id)
        return "seen"

    agent = Agent("lab:script", name="shop", tools=[look])
    models = catalog(ScriptedModel([calls("look"), "Done."] * 2))
    async with Engine(tmp_path if durable else None, agents=[agent], models=models) as engine:
        for _ in range(2):  # in memory each run has code of its own
            run = await engine.start(agent, "Go.")
            async for event in run.events(profile="all"):
                if isinstance(event, events.RunStarted | details.AwaitConfirmation):
                    seen.append(event.agent)
                if isinstance(event, details.AwaitConfirmation):
                    seen += [one.agent for one in await engine.awaits()]
                    await run.approve(event.id, by="ann")
            seen.append((await run.snapshot()).agent)
    assert seen == ["shop"] * 10


async def test_run_goes_on_in_next_process_by_its_agents_name(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @tool(effect="idempotent", name="pay")
    async def hangs(amount: int) -> str:
        """Pays."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    first = Agent("lab:script", name="billing", tools=[hangs])
    model = ScriptedModel([calls("pay", amount=5), "Paid."])
    async with Engine(tmp_path, agents=[first], models=catalog(model), drain_s=0) as engine:
        run = await engine.start(first, "Pay.")
        await begun.wait()

    @tool(effect="idempotent")
    def pay(amount: int) -> str:
        """Pays."""
        return f"Paid {amount}."

    today = Agent("lab:script", name="billing", tools=[pay], instructions="Other instructions.")
    async with Engine(tmp_path, agents=[today], models=catalog(model)) as engine:
        result = await engine.attach(run.id, today).result()
    assert [call.result for call in result.calls] == ["Paid 5."]
    assert result.text == "Paid."
    assert [request.system for request in model.requests] == [None, "Other instructions."]


async def test_attaching_with_a_wrong_id_or_agent_is_reported() -> None:
    words, number = Agent("lab:script", name="words"), Agent("lab:script", name="number", output=int)
    async with Engine(agents=[words, number], models=catalog(ScriptedModel(["Hello."]))) as engine:
        run = await engine.start(words, "Hi!")
        assert (await run.result()).text == "Hello."
        with pytest.raises(Conflict, match=f"The answer of {run.id} does not fit the output type of the agent"):
            await engine.attach(run.id, number).result()
        with pytest.raises(NotFound, match="There is no run 'run_ffff' in this engine"):
            await engine.attach("run_ffff").result()


async def test_run_of_a_missing_agent_waits_and_can_be_cancelled(tmp_path: Path) -> None:
    begun = asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Waits."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    model = ScriptedModel([calls("wait"), "Done."])
    agent = Agent("lab:script", name="billing", tools=[wait])
    async with Engine(tmp_path, agents=[agent], models=catalog(model), drain_s=0) as engine:
        run = await engine.start(agent, "Go.")
        other = await engine.start(agent, "Go.")
        await begun.wait()
    async with Engine(tmp_path, models=catalog(model)) as engine:
        assert sorted(await engine.unclaimed()) == sorted([run.id, other.id])
        await engine.attach(other.id).cancel()
        assert (await engine.attach(other.id).result()).status == "cancelled"
        assert await engine.unclaimed() == [run.id]

    @tool(effect="read", name="wait")
    def quick() -> str:
        """Does not wait."""
        return "ok"

    agent = Agent("lab:script", name="billing", tools=[quick])
    async with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        assert (await engine.attach(run.id).result()).text == "Done."
        assert await engine.unclaimed() == []


async def test_runs_of_a_thread_share_a_conversation(tmp_path: Path) -> None:
    model = ScriptedModel(["One."])
    agent = Agent("lab:script", name="support")
    async with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        await agent.run("First?", thread="customer-42", engine=engine)
        second = await agent.run("Second?", thread="customer-42", engine=engine)
        messages = await engine.thread("customer-42").messages()
    texts = [message.text for message in messages if isinstance(message, User | Assistant)]
    assert texts == ["First?", "One.", "Second?", "One."]
    assert len(model.requests[1].messages) == 3
    assert len(second.messages) == 4
    assert len(second.new_messages) == 2


@pytest.mark.requirement("loop.thread.saved")
@pytest.mark.parametrize("durable", [False, True])
async def test_thread_keeps_calls_and_results_for_runs_after_it(tmp_path: Path, *, durable: bool) -> None:
    @tool(effect="read", blocking=False)
    def look() -> str:
        """Looks."""
        return "4711"

    model = ScriptedModel([calls("look"), "I looked."])
    agent = Agent(model, name="support", tools=[look])
    async with Engine(tmp_path if durable else None, agents=[agent]) as engine:
        first = await agent.run("Look it up.", thread="t", engine=engine)
        assert await engine.thread("t").messages() == list(first.messages)
        second = await agent.run("What was it?", thread="t", engine=engine)
        assert await engine.thread("t").messages() == list(second.messages)
    assert [type(message).__name__ for message in first.messages] == ["User", "Assistant", "ToolResults", "Assistant"]
    assert list(model.requests[2].messages) == [*first.messages, User.of("What was it?")]
    ids = [call.id for message in second.messages if isinstance(message, Assistant) for call in message.calls]
    assert len(set(ids)) == len(ids) == 2, "calls of different runs can be told apart"


async def test_leaving_a_durable_run_only_stops_watching(tmp_path: Path) -> None:
    model = ScriptedModel([{"text": "Done.", "delay_ms": 50}])
    agent = Agent("lab:script", name="slow")
    async with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        async with agent.stream("Go.", engine=engine) as run:
            pass
        assert (await run.result()).status == "succeeded"


@hook(RunStarted)
def started(point: RunStarted) -> None:
    """Does nothing."""


@pytest.mark.parametrize(
    ("agent", "options", "words"),
    [
        (Agent("lab:script"), {}, "needs a name"),
        (Agent("lab:script", name="billing"), {"hooks": [started]}, "cannot be given hooks="),
        (Agent("lab:script", name="billing"), {"deps": object()}, "cannot be given deps="),
        (Agent("lab:script", name="typed", deps=str), {}, "give a factory"),
        (Agent("lab:script", name="taken"), {}, "Another agent is registered"),
        (Agent("lab:script", name="billing"), {"thread": "t", "messages": [User.of("hi")]}, "cannot be combined"),
    ],
)
async def test_irresumable_message_is_refused(
    tmp_path: Path, agent: Agent, options: dict[str, Any], words: str
) -> None:
    taken = Agent("lab:script", name="taken")
    async with Engine(tmp_path, agents=[taken], models=catalog(ScriptedModel(["x"]))) as engine:
        with pytest.raises(WeftlineError, match=words):
            await engine.start(agent, "Go.", **options)


async def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(Conflict, match="two agents named 'billing'"):
        Engine(agents=[Agent("m", name="billing"), Agent("m", name="billing")])


async def test_an_engine_that_is_not_open_says_so(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    with pytest.raises(Conflict, match="not open"):
        await engine.start(Agent("m", name="a"), "Go.")


@pytest.mark.requirement("loop.agent.prompt", "loop.hook.run_order")
async def test_a_run_without_a_prompt_goes_on_from_its_thread(tmp_path: Path) -> None:
    model = ScriptedModel(["One.", "Two."])
    agent = Agent("lab:script", name="support")
    seen: list[str] = []
    agent.on(RunStarted)(lambda at: seen.append(at.name))
    agent.on(MessagesTaken)(lambda at: seen.append(at.name))
    async with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        with pytest.raises(WeftlineError, match="has no messages to continue from"):
            await engine.start(agent, thread="t")
        assert await (await engine.runtime()).stored.logs.runs(RunFilter(workspace=await workspace_of(engine))) == []
        assert model.requests == []
        await agent.run("First?", thread="t", engine=engine)
        again = await agent.run(thread="t", engine=engine)
    assert len(again.new_messages) == 1
    assert seen == ["run_started", "messages_taken", "run_started"]
    assert [type(message) for message in model.requests[1].messages] == [User, Assistant]


async def test_a_thread_needs_an_engine() -> None:
    with pytest.raises(WeftlineError, match="needs an engine"):
        await Agent(ScriptedModel(["x"])).run("Go.", thread="t")


async def test_models_that_single_runs_bring_are_forgotten() -> None:
    given = Models(Catalog())
    for number in range(200):
        given.use(ScriptedModel(["Hi."]), by=str(number))
        given.release(str(number))
    sizes = [len(cast("set[object]", one)) for one in vars(given).values() if isinstance(one, set | dict)]
    assert sizes and max(sizes) < 100


async def test_unopenable_engine_leaves_its_store_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(slug: str, *, now: int) -> int:
        raise StoreError("The disk is full.")

    with monkeypatch.context() as patched:
        patched.setattr("weftline.store.records.workspaces.ensure", fails)
        with pytest.raises(StoreError, match="full"):
            async with Engine(tmp_path):
                pass
    async with Engine(tmp_path) as engine:
        assert engine.is_open


async def test_start_that_is_given_up_leaves_store_to_others(tmp_path: Path) -> None:
    agent = Agent("lab:script", name="billing")
    async with Engine(tmp_path, agents=[agent], models=catalog(ScriptedModel(["Done."]))) as engine:
        await (await engine.start(agent, "Go.")).result()
    for turns in range(0, 12, 3):
        opening = asyncio.create_task(Engine(tmp_path).__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        opening.cancel()
        done, _ = await asyncio.wait({opening}, timeout=60)
        assert done
        if not opening.cancelled():
            await opening.result().close()
    async with Engine(tmp_path) as engine:
        assert engine.is_open


async def test_failing_guest_does_not_keep_the_engine_open(tmp_path: Path) -> None:
    @asynccontextmanager
    async def guest() -> AsyncGenerator[None]:
        yield
        raise ValueError("no")

    engine = Engine(tmp_path)
    engine._add_companion(guest)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ValueError, match="no"):
        async with engine:
            pass
    assert not engine.is_open
    async with Engine(tmp_path) as another:
        assert another.is_open
