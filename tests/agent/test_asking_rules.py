"""Rules of asking people that hold whoever asks: names for four eyes, tools that changed, subagents with own models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, tool
from weftline.errors import WeftlineError
from weftline.events import AwaitOpened
from weftline.testing import ScriptedModel, calls

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
    async for event in run:
        if isinstance(event, AwaitOpened):
            break
    (asked,) = await engine.awaits()
    return run, asked.id


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


@pytest.mark.parametrize("odd", [{"remember": {}}, {"remember": "always"}, {"args": [5]}, {"args": "5"}])
async def test_an_approval_of_the_wrong_shape_is_refused_and_the_run_waits_on(odd: dict[str, Any]) -> None:
    async with Engine() as engine:
        run, id = await question(engine, payer())
        with pytest.raises(WeftlineError) as refused:
            await run.approve(id, **odd)
        assert refused.value.code == "invalid_answer"
        await run.approve(id)
        assert (await run.result()).text == "Done."


async def test_a_call_whose_tool_changed_since_it_was_approved_is_not_made(tmp_path: Path) -> None:
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
    assert (result.calls[0].how, PAID) == ("failed", [])
    assert "has changed since a person approved" in str(result.calls[0].result)


async def test_a_subagent_below_a_durable_agent_brings_its_own_model(tmp_path: Path) -> None:
    kid = Agent(ScriptedModel(["From the kid."]), name="kid")
    parent = Agent(ScriptedModel([calls("kid", task="Go."), "Done."]), name="parent", tools=[kid.as_tool("A kid.")])
    async with Engine(tmp_path / "data", agents=[parent]) as engine:
        result = await (await engine.start(parent, "Go.")).result()
    assert result.text == "Done."
    assert "From the kid." in str(result.calls[0].result)
