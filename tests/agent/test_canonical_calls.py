"""What a call is made with and what it gave is the same for everybody; only an answer that was completed counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, tool
from weftline.hooks import ToolBefore
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

from .kit import results_in, scripted

HUGE = 2**70
ODD: dict[str, Any] = {"nan": float("nan"), "keys": {1: "one"}, "infinite": [float("inf")]}


@tool(effect="once")
def echo(*, value: object) -> object:
    """Returns what it gets."""
    return ODD.get(value, value) if isinstance(value, str) else value


@pytest.mark.requirement("run.result.canonical")
async def test_arguments_and_results_are_the_same_everywhere(tmp_path: Path) -> None:
    value = {"z": 1, "a": [HUGE, 1.5, None, True], "m": {"b": -0.0, "a": 3}}
    written = '{"a":[1180591620717411303424,1.5,null,true],"m":{"a":3,"b":-0.0},"z":1}'
    got: list[Any] = []
    agent: Agent[Any, Any] = Agent("lab:script", name="a", tools=[echo])

    @agent.on(ToolBefore)
    def look(before: ToolBefore) -> None:
        got.append(before.args["value"])

    models = Catalog()
    models.add(ScriptedModel([calls("echo", value=value), calls("echo", value=None), "Done."]), name="lab")
    async with Engine(tmp_path, agents=[agent], models=models) as engine:
        run = await engine.start(agent, "Go.")
        result = await run.result()
    assert got == [value, None] and type(got[0]["z"]) is int
    assert results_in(result.messages) == [written, "null"]
    async with Engine(tmp_path, agents=[agent], models=models) as engine:
        again = await engine.attach(run.id).result()
        assert again.calls == result.calls and again.calls[0].args == {"value": value}
        assert (await engine.replay(run.id)).divergence is None


@pytest.mark.requirement("run.result.canonical")
@pytest.mark.parametrize("odd", list(ODD))
async def test_result_that_json_cannot_hold_is_error_and_never_changed(odd: str) -> None:
    agent, _ = scripted(calls("echo", value=odd), tools=[echo])
    [call] = (await agent.run("Go.")).calls
    assert call.failure is not None and (call.ok, call.failure.kind) == (False, "malformed_result")
    assert "cannot be written as JSON" in call.result


@pytest.mark.requirement("run.turn.retry_selected")
async def test_retried_turn_counts_only_once_except_its_price() -> None:
    used = {"input": 3, "output": 2}
    broken = calls("pay", to="bob") | {
        "deltas": ["Wro", "ng"],
        "error": {"class": "server", "message": "cut"},
        "usage": used,
    }
    made: list[str] = []

    @tool(effect="once")
    def pay(to: str) -> str:
        """Pays."""
        made.append(to)
        return "paid"

    model = ScriptedModel([broken, calls("pay", to="ann") | {"usage": used}, broken, {"text": "Right.", "usage": used}])
    result = await Agent(model, tools=[pay]).run("Go.")
    assert (result.text, made, result.turns, result.attempts) == ("Right.", ["ann"], 2, 4)
    assert "Wro" not in str(result.messages) and not any("Wro" in str(one.messages) for one in model.requests)
    assert result.usage.input == 12 and result.usage.output >= 8
