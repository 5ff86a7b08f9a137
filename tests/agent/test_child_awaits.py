"""Questions of subagents: seen and answered from every run above, whose time stands still with theirs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, tool
from weftline.agent.run import Run
from weftline.errors import Conflict, NotFound
from weftline.events import AwaitOpened, CallFinished, ChildStarted
from weftline.kernel.entries import CallClosed, ChildWaits, Fact, decode_fact
from weftline.kernel.evolve import fold
from weftline.kernel.state import State
from weftline.policies import Policy
from weftline.runs import Await
from weftline.runtime import ids
from weftline.testing import ScriptedModel, calls

PATIENCE_S = 60


@tool(effect="once", confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    return f"Paid {amount}."


@tool(effect="read", concurrent=True)
def look() -> str:
    """Looks."""
    return "Seen."


def together(*turns: dict[str, Any]) -> dict[str, Any]:
    """One turn with the calls of these."""
    return {"tool_calls": [call for turn in turns for call in turn["tool_calls"]]}


def family() -> Agent[Any, Any]:
    """An agent that has another one ask a third one, which asks a person."""
    limits = Limits(loop_soft=0)
    payer = Agent(ScriptedModel([calls("pay", amount=5), "Paid."]), name="payer", tools=[pay], limits=limits)
    both = together(calls("ask_payer", task="Pay."), calls("look"))
    clerk = Agent(
        ScriptedModel([both, "Done."]),
        name="clerk",
        tools=[payer.as_tool("Pays.", name="ask_payer"), look],
        limits=limits,
        policy=Policy(time_budget_s=600),
    )
    model = ScriptedModel([calls("ask_clerk", task="Pay."), "Thanks."])
    return Agent(
        model,
        name="boss",
        tools=[clerk.as_tool("Sees to it.", name="ask_clerk")],
        limits=limits,
        policy=Policy(time_budget_s=900),
    )


async def child_of(run: Run[Any]) -> str:
    async for event in run:
        if isinstance(event, ChildStarted):
            return event.child_id
    raise AssertionError("it began no run")


async def facts_until(engine: Engine, run_id: str, waits: bool, *, closed: int = 0) -> list[tuple[int, Fact]]:
    """The facts of a run up to where one has said whether its child waits, and so many calls are closed."""
    host = await engine.runtime()
    follower = host.follow(ids.key_of(run_id), run_id)
    found: list[tuple[int, Fact]] = []
    try:
        while (batches := await follower.next()) is not None:
            for item in [item for batch in batches for item in batch.items if item.head]:
                found.append((item.at, decode_fact.decode(item.head)))
                facts = [fact for _, fact in found]
                if ChildWaits(0, 0, waits) in facts and sum(isinstance(fact, CallClosed) for fact in facts) >= closed:
                    return found
    finally:
        follower.close()
    raise AssertionError("it was not told")


async def asked(engine: Engine, *runs: Run[Any]) -> list[list[Await]]:
    async for event in runs[-1]:
        if isinstance(event, AwaitOpened):
            break
    return [await engine.awaits(run_id=run.id) for run in runs]


@pytest.mark.requirement("run.child.await")
async def test_subagent_question_can_be_answered_on_every_run_above(tmp_path: Path) -> None:
    agent = family()
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        top = await engine.start(agent, "Go.")
        middle = top.below(await child_of(top))
        bottom = middle.below(await child_of(middle))
        of_top, of_middle, of_bottom = await asked(engine, top, middle, bottom)
        assert of_top == of_middle == of_bottom and len(of_top) == 1
        [question] = of_top
        assert (question.run_id, question.root_run_id, question.question) == (bottom.id, top.id, "Pay 5?")
        async for event in middle:  # the sibling of the call that waits has its result
            if isinstance(event, CallFinished):
                assert (event.name, event.ok) == ("look", True)
                break
        for run, closed in ((middle, 1), (top, 0)):
            stands = fold(State(), await facts_until(engine, run.id, True, closed=closed))
            assert stands.policy.time.since is None and stands.open_children
        stranger = Agent(ScriptedModel([calls("pay", amount=6)]), name="stranger", tools=[pay])
        other = await engine.start(stranger, "Go.")
        through = f"{bottom.id}:{question.id}"
        for run, wrong in ((other, through), (bottom, f"{top.id}:await_0_0_1"), (top, "run_x:y"), (top, question.id)):
            with pytest.raises(NotFound) as unknown:
                await run.approve(wrong)
            assert unknown.value.code == "unknown_await"
        await top.approve(through, by="user:ann")
        for run, id in ((middle, through), (bottom, question.id)):
            with pytest.raises(Conflict) as late:
                await run.deny(id, by="user:bob")
            assert late.value.code in ("await_closed", "run_terminal")
        result = await top.result()
        for run in (middle, top):
            goes_on = fold(State(), await facts_until(engine, run.id, False))
            assert goes_on.policy.time.since is not None
        await other.cancel()
    assert (result.status, result.text) == ("succeeded", "Thanks.")


@pytest.mark.requirement("run.child.await")
async def test_such_question_outlives_process_and_is_answered_from_above(
    tmp_path: Path,
) -> None:
    agent = family()
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        top = await engine.start(agent, "Go.")
        middle = top.below(await child_of(top))
        bottom = middle.below(await child_of(middle))
        await asked(engine, bottom)
        await facts_until(engine, top.id, True)
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        [question] = await engine.awaits()
        await engine.attach(middle.id).approve(f"{bottom.id}:{question.id}")
        assert (await engine.attach(top.id).result()).text == "Thanks."
