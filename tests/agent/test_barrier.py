"""The questions of one turn are one barrier: asked together, answered in any order, and one pause from end to end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, ask_user, tool
from weftline.agent.run import Run
from weftline.details import AwaitConfirmation, AwaitQuestions, Paused, Resumed
from weftline.events import CallFinished, TurnFinished
from weftline.testing import ScriptedModel, calls

from .kit import results_in

PATIENCE_S = 60


@tool(effect="once", confirm="Pay {amount}?")
def pay(amount: int) -> str:
    """Pays."""
    return f"Paid {amount}."


@tool(effect="read")
def look() -> str:
    """Looks."""
    return "Seen."


def together(*turns: dict[str, Any]) -> dict[str, Any]:
    """One turn with the calls of these."""
    return {"tool_calls": [call for turn in turns for call in turn["tool_calls"]]}


async def until_paused(run: Run[Any]) -> list[Any]:
    """What is told up to the pause."""
    told: list[Any] = []
    async for event in run.events(profile="all"):
        told.append(event)
        if isinstance(event, Paused):
            return told
    raise AssertionError("the run did not wait for anybody")


def of(events: list[Any], *kinds: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kinds)]


@pytest.mark.requirement("run.await.barrier")
async def test_awaits_of_a_turn_have_one_pause_and_model_call(tmp_path: Path) -> None:
    asks = [calls("pay", amount=1), calls("ask_user", question="Who?"), calls("look"), calls("pay", amount=2)]
    model = ScriptedModel([together(*asks), "Done."])
    agent = Agent(model, name="payer", tools=[pay, look, ask_user], limits=Limits(loop_soft=0))
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Go.")
        before = await until_paused(run)
        announced = of(before, AwaitConfirmation, AwaitQuestions)
        assert [one.name for one in announced] == ["pay", "ask_user", "pay"]
        assert [one.name for one in of(before, CallFinished)] == ["look"]
        [paused] = of(before, Paused)
        assert (paused.reason, paused.requested_by) == ("await", "runtime")
        assert paused.awaits == tuple([one.id for one in announced])
    async with asyncio.timeout(PATIENCE_S), Engine(tmp_path, agents=[agent]) as engine:
        run = engine.attach(run.id)
        assert tuple([one.id for one in await engine.awaits()]) == paused.awaits
        first, second, third = paused.awaits
        await run.approve(third)
        await run.answer(second, "Ann.")
        assert len(model.requests) == 1
        await run.deny(first)
        result = await run.result()
        events = [event async for event in run.events(profile="all")]
        assert [event async for event in run.events(profile="all", after=paused.seq)] == [
            event for event in events if event.seq > paused.seq
        ]
    assert of(events, Paused) == [paused]
    [resumed] = of(events, Resumed)
    assert (resumed.notes, resumed.requested_by) == ("await_completed", "runtime")
    after = events[events.index(resumed) :]
    assert [event.text for event in of(after, TurnFinished)] == ["Done."] and len(model.requests) == 2
    assert results_in(result.messages)[1:] == ["Ann.", "Seen.", "Paid 2."]
    model.assert_done()
