"""Rules of asking people that hold whoever asks: names for four eyes, tools that changed, subagents with own models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, ask_user, prompts, tool
from weftline.cases import keys
from weftline.errors import WeftlineError
from weftline.events import AwaitOpened
from weftline.testing import ScriptedModel, calls
from weftline.tools import present_plan

PAID: list[tuple[object, ...]] = []


@tool(effect="once", confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    PAID.append((amount,))
    return "Paid."


def payer(**options: Any) -> Agent[str, object]:
    return Agent(ScriptedModel([calls("pay", amount=5), "Done."]), name="payer", tools=[pay], **options)


async def question(engine: Engine, agent: Agent[Any, Any], **options: Any) -> tuple[Any, str]:
    run = await engine.start(agent, "Pay.", **options)
    return run, await next_question(run)


async def next_question(run: Any, *seen: str) -> str:
    async for event in run:
        if isinstance(event, AwaitOpened) and event.id not in seen:
            return event.id
    raise AssertionError("nobody was asked")


@pytest.mark.parametrize(
    ("requested_by", "by"), [("user:ann", {}), ("user:ann", {"by": "user:ann"}), ("", {"by": "user:bob"})]
)
async def test_four_eyes_need_two_names(requested_by: str, by: dict[str, str]) -> None:
    async with Engine() as engine:
        run, id = await question(engine, payer(limits=Limits(four_eyes=True)), requested_by=requested_by)
        with pytest.raises(WeftlineError) as refused:
            await run.approve(id, **by)
        assert refused.value.code == "four_eyes"
        await run.deny(id)
        assert (await run.result()).calls[0].how == "denied"


async def test_a_key_counts_as_the_person_who_made_it() -> None:
    """As over HTTP: otherwise a run that was requested there could be approved here by the same person."""
    async with Engine() as engine:
        await engine.runtime()
        at = engine.workspaces
        made = await keys.add(at, "default", made_by="user:ann")
        key = f"key:{made.key.id}"
        run, id = await question(engine, payer(limits=Limits(four_eyes=True)), requested_by=key)
        for by in (key, "user:ann", "key:unknown"):
            with pytest.raises(WeftlineError) as refused:
                await run.approve(id, by=by)
            assert refused.value.code == "four_eyes"
        await run.approve(id, by="user:bob")
        assert (await run.result()).status == "succeeded"


@pytest.mark.parametrize("how", ["answer", "another plan", "comment", "comment on a plan"])
async def test_sender_of_instructions_may_not_approve_what_follows(how: str) -> None:
    """Nor may who requested it: it takes somebody else, until one of its calls is approved."""
    first = calls("ask_user", question="Who?") if how == "answer" else calls("present_plan", plan="Pay Bob.")
    script = [first, calls("pay", amount=5), calls("pay", amount=6), "Done."]
    agent = Agent(
        ScriptedModel(script), name="payer", tools=[pay, ask_user, present_plan], limits=Limits(four_eyes=True)
    )
    async with Engine() as engine:
        run, id = await question(engine, agent, requested_by="user:ann")
        match how:
            case "answer":
                await run.answer(id, "Mallory.", by="user:bob")
            case "another plan":
                await run.approve(id, args={"plan": "Pay Mallory."}, by="user:bob")
            case "comment":
                await run.answer(id, "Pay Mallory.", by="user:bob")
            case _:
                await run.approve(id, comment="But pay Mallory.", by="user:bob")
        payment = await next_question(run, id)
        for somebody in ("user:ann", "user:bob"):
            with pytest.raises(WeftlineError) as refused:
                await run.approve(payment, by=somebody)
            assert refused.value.code == "four_eyes"
        await run.approve(payment, comment="Fine.", by="user:cho")
        await run.approve(await next_question(run, id, payment), by="user:cho")
        assert (await run.result()).text == "Done."


@pytest.mark.parametrize("odd", [{"remember": {}}, {"remember": "always"}, {"args": [5]}, {"args": "5"}])
async def test_approval_of_wrong_shape_is_refused_and_run_waits_on(odd: dict[str, Any]) -> None:
    async with Engine() as engine:
        run, id = await question(engine, payer())
        with pytest.raises(WeftlineError) as refused:
            await run.approve(id, **odd)
        assert refused.value.code == "invalid_answer"
        await run.approve(id)
        assert (await run.result()).text == "Done."


async def test_call_whose_tool_changed_since_approval_is_not_made(tmp_path: Path) -> None:
    PAID.clear()
    before = payer()
    async with Engine(tmp_path / "data", agents=[before]) as engine:
        await question(engine, before)

    @tool(name="pay", effect="once", confirm="Pay {amount}?")
    def pay_in(amount: int, currency: str = "USD") -> str:
        """Pays."""
        PAID.append((amount, currency))
        return "Paid."

    changed = Agent(ScriptedModel(["Done."]), name="payer", tools=[pay_in])
    async with Engine(tmp_path / "data", agents=[changed]) as engine:
        (asked,) = await engine.awaits()
        run = engine.attach(asked.run_id, changed)
        await run.approve(asked.id)
        result = await run.result()
    assert (result.calls[0].how, PAID) == ("not_run", [])
    assert result.calls[0].result == prompts.calls.changed_since_asked("pay")


async def test_a_subagent_below_a_durable_agent_brings_its_own_model(tmp_path: Path) -> None:
    kid = Agent(ScriptedModel(["From the kid."]), name="kid")
    parent = Agent(ScriptedModel([calls("kid", task="Go."), "Done."]), name="parent", tools=[kid.as_tool("A kid.")])
    async with Engine(tmp_path / "data", agents=[parent]) as engine:
        result = await (await engine.start(parent, "Go.")).result()
    assert result.text == "Done."
    assert "From the kid." in str(result.calls[0].result)


def asker(model: ScriptedModel, **options: Any) -> Agent[str, object]:
    return Agent(model, name="asker", tools=[ask_user], **options)


@pytest.mark.requirement("tool.ask_user.restart")
async def test_open_question_is_offered_again_once_after_restart(tmp_path: Path) -> None:
    before = asker(ScriptedModel([calls("ask_user", question="Which one?")]))
    async with Engine(tmp_path / "data", agents=[before]) as engine:
        run, id = await question(engine, before)
    model = ScriptedModel(["The red one, then."])
    after = asker(model)
    async with Engine(tmp_path / "data", agents=[after]) as engine:
        (again,) = await engine.awaits()
        assert (again.id, again.run_id, again.question) == (id, run.id, "Which one?")
        assert not model.requests
        run = engine.attach(again.run_id, after)
        await run.answer(again.id, "The red one.")
        assert (await run.result()).text == "The red one, then."
        opened = [event async for event in run.events() if isinstance(event, AwaitOpened)]
    assert [event.id for event in opened] == [id]
    assert "The red one." in str(model.requests[0].messages[-1])


@pytest.mark.requirement("tool.ask_user.closed")
async def test_question_that_nobody_answers_is_closed_and_later_answer_refused() -> None:
    ask = calls("ask_user", question="Which one?")
    async with Engine() as engine:
        run, id = await question(engine, asker(ScriptedModel([ask, "Any."]), limits=Limits(await_timeout_s=0.05)))
        result = await run.result()
        assert str(result.calls[0].result).startswith("Aborted: nobody answered in time.")
        with pytest.raises(WeftlineError) as late:
            await run.answer(id, "Red.")
        assert late.value.code == "await_expired"
    async with Engine() as engine:
        run, id = await question(engine, asker(ScriptedModel([ask])))
        await run.cancel()
        result = await run.result()
        assert result.status == "cancelled" and str(result.calls[0].result).startswith("Aborted: ")
        with pytest.raises(WeftlineError) as late:
            await run.answer(id, "Red.")
        assert late.value.code == "await_closed"
