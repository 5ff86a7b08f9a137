"""Budgets in the library: an agent's runs spend no more than they may, subagents included."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from weftline import Agent, Budget, Engine, Run, RunFailed, tool
from weftline.agent.engine.budget_methods import BudgetUse
from weftline.agent.settings import budget_of
from weftline.errors import Conflict, InvalidRequest, NotFound
from weftline.events import AwaitClosed, AwaitOpened, Event
from weftline.kernel.policy import BudgetRule
from weftline.testing import ScriptedModel, calls

from .kit import asked


@tool(effect="read")
def look(n: int) -> str:
    """Looks."""
    return f"saw {n}"


def _looks(times: int) -> ScriptedModel:
    return ScriptedModel([*[calls("look", n=n) for n in range(times)], "done"])


ASKS = Budget(calls=1, on_exceeded="ask")


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine() as engine:
        yield engine


def _spent(budget: BudgetUse) -> dict[tuple[str, str], tuple[float, float]]:
    return {(one.unit, one.period): (one.spent, one.limit) for one in budget.limits}


async def _closed(run: Run[str]) -> AwaitClosed:
    [closed] = [event async for event in run if isinstance(event, AwaitClosed)]
    return closed


@pytest.mark.requirement("run.tree.ask")
async def test_run_that_asks_continues_when_its_limit_is_raised(engine: Engine) -> None:
    run = await engine.start(Agent(_looks(2), tools=[look], budget=ASKS), "Look.")
    opened = await asked(run)
    [waiting] = await engine.awaits(kinds=["budget"])
    assert (waiting.id, waiting.args["limit"], waiting.args["spent"]) == (opened.id, 1, 1)
    made = await run.set_budget(Budget(calls=2, on_exceeded="ask"), by="ann")
    assert (made.level, made.id) == ("run", run.id)
    assert [(one.limit, one.set_by, one.set_at is not None) for one in made.limits] == [(2, "ann", True)]
    assert [call.ok for call in (await run.result()).calls] == [True, True]
    closed = await _closed(run)
    assert (closed.outcome, closed.by) == ("approved", "ann")
    with pytest.raises(Conflict, match="The run has ended, or has no budget of its own"):
        await run.set_budget(Budget(calls=3))


@pytest.mark.requirement("run.tree.ask")
@pytest.mark.parametrize("level", ["workspace", "agent", "thread"])
async def test_a_limit_above_a_run_is_raised_in_python(engine: Engine, level: str) -> None:
    agent = Agent(_looks(2), name="looker", tools=[look])
    where = {"agent": {"agent": agent}, "thread": {"thread": "t"}, "workspace": {}}[level]
    await engine.set_budget(ASKS, **where, by="ann")  # pyright: ignore[reportArgumentType]
    run = await engine.start(agent, "Look.", thread="t")
    await asked(run)
    [budget] = await run.budgets()
    assert (budget.level, _spent(budget)) == (level, {("calls", "total"): (1, 1)})
    assert await engine.budgets() == [budget]
    await engine.set_budget(**where, by="bob")  # pyright: ignore[reportArgumentType]
    await run.result()
    assert (await _closed(run)).by == "bob"
    assert await engine.budgets() == []


async def test_limits_for_days_and_months_are_set_together(engine: Engine) -> None:
    made = await engine.set_budget(Budget(usd=9), per_day=Budget(usd=0.5), per_month=Budget(usd=5, seconds=60))
    assert _spent(made) == {
        ("usd", "total"): (0, 9),
        ("usd", "day"): (0, 0.5),
        ("usd", "month"): (0, 5),
        ("seconds", "month"): (0, 60),
    }


async def test_a_limit_that_nobody_can_have_is_refused(engine: Engine) -> None:
    agent = Agent(ScriptedModel(["Hi.", "Hi."]), tools=[look])
    run = await engine.start(agent, "Hi.", thread="t")
    with pytest.raises(InvalidRequest, match="a thread cannot have a limit per day or month"):
        await engine.set_budget(per_day=Budget(calls=1), thread="t")
    with pytest.raises(InvalidRequest, match="one of agent=, thread= and run_id="):
        await engine.set_budget(ASKS, thread="t", run_id=run.id)
    with pytest.raises(InvalidRequest, match="needs a name"):
        await engine.set_budget(ASKS, agent=agent)
    with pytest.raises(InvalidRequest, match="A budget must be a Budget, not dict"):
        await engine.set_budget({"calls": 1})  # pyright: ignore[reportArgumentType]
    with pytest.raises(NotFound, match="no agent 'nobody'"):
        await engine.set_budget(ASKS, agent="nobody")
    with pytest.raises(NotFound):
        await engine.set_budget(ASKS, run_id="run_1abcdefabcdef")
    with pytest.raises(Conflict, match="no budget of its own"):
        await run.set_budget(ASKS)
    assert await engine.budgets() == []


async def test_limit_that_is_raised_elsewhere_lets_durable_run_go_on(tmp_path: Path) -> None:
    agent = Agent(_looks(2), name="looker", tools=[look], budget=ASKS)
    async with Engine(tmp_path, agents=[agent]) as engine:
        run = await engine.start(agent, "Look.")
        await asked(run)
    seen: list[Event] = []
    async with Engine(tmp_path, agents=[agent]) as engine:
        run = engine.attach(run.id, agent)
        await run.set_budget(Budget(calls=2), by="ann")
        seen = [event async for event in run]
        with pytest.raises(NotFound, match="nobody"):
            await engine.set_budget(ASKS, agent="nobody")
        await engine.set_budget(per_day=Budget(calls=9), agent="looker")
        assert [(one.level, one.id) for one in await engine.budgets()] == [("agent", "looker")]
    assert [event.by for event in seen if isinstance(event, AwaitClosed)] == ["ann"]


def test_a_limit_is_raised_in_code_without_a_loop() -> None:
    with Agent(_looks(2), tools=[look], budget=ASKS).stream_sync("Look.") as run:
        assert any(isinstance(event, AwaitOpened) for event in run)
        [budget] = run.budgets()
        assert budget.level == "run" and run.set_budget(Budget(calls=5)).limits[0].limit == 5
        assert run.result().text == "done"


async def test_run_answers_once_more_when_its_budget_is_used_up() -> None:
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
async def test_child_without_budget_left_is_an_error_for_its_parent() -> None:
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
        ({"tokens": float("inf")}, "tokens must be an integer, not inf"),
        ({"seconds": 1e300}, "seconds must be at most 1,000,000,000, not"),
        ({"usd": 1e300}, "usd must be at most 1,000,000, not"),
        ({"calls": 10**30}, "calls must be at most 1,000,000,000,000,000, not"),
        ({"usd": float("nan")}, "usd must be a number, not nan"),
        ({"calls": True}, "calls must be an integer, not True"),
        ({"seconds": "5"}, "seconds must be a number, not '5'"),
        ({"tokens": 1.5}, "tokens must be an integer, not 1.5"),
        ({"usd": 1e-12}, "usd must be 0, or at least 0.000000001, not 1e-12"),
        ({"seconds": 1e-7}, "seconds must be 0, or at least 0.000001, not 1e-07"),
        ({"on_exceeded": "explode"}, "on_exceeded must be 'ask', 'final_turn' or 'stop'"),
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


def test_a_budget_without_on_exceeded_keeps_that_of_the_agent() -> None:
    agents = Budget(tokens=5, on_exceeded="stop")
    assert budget_of(Budget(usd=4), agents) == BudgetRule(4_000_000_000, 5, on_exceeded="stop")
    assert budget_of(Budget(usd=4, on_exceeded="ask"), agents) == BudgetRule(4_000_000_000, 5, on_exceeded="ask")
