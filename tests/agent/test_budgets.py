"""Budgets in the library: an agent's runs spend no more than they may, subagents included."""

from __future__ import annotations

import re

import pytest

from weftline import Agent, Budget, RunFailed, tool
from weftline.testing import ScriptedModel, calls


@tool(effect="read")
def look(n: int) -> str:
    """Looks."""
    return f"saw {n}"


def _looks(times: int) -> ScriptedModel:
    return ScriptedModel([*[calls("look", n=n) for n in range(times)], "done"])


async def test_a_run_answers_once_more_when_its_budget_is_used_up() -> None:
    agent = Agent(_looks(2), tools=[look], budget=Budget(calls=2))
    assert (await agent.run("Look.")).text == "done"
    tight = Agent(ScriptedModel([calls("look", n=1), calls("look", n=2), "as far as I came"]), tools=[look])
    result = await tight.run("Look.", budget=Budget(calls=1))
    assert result.text == "as far as I came"
    assert [call.ok for call in result.calls] == [True, False]


async def test_a_run_can_only_tighten_the_budget_of_its_agent() -> None:
    agent = Agent(_looks(9), tools=[look], budget=Budget(calls=2, on_exceeded="stop"))
    with pytest.raises(RunFailed) as caught:
        await agent.run("Look.", budget=Budget(calls=8, on_exceeded="stop"))
    assert "2 calls" in str(caught.value)


@pytest.mark.requirement("run.tree.child")
async def test_a_childs_limits_only_tighten_what_is_left_above_it() -> None:
    seen: list[int] = []

    @tool(effect="read")
    def look(n: int) -> str:
        """Looks."""
        seen.append(n)
        return f"saw {n}"

    helper = Agent(
        ScriptedModel([calls("look", n=1), calls("look", n=2), "helped"]),
        name="helper",
        tools=[look],
        budget=Budget(calls=100, on_exceeded="stop"),
    )
    boss = Agent(
        ScriptedModel([calls("helper", task="Help."), "all done", "all done"]),
        name="boss",
        tools=[helper.as_tool("Helps.")],
        budget=Budget(calls=2),
    )
    result = await boss.run("Work.")
    assert result.text == "all done"
    [call] = result.calls  # one for the call itself, one for the child's first
    assert call.ok and "helped" in str(call.result)
    assert seen == [1]


@pytest.mark.requirement("run.tree.child")
async def test_a_child_that_has_spent_its_own_is_an_error_for_its_parent_which_goes_on() -> None:
    helper = Agent(
        ScriptedModel([calls("look", n=1), calls("look", n=2)]),
        name="helper",
        tools=[look],
        budget=Budget(calls=1, on_exceeded="stop"),
    )
    model = ScriptedModel([calls("helper", task="Help."), "I went on"])
    boss = Agent(model, name="boss", tools=[helper.as_tool("Helps.")], budget=Budget(calls=10))
    result = await boss.run("Work.")
    assert result.text == "I went on"
    [call] = result.calls
    assert not call.ok and "budget of the child" in str(call.result)


@pytest.mark.requirement("run.tree.levels")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"usd": -1}, "usd must be 0 or more, not -1"),
        ({"calls": -1}, "calls must be 0 or more"),
        ({"tokens": float("inf")}, "tokens must be at most 1,000,000,000,000,000, not inf"),
        ({"seconds": 1e300}, "seconds must be at most 1,000,000,000, not"),
        ({"usd": 1e300}, "usd must be at most 1,000,000, not"),
        ({"calls": 10**30}, "calls must be at most 1,000,000,000,000,000, not"),
        ({"usd": float("nan")}, "usd must be a number, not nan"),
        ({"calls": True}, "calls must be a number, not True"),
        ({"seconds": "5"}, "seconds must be a number, not '5'"),
        ({"tokens": 1.5}, "tokens must be a whole number, not 1.5"),
        ({"usd": 1e-12}, "usd must be 0, or at least 0.000000001, not 1e-12"),
        ({"seconds": 1e-7}, "seconds must be 0, or at least 0.000001, not 1e-07"),
        ({"on_exceeded": "explode"}, "on_exceeded is stop, final_turn or ask"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        Budget(**given)  # pyright: ignore[reportArgumentType]


def test_the_bounds_of_a_budget_are_let_through() -> None:
    most = Budget(usd=1_000_000, tokens=10**15, seconds=10**9, calls=10**15).rule
    assert {most.nusd, most.tokens, most.active_us, most.calls} == {10**15}
    least = Budget(usd=1e-9, seconds=1e-6, calls=0).rule
    assert (least.nusd, least.active_us, least.calls) == (1, 1, 0)
