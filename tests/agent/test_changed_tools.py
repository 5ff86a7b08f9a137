"""Agents whose tools a deploy has changed: nested calls, questions, subagents, replays."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from weftline import Agent, Engine, prompts, tool
from weftline.hooks import ToolGate
from weftline.testing import ScriptedModel, calls

from .kit import asked
from .test_nested_calls import Host, say


def cents(amount: int) -> int:
    return amount * 100 if amount < 100 else amount


OLD, CENTS = int, Annotated[int, AfterValidator(cents)]


def paying(hint: Any, paid: list[int], **options: Any) -> Any:
    """The tool `pay` whose amount has this type."""

    def pay(amount: int) -> str:
        """Pays."""
        paid.append(amount)
        return f"Paid {amount}."

    pay.__annotations__ = {"amount": hint, "return": str}
    return tool(**options)(pay)


async def test_nested_call_of_another_version_is_refused_with_a_reason(tmp_path: Path) -> None:
    paid: list[int] = []

    async def script(ask: Any) -> str:
        return await say(ask, "pay", '{"amount": 1}')

    def hosted(hint: Any) -> Agent[Any, Any]:
        pay = paying(hint, paid, confirm="Pay {amount}?")
        return Agent(ScriptedModel([calls("host"), "Done."]), name="hosted", tools=[Host(script), pay])

    before, after = hosted(OLD), hosted(CENTS)
    async with Engine(tmp_path, agents=[before]) as engine:
        run_id = (run := await engine.start(before, "Go.")).id
        await asked(run)
    async with Engine(tmp_path, agents=[after]) as engine:
        run = engine.attach(run_id, after)
        [question] = await engine.awaits()
        await run.approve(question.id)
        result = await run.result()
    assert paid == []
    assert [(call.name, call.how) for call in result.calls] == [("pay", "not_run"), ("host", "returned")]
    assert result.calls[1].result == "! " + prompts.calls.changed_since_asked("pay")


async def test_people_are_not_asked_about_other_arguments_than_log_has(tmp_path: Path) -> None:
    """The gate of the first process never decides; the question of the second would name another amount."""
    paid: list[int] = []
    shown: list[int] = []
    looked, decided = asyncio.Event(), asyncio.Event()

    def question(amount: int) -> str:
        shown.append(amount)
        return f"Pay {amount}?"

    def payer(hint: Any) -> Agent[Any, Any]:
        pay = paying(hint, paid, confirm=question)
        agent = Agent(ScriptedModel([calls("pay", amount=1), "Done."]), name="payer", tools=[pay])

        @agent.on(ToolGate)
        async def look(gate: ToolGate) -> None:
            looked.set()
            await decided.wait()

        return agent

    before, after = payer(OLD), payer(CENTS)
    async with Engine(tmp_path, agents=[before], drain_s=0) as engine:
        run_id = (await engine.start(before, "Go.")).id
        await looked.wait()
    decided.set()
    async with Engine(tmp_path, agents=[after]) as engine:
        result = await engine.attach(run_id, after).result()
        assert (await engine.replay(run_id, agents=[before])).divergence is None
    assert (paid, shown) == ([], [])
    assert [(call.how, call.result) for call in result.calls] == [("blocked", prompts.calls.changed_since_asked("pay"))]


@pytest.mark.parametrize("edited", [False, True])
async def test_run_with_an_unmade_call_replays_identically(tmp_path: Path, edited: bool) -> None:
    paid: list[int] = []

    def payer(hint: Any) -> Agent[Any, Any]:
        pay = paying(hint, paid, confirm="Pay {amount}?")
        return Agent(ScriptedModel([calls("pay", amount=1), "Done."]), name="payer", tools=[pay])

    before, after = payer(OLD), payer(CENTS)
    async with Engine(tmp_path, agents=[before]) as engine:
        run_id = (run := await engine.start(before, "Go.")).id
        question = await asked(run)
        if edited:
            await run.pause()
            await run.approve(question.id, args={"amount": 2})
    async with Engine(tmp_path, agents=[after]) as engine:
        run = engine.attach(run_id, after)
        if edited:
            await run.resume()
        else:
            await run.approve(question.id)
        result = await run.result()
        assert (await engine.replay(run_id, agents=[before])).divergence is None
    [call] = result.calls
    assert (call.how, call.result, paid) == ("not_run", prompts.calls.changed_since_asked("pay"), [])


async def test_subagent_is_not_briefed_with_other_arguments_than_log_has(tmp_path: Path) -> None:
    briefed: list[int] = []

    def boss(hint: Any) -> tuple[Agent[Any, Any], ScriptedModel]:
        def brief(depth: int) -> str:
            briefed.append(depth)
            return f"Dig {depth} m."

        brief.__annotations__ = {"depth": hint, "return": str}
        digger = Agent(below := ScriptedModel(["Found."]), name="digger")
        tools = [digger.as_tool("Digs.", prompt=brief)]
        agent = Agent(ScriptedModel([calls("digger", depth=1), "Done."]), name="boss", tools=tools)
        agent.on(ToolGate)(lambda gate: gate.ask("Dig?"))
        return agent, below

    (before, _), (after, below) = boss(OLD), boss(CENTS)
    async with Engine(tmp_path, agents=[before]) as engine:
        run_id = (run := await engine.start(before, "Go.")).id
        question = await asked(run)
    async with Engine(tmp_path, agents=[after]) as engine:
        run = engine.attach(run_id, after)
        await run.approve(question.id)
        result = await run.result()
    assert (briefed, below.requests) == ([], [])
    [call] = result.calls
    assert (call.how, call.result) == ("not_run", prompts.calls.changed_since_asked("digger"))
