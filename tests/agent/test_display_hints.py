"""What people read about a call while it is under way."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, tool
from weftline.events import CallOpened
from weftline.hooks import ToolGate
from weftline.testing import ScriptedModel, calls


@tool(effect="read", title="Stock", display_hint="Looking for {sku} in {place}")
def stock(sku: str, place: str = "Rome") -> str:
    """How many there are."""
    return "3"


@tool(effect="read", title="Weather forecast")
def weather(city: str) -> str:
    """The weather."""
    return "Rain."


@tool(effect="read")
def look_up(word: str) -> str:
    """Looks a word up."""
    return "?"


@tool(effect="read", title="Count", display_hint="Counting to {n:d}")
def count(n: str) -> str:
    """Counts."""
    return n


def together(*turns: dict[str, Any]) -> dict[str, Any]:
    """One turn with the calls of these."""
    return {"tool_calls": [call for turn in turns for call in turn["tool_calls"]]}


@pytest.mark.requirement("run.call.display_hint")
async def test_call_is_announced_by_code_template_or_title(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = [
        calls("stock", sku="A-7"),
        calls("stock", sku="secret"),
        calls("weather", city="Rome"),
        calls("look_up", word="x"),
        calls("count", n="three"),
        calls("stock", sku="A\n" + "x" * 500),
    ]
    turn = together(*asked)
    agent = Agent(ScriptedModel([turn, "Done."]), tools=[stock, weather, look_up, count], limits=Limits(loop_soft=0))

    @agent.on(ToolGate)
    def discreet(gate: ToolGate) -> None:
        if gate.args.get("sku") == "secret":
            gate.display_hint = "Looking for something"

    async with asyncio.timeout(60), Engine() as engine:
        with caplog.at_level(logging.WARNING, "weftline.tools.asking"):
            run = await engine.start(agent, "Go.")
            result = await run.result()
        hints = [event.display_hint async for event in run if isinstance(event, CallOpened)]
    assert hints[:5] == ["Looking for A-7 in Rome", "Looking for something", "Weather forecast", "Look up", "Count"]
    assert hints[5].startswith("Looking for A xxx") and len(hints[5]) == 200
    assert all(call.ok for call in result.calls)
    assert "the display hint of tool count cannot be created: ValueError" in caplog.text


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("Looking for {name}", "display_hint names {name}, which is not an argument of it"),
        ("Looking for {sku", "display_hint is not a template"),
        ("  ", "display_hint is empty"),
        ("{sku.upper}", "display_hint may name arguments"),
    ],
)
def test_template_that_cannot_work_is_refused_where_it_is_written(template: str, words: str) -> None:
    def stock(sku: str) -> str:
        return "3"

    with pytest.raises(ValueError) as refused:
        tool(display_hint=template)(stock)
    assert words in str(refused.value)
