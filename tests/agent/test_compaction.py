"""Summaries of older messages: when they are made, what requests look like then, and what happens when they fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, RunFailed, WeftlineError, skills, tool
from weftline.behaviors import Behavior, Compaction
from weftline.events import AnyEvent, CallFinished, ContextCompacted, ContextRestored
from weftline.messages import Assistant, Message, ToolResults, User
from weftline.prompts.compaction import SUMMARIZE, summary
from weftline.providers.catalog import Catalog
from weftline.providers.pricing import Price, PriceOverride, Prices
from weftline.runtime.thread_messages import Changes
from weftline.store.records.thread_messages import MessageFilter
from weftline.testing import ScriptedModel, calls
from weftline.tools import Skill

from .kit import injected

PAGE = "It was a dark and stormy night. " * 60
"""About 480 tokens."""
TOO_LONG = {"error": {"class": "context_window", "message": "prompt is too long"}}


@tool(effect="read")
def read(page: int) -> str:
    """Reads a page."""
    return f"Page {page}. {PAGE}"


def reader(*turns: Any, compaction: Compaction, tools: Sequence[Any] = (), **options: Any) -> tuple[Any, ScriptedModel]:
    """An agent that reads pages, and the model that all of these turns come from, summaries too."""
    model = ScriptedModel(list(turns))
    options.setdefault("limits", Limits(loop_soft=0, max_retries=0))
    behavior = Behavior(compaction=compaction)
    return Agent(model, tools=[read, *tools], behavior=behavior, **options), model


def reads(*pages: int) -> list[Any]:
    return [calls("read", page=page) for page in pages]


def asks_for_summary(model: ScriptedModel) -> list[bool]:
    return [request.system == SUMMARIZE for request in model.requests]


def pages_in(messages: Sequence[Message]) -> list[str]:
    results = [one.text for message in messages if isinstance(message, ToolResults) for one in message.results]
    return [text.partition(".")[0] for text in results]


async def test_large_request_has_summary_in_place_of_older_turns() -> None:
    agent, model = reader(
        *reads(1, 2, 3), "Two pages of weather.", "A novel.", compaction=Compaction(at_tokens=1_200, keep_turns=1)
    )
    result = await agent.run("What is it?")
    assert result.text == "A novel."
    assert asks_for_summary(model) == [False, False, False, True, False]
    asked = model.requests[3]
    assert not asked.tools
    transcript = asked.messages[0]
    assert isinstance(transcript, User)
    assert "Page 1." in transcript.text and "Page 2." in transcript.text and "Page 3." not in transcript.text
    last = model.requests[4].messages
    assert pages_in(last) == ["Page 3"]
    assert last[0] == User.of("What is it?")
    assert injected(model.requests[4]) == [summary("Two pages of weather.")]
    assert [type(message) for message in last] == [User, User, Assistant, ToolResults]
    # All that was said is still there, and every model call counts.
    assert pages_in(result.messages) == ["Page 1", "Page 2", "Page 3"]
    assert (result.turns, result.attempts) == (4, 5)
    assert (result.usage.input, result.usage.output) == (50, 25)


@pytest.mark.requirement("run.history.compress")
async def test_a_summary_is_made_after_so_many_turns() -> None:
    turns = [*reads(1, 2, 3), "Weather.", *reads(4), "More weather.", "Done."]
    agent, model = reader(*turns, compaction=Compaction(at_turns=3, keep_turns=2))
    await agent.run("What is it?")
    assert asks_for_summary(model) == [False, False, False, True, False, True, False]
    assert pages_in(model.requests[4].messages) == ["Page 2", "Page 3"]
    assert pages_in(model.requests[-1].messages) == ["Page 3", "Page 4"]
    assert injected(model.requests[-1]) == [summary("More weather.")]


async def test_later_turns_and_summaries_build_on_the_summary() -> None:
    compaction = Compaction(at_tokens=1_200, keep_turns=1)
    agent, model = reader(*reads(1, 2, 3), "First.", *reads(4, 5), "Second.", "Done.", compaction=compaction)
    await agent.run("What is it?")
    assert asks_for_summary(model) == [False, False, False, True, False, False, True, False]
    assert pages_in(model.requests[5].messages) == ["Page 3", "Page 4"]
    again = model.requests[6].messages[0]
    assert isinstance(again, User)
    assert "Summary of what came before: First." in again.text
    assert "Page 3." in again.text and "Page 1." not in again.text
    assert pages_in(model.requests[7].messages) == ["Page 5"]
    assert injected(model.requests[7]) == [summary("Second.")]


async def test_refused_request_is_made_shorter_and_run_goes_on() -> None:
    agent, model = reader(*reads(1, 2, 3), TOO_LONG, "Weather.", "A novel.", compaction=Compaction(keep_turns=9))
    result = await agent.run("What is it?")
    assert result.text == "A novel."
    assert asks_for_summary(model) == [False, False, False, False, True, False]
    assert pages_in(model.requests[3].messages) == ["Page 1", "Page 2", "Page 3"]
    assert pages_in(model.requests[5].messages) == ["Page 3"], "as few turns as it takes to be half as long"
    transcript = model.requests[4].messages[0]
    assert isinstance(transcript, User)
    assert len(transcript.text) < len(PAGE) * 2, "less is read than was refused"


@pytest.mark.parametrize("allowed", [True, False])
async def test_overlong_stay_fails_the_run_with_its_own_error(allowed: bool) -> None:
    turns = [*reads(1), TOO_LONG, *(["Weather."] if allowed else []), TOO_LONG]
    agent, model = reader(*turns, compaction=Compaction(keep_turns=0))
    if not allowed:
        agent.behavior = Behavior()
    with pytest.raises(RunFailed) as failed:
        await agent.run("What is it?")
    assert failed.value.code == "context_window"
    assert asks_for_summary(model).count(True) == allowed


@pytest.mark.requirement("run.history.compress_kept")
@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"class": "auth"}},
        "",
        "It was a long story. " * 900,
        {"text": "It", "finish_reason": "max_tokens"},
        {"text": "I cannot help with that.", "finish_reason": "refusal"},
    ],
)
async def test_useless_summary_changes_nothing(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    compaction = Compaction(at_tokens=4_000, keep_turns=1)
    turns = [*reads(*range(1, 9)), answer, *reads(9), "Done."]
    agent, model = reader(*turns, compaction=compaction)
    with caplog.at_level(logging.WARNING):
        result = await agent.run("What is it?")
    assert result.text == "Done."
    assert asks_for_summary(model).count(True) == 1
    assert len(pages_in(model.requests[-1].messages)) == 9
    assert "could not be summarized" in caplog.text


def catalog(prices: Prices | None = None, **models: ScriptedModel) -> Catalog:
    made = Catalog(prices=prices)
    for name, model in models.items():
        made.add(model, name=name)
    return made


async def test_a_cheaper_model_writes_the_summary_and_its_price_counts(tmp_path: Path) -> None:
    lab, cheap = ScriptedModel([*reads(1, 2), "Done."]), ScriptedModel(["Weather."])
    prices = Prices(
        [
            PriceOverride("lab", "script", Price(input_per_1m_usd=1_000.0, output_per_1m_usd=0.0)),
            PriceOverride("cheap", "script", Price(input_per_1m_usd=10.0, output_per_1m_usd=0.0)),
        ]
    )
    behavior = Behavior(compaction=Compaction(at_tokens=700, keep_turns=1, model="cheap:script"))
    agent = Agent("lab:script", name="reader", tools=[read], behavior=behavior)
    async with Engine(tmp_path, agents=[agent], models=catalog(prices, lab=lab, cheap=cheap)) as engine:
        run = await engine.start(agent, "What is it?")
        found = [event async for event in run if isinstance(event, ContextCompacted)]
        result = await run.result()
        with pytest.raises(WeftlineError, match="gone"):
            await engine.start(agent, "?", behavior=Behavior(compaction=Compaction(model="cheap:gone")))
    assert [event.model for event in found] == ["cheap:script"]
    assert (asks_for_summary(cheap), asks_for_summary(lab)) == ([True], [False] * 3)
    assert found[0].cost_usd == pytest.approx(10 * 10 / 1e6)
    assert result.cost_usd == pytest.approx((3 * 10 * 1_000 + 10 * 10) / 1e6)


@pytest.mark.requirement("run.history.compress_kept")
async def test_the_next_run_of_a_thread_starts_from_the_summary(tmp_path: Path) -> None:
    lab, short, cheap = ScriptedModel([PAGE]), ScriptedModel(["Yes."]), ScriptedModel(["Weather."])
    models = catalog(lab=lab, short=short, cheap=cheap)
    behavior = Behavior(compaction=Compaction(at_tokens=700, keep_turns=1, model="cheap:script"))
    agent = Agent("lab:script", name="chat", behavior=behavior)
    async with Engine(tmp_path, agents=[agent], models=models) as engine:
        for number in (1, 2):
            await agent.run(f"Question {number}?", thread="t", engine=engine)
        await agent.run("Question 3?", thread="t", engine=engine, model="short:script")
        assert said_in(short.requests[-1]) == ["Question 1?", summary("Weather."), "Question 2?", "Question 3?"]
    async with Engine(tmp_path, agents=[agent], models=models) as engine:  # after a restart
        for number in (4, 5):
            seen = await events_of(engine, agent, f"Question {number}?")
            assert [event.inherited for event in seen if isinstance(event, ContextCompacted)] == [True]
            assert said_in(short.requests[-1])[:3] == ["Question 1?", summary("Weather."), "Question 2?"]
        assert len(cheap.requests) == 1, "it is made once"
        assert len(await engine.thread("t").messages()) == 10, "the thread itself stays whole"


def said_in(request: Any) -> list[str]:
    return [message.text for message in request.messages if isinstance(message, User)]


async def events_of(engine: Engine, agent: Any, prompt: str) -> list[AnyEvent]:
    run = await engine.start(agent, prompt, thread="t", model="short:script")
    return [event async for event in run]


async def test_a_summary_is_taken_back_while_the_run_goes_on(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await go_on.wait()
        return "Waited."

    lab, cheap = ScriptedModel([*reads(1, 2), "", calls("wait"), "Done."]), ScriptedModel(["Weather."])
    behavior = Behavior(compaction=Compaction(at_tokens=700, keep_turns=1, model="cheap:script"))
    agent = Agent("lab:script", name="reader", tools=[read, wait], behavior=behavior)
    async with Engine(tmp_path, agents=[agent], models=catalog(lab=lab, cheap=cheap)) as engine:
        run = await engine.start(agent, "What is it?", thread="t")
        await begun.wait()
        assert await run.restore_context(by="ops")
        assert not await run.restore_context(), "there is nothing left to take back"
        go_on.set()
        events = [event async for event in run]
        assert [event.by for event in events if isinstance(event, ContextRestored)] == ["ops"]
        await run.result()
        after = await engine.start(agent, "And?", thread="t", model="cheap:script")
        made = [event async for event in after if isinstance(event, ContextCompacted)]
        assert [event.inherited for event in made] == [False], "nor for the next run, which makes one of its own"
    assert [pages_in(request.messages) for request in lab.requests[2:]] == [["Page 2"], ["Page 1", "Page 2", "Waited"]]


async def test_next_run_of_thread_takes_over_summary_of_work_before() -> None:
    behavior = Behavior(compaction=Compaction(at_tokens=700, keep_turns=1))
    agent = Agent("lab:script", name="reader", tools=[read], behavior=behavior)
    async with Engine(agents=[agent]) as engine:
        with agent.override(model=ScriptedModel([*reads(1, 2), "Weather.", "Done."])):
            await agent.run("What is it?", thread="t", engine=engine)
        model = ScriptedModel(["Yes."])
        with agent.override(model=model):
            await agent.run("Sure?", thread="t", engine=engine)
        assert pages_in(await engine.thread("t").messages()) == ["Page 1", "Page 2"], "the thread itself stays whole"
    assert injected(model.requests[0]) == [summary("Weather.")]
    assert pages_in(model.requests[0].messages) == ["Page 2"]


@pytest.mark.requirement("thread.message.edit_summary")
@pytest.mark.parametrize("during", [False, True])
async def test_no_request_has_the_summary_of_a_message_that_was_edited(during: bool) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await go_on.wait()
        return "Waited"

    behavior = Behavior(compaction=Compaction(at_tokens=700, keep_turns=1, model="cheap:script"))
    agent = Agent("lab:script", name="reader", tools=[read, wait], behavior=behavior)
    lab = ScriptedModel([*reads(1, 2), "", calls("wait"), "Done.", "Yes.", "Again."])
    cheap = ScriptedModel([f"Summary {number}." for number in range(9)])
    async with Engine(agents=[agent], models=catalog(lab=lab, cheap=cheap)) as engine:
        run = await engine.start(agent, "What is it?", thread="t")
        await begun.wait()
        host, key = await engine.runtime(), await engine.thread("t").key()

        async def edit(place: int) -> None:
            rows, _ = await host.messages.page(MessageFilter(thread=key))
            await host.messages.update(key, rows[place].name, Changes(text="What is that?"))

        if during:
            await edit(0)
        go_on.set()
        await run.result()
        if not during:
            await edit(0)
        covered = len(lab.requests)
        await agent.run("Sure?", thread="t", engine=engine)
        stored = await engine.thread("t").messages()
    after = lab.requests[-2:] if during else lab.requests[covered:]
    [written] = injected(lab.requests[2])
    assert written.endswith(".") and all(written not in injected(one) for one in after)
    assert pages_in(stored)[:2] == ["Page 1", "Page 2"] and isinstance(stored[0], User)
    assert stored[0].text == "What is that?"


async def test_a_summary_is_there_after_a_restart(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await go_on.wait()
        return "Waited."

    lab, cheap = ScriptedModel([*reads(1, 2), "", calls("wait"), "Done."]), ScriptedModel(["Weather."])
    behavior = Behavior(compaction=Compaction(at_tokens=700, keep_turns=1, model="cheap:script"))
    first = Agent("lab:script", name="reader", tools=[read, wait], behavior=behavior)
    models = catalog(lab=lab, cheap=cheap)
    async with Engine(tmp_path, agents=[first], models=models) as engine:
        run = await engine.start(first, "What is it?")
        await begun.wait()
        await run.pause()
        go_on.set()
        async for event in run:
            if isinstance(event, CallFinished) and event.name == "wait":
                break
    today = Agent("lab:script", name="reader", tools=[read, wait])  # its rule is that of the start
    async with Engine(tmp_path, agents=[today], models=models) as engine:
        run = engine.attach(run.id, today)
        await run.resume()
        result = await run.result()
    assert result.text == "Done."
    assert pages_in(result.messages) == ["Page 1", "Page 2", "Waited"]
    assert pages_in(lab.requests[-1].messages) == ["Page 2", "Waited"]
    assert injected(lab.requests[-1]) == [summary("Weather.")]
    assert len(cheap.requests) == 1


async def test_failed_run_leaves_its_turns_and_its_summary(tmp_path: Path) -> None:
    fails = ScriptedModel([*reads(1, 2), "", {"error": {"class": "auth"}}])
    lab, cheap = ScriptedModel(["Yes."]), ScriptedModel(["Weather."])
    behavior = Behavior(compaction=Compaction(at_tokens=700, keep_turns=1, model="cheap:script"))
    agent = Agent("lab:script", name="reader", tools=[read], behavior=behavior)
    async with Engine(tmp_path, agents=[agent], models=catalog(lab=lab, fails=fails, cheap=cheap)) as engine:
        await agent.run("Hello?", thread="t", engine=engine)
        with pytest.raises(RunFailed):
            await agent.run("What is it?", thread="t", engine=engine, model="fails:script")
        await agent.run("And now?", thread="t", engine=engine)
    assert injected(fails.requests[-1]) == [summary("Weather.")]
    assert said_in(lab.requests[-1])[-1] == "And now?"
    assert injected(lab.requests[-1]) == [summary("Weather.")]


async def test_a_thread_that_no_longer_fits_its_model_goes_on(tmp_path: Path) -> None:
    """Its first message is most of it, so that even this one has to go."""
    lab = ScriptedModel(["Noted."])
    narrow, cheap = ScriptedModel([TOO_LONG, "", "Yes."]), ScriptedModel(["A long story."])
    agent = Agent("lab:script", name="chat", behavior=Behavior(compaction=Compaction(model="cheap:script")))
    models = catalog(lab=lab, narrow=narrow, cheap=cheap)
    async with Engine(tmp_path, agents=[agent], models=models) as engine:
        await agent.run(PAGE * 20, thread="t", engine=engine)
        result = await agent.run("What was it?", thread="t", engine=engine, model="narrow:script")
        assert result.text == "Yes."
        assert said_in(narrow.requests[-1]) == [summary("A long story."), "What was it?"]
        assert len(await engine.thread("t").messages()) == 4


@pytest.mark.requirement("skill.active.kept")
async def test_active_skill_text_stays_whole() -> None:
    tone = Skill(name="tone", description="How to write.", body="Briefly. " * 50)
    agent, model = reader(
        calls("skills_use", name="tone"),
        *reads(1, 2, 3),
        "Weather.",
        "Done.",
        compaction=Compaction(at_tokens=1_700, keep_turns=1),
        tools=[skills(tone)],
    )
    await agent.run("What is it?")
    last = model.requests[-1].messages
    results = [one for message in last if isinstance(message, ToolResults) for one in message.results]
    assert [one.name for one in results] == ["skills_use", "read"]
    assert "Briefly. Briefly." in results[0].text
    assert injected(model.requests[-1]) == [summary("Weather.")]


async def test_a_run_is_cancelled_while_its_summary_is_being_written() -> None:
    asked = asyncio.Event()

    async def forever(_: float) -> None:
        asked.set()
        await asyncio.Event().wait()

    model = ScriptedModel([*reads(1, 2), {"deltas": ["Wea", "ther."], "delay_ms": 5}], sleep=forever)
    behavior = Behavior(compaction=Compaction(at_tokens=700, keep_turns=1))
    agent = Agent(model, tools=[read], behavior=behavior)
    async with agent.stream("What is it?") as run:
        await asked.wait()
        await run.cancel()
        result = await run.result()
    assert (result.status, result.turns, result.attempts) == ("cancelled", 2, 3)
    assert result.usage.input > 20, "what was asked for may be billed"


@pytest.mark.requirement("run.history.compress")
@pytest.mark.parametrize(
    "knobs",
    [
        {"at_tokens": 0},
        {"at_tokens": True},
        {"at_turns": 0},
        {"keep_turns": -1},
        {"keep_turns": 4, "at_turns": 4},
        {"model": " "},
    ],
)
def test_rule_outside_its_range_is_refused_when_it_is_given(knobs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(knobs))):
        Compaction(**knobs)
