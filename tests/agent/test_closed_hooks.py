"""Hooks that must not fail, and hooks that set what cannot be used: the call, the turn or nothing is stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weftline import Agent, tool
from weftline.agent.hooking.calling import Hook
from weftline.hooks import (
    AfterModel,
    BeforeModel,
    ContextBuilt,
    MessagesTaken,
    Point,
    ResultsStored,
    RowsLoaded,
    RunEnded,
    RunStarted,
    SystemRendered,
    TextStreamed,
    ToolAfter,
    ToolAfterSuccess,
    ToolBefore,
    ToolError,
    ToolTransform,
    TurnEnded,
)
from weftline.runs import AgentFailed
from weftline.testing import ScriptedModel, calls

PAID: list[int] = []


@tool(effect="once")
def pay(amount: int) -> str:
    """Pays."""
    PAID.append(amount)
    return f"paid {amount}"


def raises(point: Point) -> None:
    raise LookupError("no ledger")


def closed(point: type[Point]) -> Hook[Any]:
    return Hook(point, raises, fail_closed=True)


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    PAID.clear()


async def paid(*hooks: Hook[Any]) -> str:
    model = ScriptedModel([calls("pay", amount=5), "Done."])
    result = await Agent(model, tools=[pay], hooks=hooks).run("Pay.")
    return result.calls[0].result


async def test_watcher_that_must_not_fail_keeps_call_from_beginning() -> None:
    assert "was not called" in await paid(closed(ToolBefore))
    assert PAID == []


@pytest.mark.parametrize("point", [ToolTransform, ToolAfter, ToolAfterSuccess])
async def test_after_call_model_learns_that_tool_has_run(point: type[Point]) -> None:
    text = await paid(closed(point))
    assert text.startswith("pay has run")
    assert "Do not repeat the call" in text
    assert PAID == [5]


@pytest.mark.parametrize(
    ("point", "asked"),
    [
        (RunStarted, 0),
        (MessagesTaken, 0),
        (BeforeModel, 0),
        (TextStreamed, 1),
        (AfterModel, 1),
        (ResultsStored, 1),
        (TurnEnded, 1),
    ],
)
async def test_between_the_calls_the_turn_fails(point: type[Point], asked: int) -> None:
    turn = {"text": "Paying.", **calls("pay", amount=5)}
    model = ScriptedModel([turn, "Done."])
    with pytest.raises(AgentFailed, match=f"The hook raises at {point.name} failed: no ledger") as caught:
        await Agent(model, tools=[pay], hooks=[closed(point)]).run("Pay.")
    assert isinstance(caught.value.__cause__, LookupError)
    assert len(model.requests) == asked


@pytest.mark.parametrize("point", [RunEnded])
async def test_where_nothing_can_be_stopped_any_more_run_goes_on(point: type[Point]) -> None:
    assert await paid(closed(point)) == "paid 5"


def sets(**values: object) -> Callable[[Any], None]:
    def change(point: Any) -> None:
        for name, value in values.items():
            setattr(point, name, value)

    return change


MISFITS: list[tuple[type[Point], dict[str, object], str]] = [
    (ContextBuilt, {"messages": None}, "must be a sequence of messages, not None"),
    (ContextBuilt, {"messages": []}, "must not be empty"),
    (RowsLoaded, {"messages": ["hello"]}, "item 0 is str"),
    (SystemRendered, {"system": 7}, "must be a string, not int"),
    (BeforeModel, {"temperature": "hot"}, "must be None or a number of 0 or more, not str"),
    (BeforeModel, {"reasoning": 101}, "an integer from 0 to 100, not 101"),
    (BeforeModel, {"reasoning": True}, "an integer from 0 to 100, not bool"),
    (BeforeModel, {"max_output_tokens": 0}, "an integer of 1 or more, not 0"),
    (BeforeModel, {"top_p": float("nan")}, "from 0 to 1, not nan"),
    (BeforeModel, {"stop": "END"}, "must be a sequence of strings"),
    (BeforeModel, {"tools": [pay]}, "must be a sequence of strings"),
]


@pytest.mark.parametrize(("point", "values", "words"), MISFITS)
async def test_unfitting_request_part_is_dropped_and_reported(
    point: type[Point], values: dict[str, object], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    def agent(*, fail_closed: bool) -> Agent:
        change = Hook(point, sets(**values), fail_closed=fail_closed)
        return Agent(ScriptedModel(["Done."]), instructions="Be brief.", tools=[pay], hooks=[change])

    lenient = agent(fail_closed=False)
    assert (await lenient.run("Go.")).text == "Done."
    assert words in caplog.text
    assert isinstance(lenient.model, ScriptedModel)
    (request,) = lenient.model.requests
    assert (request.system, len(request.messages), len(request.tools)) == ("Be brief.", 1, 1)
    with pytest.raises(AgentFailed, match=words.partition("(")[0]):
        await agent(fail_closed=True).run("Go.")


async def test_unfitting_result_part_is_dropped_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    for values in ({"is_error": "no"}, {"result": object()}):
        assert await paid(Hook(ToolTransform, sets(**values))) == "paid 5"
    assert "must be True or False, not str" in caplog.text
    assert "is not something that a tool may return" in caplog.text
    assert await paid(Hook(ToolTransform, sets(result={"paid": 5}))) == '{"paid":5}'
    assert await paid(Hook(ToolError, sets(result=None))) == "paid 5"


async def test_list_that_hook_keeps_does_not_change_request() -> None:
    kept: list[Any] = []

    def keeps(built: ContextBuilt) -> None:
        kept.extend(built.messages)
        built.messages = kept

    def clears(request: BeforeModel) -> None:
        kept.clear()

    model = ScriptedModel(["Done."])
    assert (await Agent(model, hooks=[Hook(ContextBuilt, keeps), Hook(BeforeModel, clears)]).run("Go.")).text == "Done."
    assert len(model.requests[0].messages) == 1
