"""Several questions of one call, plans that people change, and answers that come too late or are too large."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from weftline import Engine, WeftlineError, ask_user, prompts, tool
from weftline.agent.run import Run
from weftline.errors import Conflict
from weftline.events import AwaitOpened
from weftline.hooks import AwaitGate, ask_in_terminal
from weftline.runs import Await
from weftline.runtime.people.answering import MAX_REASON_CHARS, MAX_VALUE_BYTES
from weftline.testing import ScriptedModel, calls
from weftline.tools import present_plan
from weftline.wire.limits import MAX_ERROR_BYTES, MAX_RESULT_BYTES

from .kit import results_in, scripted

FURTHER = [
    {"question": "When?", "options": ["Today", "Tomorrow"]},
    {"question": "Who?", "options": ["A", "B"], "multiple": True},
]
THREE = calls("ask_user", question="Where?", further=FURTHER)


async def only(engine: Engine, run: Run[Any], model: ScriptedModel) -> Await:
    """The one question of a run that is parked."""
    async for event in run:
        if isinstance(event, AwaitOpened):
            break
    assert len(model.requests) == 1
    (question,) = await engine.awaits(run_id=run.id)
    return question


async def code_of(said: Any) -> str:
    with pytest.raises(WeftlineError) as error:
        await said
    return error.value.code


@pytest.mark.requirement("tool.ask_user.answer")
async def test_several_questions_of_a_call_are_answered_together() -> None:
    agent, model = scripted(THREE, tools=[ask_user])
    async with Engine() as engine, agent.stream("Plan a trip.", engine=engine) as run:
        asked = await only(engine, run, model)
        assert asked.question == "1. Where?\n2. When? (Today / Tomorrow)\n3. Who? (A / B)"
        for wrong in ([], ["Lyon", "Today"], ["Lyon", "Never", ["A"]], ["", "Today", ["A"]], {"a": 1}, None, " "):
            assert await code_of(run.answer(asked.id, wrong)) == "invalid_answer"
        assert len(model.requests) == 1
        await run.answer(asked.id, ["Lyon", "Today", ["A", "B"]])
        result = await run.result()
    assert results_in(result.messages) == ["1. Where?\nLyon\n2. When?\nToday\n3. Who?\nA\nB"]
    assert len(model.requests) == 2


@pytest.mark.requirement("tool.ask_user.answer")
@pytest.mark.parametrize(
    ("said", "read"),
    [("Lyon, today, all.", "Lyon, today, all."), (None, prompts.people.no_answer("No time."))],
    ids=["in one text", "not at all"],
)
async def test_several_questions_take_one_text_or_none(said: str | None, read: str) -> None:
    agent, model = scripted(THREE, tools=[ask_user])
    async with Engine() as engine, agent.stream("Plan a trip.", engine=engine) as run:
        asked = await only(engine, run, model)
        if said is None:
            await run.deny(asked.id, "No time.")
        else:
            await run.answer(asked.id, said)
        assert results_in((await run.result()).messages) == [read]


async def test_several_questions_are_asked_on_terminal_one_after_other(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["Lyon", "2", "A", "Lyon", ""])
    monkeypatch.setattr(builtins, "input", lambda _="": next(typed))
    agent, _ = scripted(THREE, THREE, tools=[ask_user])
    result = await agent.run("Plan a trip.", hooks=[ask_in_terminal])
    answered, refused = results_in(result.messages)
    assert answered == "1. Where?\nLyon\n2. When?\nTomorrow\n3. Who?\nA"
    assert refused == prompts.people.NO_ANSWER


async def test_hook_that_answers_too_few_questions_fails_and_so_denies() -> None:
    agent, _ = scripted(THREE, tools=[ask_user])
    agent.on(AwaitGate)(lambda gate: gate.answer([part.prompt for part in gate.parts][:1]))
    result = await agent.run("Plan a trip.")
    assert [call.how for call in result.calls] == ["denied"]


PLAN = calls("present_plan", plan="1. Burn it.")


@pytest.mark.requirement("tool.present_plan.verdict")
@pytest.mark.parametrize(
    ("verdict", "read"),
    [
        ({}, prompts.people.PLAN_APPROVED),
        ({"comment": "Mind the cat."}, prompts.people.plan_approved("Mind the cat.")),
        ({"args": {"plan": "1. Sell it."}}, prompts.people.plan_edited("1. Sell it.")),
        ({"args": {"plan": "1. Sell it."}, "comment": "Soon."}, prompts.people.plan_edited("1. Sell it.", "Soon.")),
        ({"args": {"plan": "1. Burn it."}}, prompts.people.PLAN_APPROVED),
    ],
)
@pytest.mark.parametrize("by_hook", [False, True])
async def test_plan_is_approved_as_it_is_or_edited(verdict: dict[str, Any], read: str, by_hook: bool) -> None:
    agent, model = scripted(PLAN, tools=[present_plan])
    if by_hook:
        args, comment = verdict.get("args"), verdict.get("comment", "")
        agent.on(AwaitGate)(lambda gate: gate.approve(args, comment=comment))
        result = await agent.run("Plan it.")
    else:
        async with Engine() as engine, agent.stream("Plan it.", engine=engine) as run:
            asked = await only(engine, run, model)
            assert (asked.kind, asked.question) == ("plan", "1. Burn it.")
            await run.approve(asked.id, **verdict)
            result = await run.result()
    assert results_in(result.messages) == [read]
    assert [(call.how, call.args) for call in result.calls] == [("answered", {"plan": "1. Burn it."})]


@pytest.mark.requirement("tool.present_plan.verdict")
async def test_a_plan_is_rejected_with_or_without_a_comment() -> None:
    for reason, read in (("", prompts.people.PLAN_REJECTED), ("Too slow.", prompts.people.plan_rejected("Too slow."))):
        agent, model = scripted(PLAN, tools=[present_plan])
        async with Engine() as engine, agent.stream("Plan it.", engine=engine) as run:
            asked = await only(engine, run, model)
            assert await code_of(run.approve(asked.id, args={"steps": "?"})) == "invalid_answer"
            await run.deny(asked.id, reason)
            assert results_in((await run.result()).messages) == [read]


async def test_whoever_decides_after_somebody_else_hears_who_it_was() -> None:
    agent, model = scripted(PLAN, tools=[present_plan])
    async with Engine() as engine, agent.stream("Plan it.", engine=engine) as run:
        asked = await only(engine, run, model)
        await run.approve(asked.id, by="ann")
        await run.approve(asked.id, by="ann")
        for late in (run.approve(asked.id, by="ben"), run.deny(asked.id, by="ann")):
            with pytest.raises(Conflict) as error:
                await late
            assert error.value.code == "await_closed"
            assert "approved by ann" in error.value.message
        await run.result()


async def test_answers_through_library_are_no_larger_than_those_over_http() -> None:
    assert (MAX_VALUE_BYTES, MAX_REASON_CHARS) == (MAX_RESULT_BYTES, MAX_ERROR_BYTES)
    agent, model = scripted(calls("ask_user", question="Why?"), tools=[ask_user])
    async with Engine() as engine, agent.stream("Go.", engine=engine) as run:
        asked = await only(engine, run, model)
        assert await code_of(run.answer(asked.id, "x" * MAX_VALUE_BYTES)) == "invalid_answer"
        assert await code_of(run.deny(asked.id, "x" * (MAX_REASON_CHARS + 1))) == "invalid_answer"
        await run.answer(asked.id, "Because.")
        await run.result()


def test_confirmation_without_an_argument_is_refused_at_definition() -> None:
    with pytest.raises(ValueError, match=r"not an argument.*amount"):

        @tool(confirm="Pay {amuont}?")
        def pay(amount: int) -> str:  # pyright: ignore[reportUnusedFunction]
            """Pays."""
            return ""
