"""Runs that ask a person because a call lacks something, and tools that end with a question in place of a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, ToolFailed, WeftlineError, tool
from weftline.agent.run import Run
from weftline.errors import Conflict
from weftline.events import AwaitClosed, AwaitOpened, FinalForced
from weftline.failure import Clarification
from weftline.hooks import AwaitGate
from weftline.messages import ToolResults, User
from weftline.policies import Policy
from weftline.providers.catalog import Catalog
from weftline.runs import Await
from weftline.testing import ScriptedModel, calls
from weftline.tools import Hint, ToolQuestion

from .kit import results_in, scripted

ASKS = Policy(on_missing_fields="await_clarification")
ASKED: list[str] = []


@tool(effect="read", example={"city": "Paris"})
def forecast(city: str) -> str:
    """Forecast.

    Args:
        city: Name of the city.
    """
    return f"Sun in {city}."


@tool(effect="read")
def look() -> str:
    """Looks."""
    return "seen"


@tool(effect="once")
def book(room: str) -> int:
    """Books a room, and says for how much."""
    ASKED.append(room)
    raise ToolQuestion(f"Which price for {room}?")


def both(*turns: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [call for turn in turns for call in turn["tool_calls"]]}


async def until_asked(engine: Engine, run: Run[Any]) -> Await:
    async for event in run:
        if isinstance(event, AwaitOpened):
            break
    (question,) = await engine.awaits(run_id=run.id)
    return question


def catalog(model: ScriptedModel) -> Catalog:
    models = Catalog()
    models.add(model, name="lab")
    return models


async def code_of(said: Any) -> str:
    with pytest.raises(WeftlineError) as error:
        await said
    return error.value.code


# Clarifications


@pytest.mark.requirement("run.policy.missing_fields", "run.await.clarification")
async def test_person_supplies_what_a_call_lacks() -> None:
    agent, model = scripted(both(calls("forecast"), calls("look"), calls("forecast")), tools=[forecast, look])
    async with Engine() as engine, agent.stream("Weather?", engine=engine, policy=ASKS) as run:
        asked = await until_asked(engine, run)
        assert (asked.kind, asked.name, asked.id) == ("clarification", "forecast", "await_0_0_1")
        assert asked.question == "Which values should forecast be called with? It needs city (Name of the city)."
        assert asked.clarification is not None
        about = asked.clarification
        assert (about.missing_fields, about.restrict_to_tool) == (("city",), "forecast")
        assert about.example_input == {"city": "Paris"}
        assert about.clarifying_prompt.startswith("The arguments do not fit forecast")
        assert len(model.requests) == 1  # the other calls have run, and no model was asked
        for wrong in (5, None, ["Rome"]):
            assert await code_of(run.answer(asked.id, wrong)) == "invalid_answer"
        await run.answer(asked.id, "In Rome.", by="ann", labels={"desk": "7"})
        assert await code_of(run.answer(asked.id, "In Oslo.")) == "await_closed"
        result = await run.result()
        closed = [event async for event in engine.attach(run.id) if isinstance(event, AwaitClosed)]
    assert [call.how for call in result.calls] == ["invalid", "returned", "invalid"]
    request = model.requests[1]
    results = [index for index, message in enumerate(request.messages) if isinstance(message, ToolResults)]
    said = request.messages[results[0] + 1]
    assert said == User.of("In Rome.")
    assert [(one.by, one.outcome, one.labels) for one in closed] == [("ann", "answered", {"desk": "7"})]
    assert len(model.requests) == 2 and result.text == "Done."


@pytest.mark.requirement("run.await.clarification")
@pytest.mark.parametrize("deny", [False, True])
async def test_an_empty_answer_adds_no_message(deny: bool) -> None:
    agent, model = scripted(calls("forecast"), tools=[forecast])
    async with Engine() as engine, agent.stream("Weather?", engine=engine, policy=ASKS) as run:
        asked = await until_asked(engine, run)
        await (run.deny(asked.id) if deny else run.answer(asked.id, " "))
        await run.result()
    said = [message for message in model.requests[1].messages if isinstance(message, User) and not message.injected]
    assert [message.text for message in said] == ["Weather?"]


@pytest.mark.requirement("run.await.clarification")
async def test_tool_asks_for_missing_values_in_its_hints_words(
    tmp_path: Path,
) -> None:
    hint = Hint("missing_fields", "No date.", missing_fields=("date",), clarifying_question="When?")

    @tool(effect="once")
    def travel() -> str:
        """Travels."""
        raise ToolFailed("I need a date.", hint=hint)

    agent = Agent("lab:script", name="a", tools=[travel], policy=ASKS)
    model = ScriptedModel([calls("travel"), "Done."])
    async with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        asked = await until_asked(engine, run := await engine.start(agent, "Go."))
        assert (asked.question, asked.clarification) == (
            "When?",
            Clarification(("date",), clarifying_prompt="No date."),
        )
    async with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        (again,) = await engine.awaits(run_id=run.id)
        assert again == asked
        await engine.attach(run.id).answer(asked.id, "Tomorrow.")
        result = await engine.attach(run.id).result()
    assert [message.text for message in result.messages if isinstance(message, User)][-1] == "Tomorrow."
    assert (result.text, len(model.requests)) == ("Done.", 2)


@pytest.mark.requirement("run.policy.missing_fields")
@pytest.mark.parametrize("rule", [None, "resume"])
async def test_without_rule_hint_is_shown_and_run_goes_on(rule: Any) -> None:
    agent, model = scripted(calls("forecast"), tools=[forecast], policy=Policy(on_missing_fields=rule))
    result = await agent.run("Go.")
    assert (result.text, result.reason) == ("Done.", "")
    assert "A call to forecast failed (missing_fields)" in str(model.requests[1].messages[-1])


@pytest.mark.requirement("run.policy.missing_fields")
async def test_finalize_forces_the_final_turn() -> None:
    agent, model = scripted(both(calls("look"), calls("forecast")), tools=[forecast, look], policy=ASKS)
    own = Policy(on_missing_fields="finalize")  # takes the place of the agent's
    async with agent.stream("Go.", policy=own) as run:
        forced = [event.reason async for event in run if isinstance(event, FinalForced)]
        result = await run.result()
    assert (forced, result.reason, result.text) == (["tool_failure"], "tool_failure", "Done.")
    assert model.requests[-1].tools_disabled


@pytest.mark.requirement("run.policy.missing_fields")
def test_rule_that_cannot_be_is_refused_when_agent_is_defined() -> None:
    wrong: Any = "ask"
    with pytest.raises(ValueError, match="on_missing_fields must be"):
        Policy(on_missing_fields=wrong)
    with pytest.raises(ValueError, match="interrupts_allowed: false forbids"):
        Policy(on_missing_fields="await_clarification", interrupts_allowed=False)


async def test_a_run_that_may_not_ask_goes_on() -> None:
    agent, _ = scripted(calls("forecast"), tools=[forecast], policy=ASKS)
    result = await agent.run("Go.", policy=Policy(interrupts_allowed=False))
    assert result.text == "Done."


async def test_steering_takes_the_question_back() -> None:
    agent, model = scripted(calls("forecast"), tools=[forecast])
    async with Engine() as engine, agent.stream("Weather?", engine=engine, policy=ASKS) as run:
        asked = await until_asked(engine, run)
        await run.steer("Never mind.")
        await run.result()
        with pytest.raises(Conflict):
            await run.answer(asked.id, "Rome")
    assert [message.text for message in model.requests[1].messages if isinstance(message, User)][-2] == "Never mind."


async def test_code_can_clarify_in_a_persons_place() -> None:
    agent, model = scripted(calls("forecast"), tools=[forecast], policy=ASKS)

    @agent.on(AwaitGate)
    def clarify(gate: AwaitGate) -> None:
        assert (gate.about, gate.question[:12]) == ("clarification", "Which values")
        gate.answer("Rome, always Rome.")

    await agent.run("Weather?")
    assert User.of("Rome, always Rome.") in model.requests[1].messages


# Tools that ask in place of giving a result


@pytest.mark.requirement("run.await.tool_question")
async def test_answer_to_a_tool_question_becomes_its_result(
    tmp_path: Path,
) -> None:
    ASKED.clear()
    agent = Agent("lab:script", name="a", tools=[book, look])
    model = ScriptedModel([both(calls("book", room="12"), calls("look")), "Done."])
    async with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        asked = await until_asked(engine, run := await engine.start(agent, "Go."))
        assert (asked.kind, asked.question, asked.args) == ("question", "Which price for 12?", {"room": "12"})
    async with Engine(tmp_path, agents=[agent], models=catalog(model)) as engine:
        (again,) = await engine.awaits(run_id=run.id)
        assert again == asked
        again_run = engine.attach(run.id)
        for wrong in ("much", None, 1.5, {"price": 5}):
            assert await code_of(again_run.answer(asked.id, wrong)) == "invalid_answer"
        assert len(model.requests) == 1
        await again_run.answer(asked.id, 120, by="ann")
        result = await again_run.result()
    assert results_in(result.messages) == ["120", "seen"]
    assert {call.name: (call.how, call.ok) for call in result.calls} == {
        "book": ("returned", True),
        "look": ("returned", True),
    }
    assert ASKED == ["12"]


@pytest.mark.requirement("run.await.tool_question")
async def test_question_with_options_accepts_one_or_a_denial() -> None:
    @tool(effect="once")
    def choose() -> str:
        """Chooses."""
        raise ToolQuestion("Red or blue?", options=["red", "blue"])

    agent, _ = scripted(both(calls("choose"), calls("choose")), tools=[choose])
    async with Engine() as engine, agent.stream("Go.", engine=engine) as run:
        asked = await until_asked(engine, run)
        assert asked.options == ("red", "blue")
        assert await code_of(run.answer(asked.id, "green")) == "invalid_answer"
        await run.answer(asked.id, "blue")
        async for event in engine.attach(run.id):
            if isinstance(event, AwaitOpened) and event.id != asked.id:
                await run.deny(event.id, "Ask somebody else.")
                break
        result = await run.result()
    assert [call.how for call in result.calls] == ["returned", "denied"]
    assert results_in(result.messages)[0] == "blue" and "Ask somebody else." in results_in(result.messages)[1]


@pytest.mark.parametrize(
    ("options", "answered", "heard"),
    [((), "120", "120"), (("120", "140"), "140", "140"), ((120, 140), "120", "120")],
)
async def test_text_that_says_what_tool_returns_is_answer(options: Any, answered: str, heard: str) -> None:
    @tool(effect="once")
    def price() -> int:
        """Says the price."""
        raise ToolQuestion("Which price?", options=options)

    agent, _ = scripted(calls("price"), tools=[price])
    async with Engine() as engine, agent.stream("Go.", engine=engine) as run:
        asked = await until_asked(engine, run)
        assert await code_of(run.answer(asked.id, "much")) == "invalid_answer"
        await run.answer(asked.id, answered)
        result = await run.result()
    assert results_in(result.messages) == [heard]


@pytest.mark.parametrize(("answered", "heard"), [("red", "red"), (["red", "blue"], "red\nblue")])
async def test_of_several_options_one_alone_is_an_answer_too(answered: Any, heard: str) -> None:
    @tool(effect="once")
    def colours() -> list[str]:
        """Chooses colours."""
        raise ToolQuestion("Which colours?", options=["red", "blue"], multiple=True)

    agent, _ = scripted(calls("colours"), tools=[colours])
    async with Engine() as engine, agent.stream("Go.", engine=engine) as run:
        asked = await until_asked(engine, run)
        assert await code_of(run.answer(asked.id, ["green"])) == "invalid_answer"
        await run.answer(asked.id, answered)
        result = await run.result()
    assert results_in(result.messages) == [heard]


async def test_tool_cannot_ask_in_run_that_may_not_be_interrupted() -> None:
    agent, _ = scripted(calls("book", room="1"), tools=[book])
    result = await agent.run("Go.", policy=Policy(interrupts_allowed=False))
    assert [call.how for call in result.calls] == ["failed"]
    assert "Nobody can be asked during this run" in result.calls[0].result


async def test_cancelled_run_that_waits_for_answer_has_nothing_in_doubt() -> None:
    agent, _ = scripted(calls("book", room="1"), tools=[book])
    async with Engine() as engine, agent.stream("Go.", engine=engine) as run:
        await until_asked(engine, run)
        receipt = await run.cancel()
        assert await engine.awaits(run_id=run.id) == []
    assert receipt.in_doubt == () and [call.name for call in receipt.stopped] == ["book"]


async def test_steering_does_not_wait_for_a_tools_question() -> None:
    agent, model = scripted(calls("book", room="1"), tools=[book])
    async with Engine() as engine, agent.stream("Go.", engine=engine) as run:
        await until_asked(engine, run)
        await run.steer("Leave it.")
        result = await run.result()
    assert [call.how for call in result.calls] == ["skipped"]
    assert len(model.requests) == 2


def test_a_question_needs_words() -> None:
    with pytest.raises(ValueError, match="needs a question"):
        ToolQuestion(" ")
    with pytest.raises(ValueError, match="positive number of seconds"):
        ToolQuestion("Why?", timeout_s=0)
    with pytest.raises(TypeError, match="a sequence of strings, not the string 'ab'"):
        ToolQuestion("Which?", options="ab")


async def test_question_with_invalid_options_is_never_asked() -> None:
    @tool(effect="read")
    def price() -> int:
        """The price."""
        raise ToolQuestion("How much?", options=["5", "a lot"])

    agent, _ = scripted(calls("price"), tools=[price])
    [call] = (await agent.run("Go.")).calls
    assert call.failure is not None and call.failure.kind == "malformed_result"
    assert "its question has an option that is not a valid result ('a lot'" in call.result
