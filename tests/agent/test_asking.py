"""People in an agent's runs: what they are asked, who may answer in their place, and what the model reads of it."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, RunFailed, WeftlineError, ask_user, tool
from weftline.agent.run import Run
from weftline.behaviors import presets
from weftline.errors import Conflict
from weftline.events import AwaitClosed, AwaitOpened, CallFinished
from weftline.hooks import AwaitGate, ToolGate, ask_in_terminal
from weftline.runs import Await
from weftline.testing import ScriptedModel, calls
from weftline.tools import present_plan

from .kit import results_in, scripted

paid: list[tuple[float, str]] = []


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


@tool(effect="once", confirm="Pay {amount} to {payee}?")
def pay(amount: float, payee: str) -> str:
    """Pay somebody."""
    paid.append((amount, payee))
    return f"Paid {amount} to {payee}."


def payer(*turns: Any, **options: Any) -> tuple[Agent[Any, Any], ScriptedModel]:
    return scripted(*(turns or (calls("pay", amount=5.0, payee="Ann"),)), tools=[pay], name="payments", **options)


async def asked(engine: Engine, run: Run[Any], count: int = 1) -> list[Await]:
    """What the run asks people, once it asks that much."""
    seen = 0
    async for event in run:
        seen += isinstance(event, AwaitOpened)
        if seen == count:
            break
    return await engine.awaits(run_id=run.id)


@pytest.mark.requirement("run.confirm.asked", "run.confirm.prompt", "run.confirm.approved")
async def test_call_waits_for_approval_and_runs_with_what_was_approved() -> None:
    agent, model = payer()
    async with Engine() as engine, agent.stream("Pay Ann 5.", engine=engine) as run:
        (question,) = await asked(engine, run)
        assert (question.kind, question.question, question.name) == ("confirm", "Pay 5.0 to Ann?", "pay")
        assert question.args == {"amount": 5.0, "payee": "Ann"}
        assert (question.run_id, question.root_run_id, question.agent is not None) == (run.id, run.id, True)
        assert paid == []
        await run.approve(question.id, args={**question.args, "amount": 4}, by="user:bob")
        result = await run.result()
        assert await engine.awaits() == []
    assert paid == [(4.0, "Ann")]
    told = 'A person changed the arguments before this call was made. It was made with: {"amount":4.0,"payee":"Ann"}'
    assert results_in(result.messages) == [f"Paid 4.0 to Ann.\n{told}"]
    assert [call.args for call in result.calls] == [{"amount": 4.0, "payee": "Ann"}]
    model.assert_done()


@pytest.mark.requirement("run.confirm.denied", "run.confirm.audit")
async def test_denied_call_is_told_to_model_and_is_no_error() -> None:
    agent, _ = payer()
    async with Engine() as engine, agent.stream("Pay Ann 5.", engine=engine) as run:
        (question,) = await asked(engine, run)
        await run.deny(question.id, "Not today.", by="user:bob")
        result = await run.result()
        events = [event async for event in run]
    assert paid == []
    (call,) = result.calls
    assert (call.how, call.ok) == ("denied", True)
    assert "Not today." in call.result
    closed = [event for event in events if isinstance(event, AwaitClosed | CallFinished)]
    assert [type(event) for event in closed] == [AwaitClosed, CallFinished]
    told = closed[0]
    assert isinstance(told, AwaitClosed)
    assert (told.outcome, told.by, told.reason) == ("denied", "user:bob", "Not today.")


@pytest.mark.requirement("run.await.answer_checked")
async def test_an_answer_that_does_not_fit_leaves_the_question_open() -> None:
    agent, _ = payer()
    async with Engine() as engine, agent.stream("Pay Ann 5.", engine=engine) as run:
        (question,) = await asked(engine, run)
        refused: list[str] = []
        for wrong in (
            lambda: run.approve("await_7_7_7"),
            lambda: run.answer(question.id, "yes"),
            lambda: run.approve(question.id, args={"amount": "much"}),
            lambda: run.approve(question.id, by=""),
        ):
            with pytest.raises(WeftlineError) as error:
                await wrong()
            refused.append(error.value.code)
        assert refused == ["unknown_await", "invalid_answer", "invalid_answer", "invalid_answer"]
        assert [one.id for one in await engine.awaits()] == [question.id]
        await run.approve(question.id)
        await run.result()
        with pytest.raises(Conflict, match="approved by library"):
            await run.deny(question.id)
    assert paid == [(5.0, "Ann")]


async def test_a_run_that_nobody_watches_fails_when_it_asks_people() -> None:
    agent, _ = payer()
    with pytest.raises(RunFailed) as error:
        await agent.run("Pay Ann 5.")
    assert error.value.result.code == "nobody_to_ask"
    assert paid == []


async def test_hook_answers_for_a_person_or_leaves_it_to_people() -> None:
    agent, _ = payer(calls("pay", amount=5.0, payee="Ann"), calls("pay", amount=500.0, payee="Bob"))
    seen: list[str] = []

    @agent.on(AwaitGate)
    def small_sums(gate: AwaitGate) -> None:
        seen.append(gate.question)
        if gate.args["amount"] < 100:
            gate.approve({**gate.args, "amount": gate.args["amount"] - 1})

    async with Engine() as engine, agent.stream("Pay them.", engine=engine) as run:
        questions = await asked(engine, run, 2)
        assert [question.question for question in questions] == ["Pay 500.0 to Bob?"]
        await run.approve(questions[0].id)
        await run.result()
        closed = [event async for event in run if isinstance(event, AwaitClosed)]
    assert [(event.outcome, event.by) for event in closed] == [("approved", "hook:small_sums"), ("approved", "library")]
    assert seen == ["Pay 5.0 to Ann?", "Pay 500.0 to Bob?"]
    assert paid == [(4.0, "Ann"), (500.0, "Bob")]


@pytest.mark.parametrize("wrong", ["raises", "does not fit", "answers"])
async def test_a_hook_that_fails_denies(wrong: str) -> None:
    agent, _ = payer()

    @agent.on(AwaitGate)
    def broken(gate: AwaitGate) -> None:
        if wrong == "raises":
            raise ZeroDivisionError
        if wrong == "answers":
            gate.answer("yes")
        gate.approve({"amount": "much"})

    result = await agent.run("Pay Ann 5.")
    assert [call.how for call in result.calls] == ["denied"]
    assert paid == []


async def test_gate_asks_people_about_calls_that_tools_would_not() -> None:
    done: list[str] = []

    @tool(effect="once")
    def delete(path: str) -> str:
        """Delete a file."""
        done.append(path)
        return "gone"

    agent, _ = scripted(calls("delete", path="a"), calls("delete", path="b"), tools=[delete])

    @agent.on(ToolGate)
    def careful(gate: ToolGate) -> None:
        if gate.args["path"] == "b":
            gate.ask(f"Really delete {gate.args['path']}?")

    async with Engine() as engine, agent.stream("Tidy up.", engine=engine) as run:
        (question,) = await asked(engine, run)
        assert (question.question, done) == ("Really delete b?", ["a"])
        await run.approve(question.id)
        await run.result()
    assert done == ["a", "b"]


async def test_an_approval_may_cover_later_calls_with_arguments_like_these() -> None:
    done: list[str] = []

    @tool(effect="once", confirm="Run {command}?")
    def sh(command: str) -> str:
        """Run a command."""
        done.append(command)
        return "ok"

    commands = ("git status", "git status -s", "git status; rm -r .")
    agent, _ = scripted(*[calls("sh", command=command) for command in commands], tools=[sh])
    async with Engine() as engine, agent.stream("Look.", engine=engine) as run:
        (question,) = await asked(engine, run)
        with pytest.raises(WeftlineError) as error:
            await run.approve(question.id, remember={"command": "git push*"})
        assert error.value.code == "invalid_answer"
        await run.approve(question.id, remember={"command": "git status*"})
        (later,) = await asked(engine, run, 2)
        assert (later.args, done) == ({"command": commands[2]}, ["git status", "git status -s"])
        await run.deny(later.id)
        await run.result()
    assert done == ["git status", "git status -s"]


async def test_argument_dependent_question_is_asked_only_if_there_is_one() -> None:
    def large(amount: int) -> str | None:
        return f"Refund {amount} €?" if amount > 100 else None

    @tool(effect="once", confirm=large)
    def refund(amount: int, order: str) -> str:
        """Refund an order."""
        return f"refunded {amount}"

    agent, _ = scripted(calls("refund", amount=50, order="a"), calls("refund", amount=500, order="b"), tools=[refund])
    async with Engine() as engine, agent.stream("Refund.", engine=engine) as run:
        (question,) = await asked(engine, run)
        assert question.question == "Refund 500 €?"
        await run.approve(question.id)
        result = await run.result()
    assert results_in(result.messages) == ["refunded 50", "refunded 500"]


@pytest.mark.requirement("run.confirm.fail_closed")
async def test_a_question_that_cannot_be_made_blocks_the_call() -> None:
    @tool(effect="once", confirm=lambda amount: 1 / amount)  # type: ignore[arg-type]
    def spend(amount: int) -> str:
        """Spend it."""
        raise AssertionError("it was carried out")

    for gated in (False, True):
        agent, _ = scripted(calls("spend", amount=0), tools=[spend])
        if gated:
            agent.on(ToolGate)(lambda gate: None)
        result = await agent.run("Go.")
        (call,) = result.calls
        assert (call.how, call.ok) == ("blocked", False)
        assert "ZeroDivisionError" in call.result


def test_a_template_that_reaches_behind_the_arguments_is_refused() -> None:
    for confirm in ("Pay {payee.__class__}?", "Pay {0}?", "Pay {", " "):
        with pytest.raises(ValueError, match="confirm"):
            tool(confirm=confirm, name="transfer")(str.upper)


@pytest.mark.requirement("run.await.questions")
async def test_answer_to_question_is_result_of_call() -> None:
    turn = calls("ask_user", question="Which city?", options=["Lyon", "Bonn"])
    agent, _ = scripted(turn, tools=[ask_user])
    async with Engine() as engine, agent.stream("Plan a trip.", engine=engine) as run:
        (question,) = await asked(engine, run)
        assert (question.kind, question.question, question.options) == ("question", "Which city?", ("Lyon", "Bonn"))
        with pytest.raises(WeftlineError) as error:
            await run.answer(question.id, "Paris")
        assert error.value.code == "invalid_answer"
        await run.answer(question.id, "Bonn")
        result = await run.result()
    assert results_in(result.messages) == ["Bonn"]
    assert [call.how for call in result.calls] == ["answered"]


async def test_a_plan_is_approved_rejected_or_talked_about() -> None:
    turns = [calls("present_plan", plan=f"Plan {number}") for number in range(3)]
    agent, _ = scripted(*turns, tools=[present_plan])

    @agent.on(AwaitGate)
    def boss(gate: AwaitGate) -> None:
        match gate.question:
            case "Plan 0":
                gate.deny("Too slow.")
            case "Plan 1":
                gate.answer("Start small.")
            case _:
                gate.approve()

    result = await agent.run("Plan it.")
    rejected, commented, approved = results_in(result.messages)
    assert "Too slow." in rejected and "Start small." in commented and "approved" in approved
    assert {"ask_user", "present_plan"} <= {getattr(one, "name", "") for one in presets.plan().tools}


async def test_whoever_sits_at_the_terminal_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["", "y", "no idea why", "2", " ", "n"])
    prompts: list[str] = []

    def read(prompt: str = "") -> str:
        prompts.append(prompt.strip())
        return next(typed)

    monkeypatch.setattr(builtins, "input", read)
    first, second = calls("pay", amount=5.0, payee="Ann"), calls("pay", amount=6.0, payee="Bob")
    third = calls("ask_user", question="Which?", options=["one", "two"])
    agent, _ = scripted(first, second, third, calls("present_plan", plan="Rest."), tools=[pay, ask_user, present_plan])
    result = await agent.run("Go.", hooks=[ask_in_terminal])
    assert prompts[0] == prompts[1] == "Pay 5.0 to Ann? [y/n, or why not]"
    assert paid == [(5.0, "Ann")]
    texts = results_in(result.messages)
    assert texts[2] == "two" and "no idea why" in texts[1]
    assert [call.how for call in result.calls] == ["returned", "denied", "answered", "denied"]


async def test_where_nobody_sits_at_the_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(prompt: str = "") -> str:
        raise EOFError

    monkeypatch.setattr(builtins, "input", gone)
    agent, _ = payer()
    with pytest.raises(RunFailed) as error:
        await agent.run("Pay Ann 5.", hooks=[ask_in_terminal])
    assert error.value.result.code == "nobody_to_ask"


async def test_subagent_question_reaches_the_top_and_its_hooks() -> None:
    for by_hook in (False, True):
        paid.clear()
        clerk, _ = payer()
        boss, _ = scripted(calls("clerk", task="Pay Ann."), tools=[clerk.as_tool("Pays.", name="clerk")])
        if by_hook:
            boss.on(AwaitGate)(lambda gate: gate.approve())
            await boss.run("Have Ann paid.")
        else:
            async with Engine() as engine, boss.stream("Have Ann paid.", engine=engine) as run:
                async for event in run.events(children=True):
                    if isinstance(event, AwaitOpened):
                        break
                (question,) = await engine.awaits(run_id=run.id)
                assert question.root_run_id == run.id != question.run_id
                await engine.attach(question.run_id).approve(question.id)
                await run.result()
        assert paid == [(5.0, "Ann")]


@pytest.mark.requirement("run.confirm.expiry")
async def test_a_question_may_expire_and_counts_as_a_no() -> None:
    @tool(effect="once", confirm="Do it?", confirm_timeout_s=0.01)
    def act() -> str:
        """Act."""
        raise AssertionError("it was carried out")

    agent, _ = scripted(calls("act"), tools=[act])
    async with Engine() as engine, agent.stream("Go.", engine=engine) as run:
        result = await run.result()
        closed = [event async for event in run if isinstance(event, AwaitClosed)]
        with pytest.raises(Conflict) as error:
            await run.approve(closed[0].id)
        assert error.value.code == "await_expired"
    assert [(event.outcome, event.by) for event in closed] == [("expired", "runtime")]
    assert [call.how for call in result.calls] == ["denied"]


async def test_a_durable_run_is_approved_in_another_process(tmp_path: Path) -> None:
    agent, _ = payer(limits=Limits(loop_soft=0, four_eyes=True))
    async with Engine(tmp_path / "data", agents=[agent]) as engine:
        run = await engine.start(agent, "Pay Ann 5.", requested_by="user:ann")
        (question,) = await asked(engine, run)
    async with Engine(tmp_path / "data", agents=[agent]) as engine:
        (again,) = await engine.awaits(kinds=["confirm"], agent="payments")
        assert again == question
        run = engine.attach(again.run_id)
        with pytest.raises(WeftlineError) as error:
            await run.approve(again.id, by="user:ann")
        assert error.value.code == "four_eyes"
        with pytest.raises(WeftlineError) as changed:
            await run.approve(again.id, args={"amount": 4, "payee": "Ann"}, by="user:bob")
        assert changed.value.code == "four_eyes"
        await run.approve(again.id, args=question.args, by="user:bob")
        assert (await run.result()).status == "succeeded"
    assert paid == [(5.0, "Ann")]
