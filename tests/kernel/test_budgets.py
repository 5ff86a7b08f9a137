"""Tool budgets and the cap on tool turns."""

from __future__ import annotations

import pytest

from weftline import prompts
from weftline.kernel.context import CompactionRule
from weftline.kernel.entries import BudgetExceeded, CallClosed, CallOpened, FinalForced, Limits
from weftline.kernel.state import BudgetUse, Compact

from .world import Ask, World, call, text


def pays(first: int, count: int) -> list[Ask]:
    return [Ask("pay", {"to": n}) for n in range(first, first + count)]


@pytest.mark.requirement("run.budget.intercept")
def test_call_beyond_its_budget_is_answered_unstarted_and_others_run() -> None:
    world = World(Limits(tool_budgets={"pay": 2})).play(call(*pays(0, 3), "look"), text())
    assert [head.how for head in sorted(world.heads(CallClosed), key=lambda head: head.index)] == [
        "returned",
        "returned",
        "budget",
        "returned",
    ]
    assert world.heads(BudgetExceeded) == [BudgetExceeded("pay", 2, 3)]
    told = world.texts(CallClosed)[0]
    assert told == prompts.calls.budget_spent("pay", 2)
    assert "pay" in told
    assert "2" in told
    assert world.heads(CallClosed)[0].is_error
    assert world.end.status == "succeeded"


def test_blocked_calls_are_not_counted_and_the_call_index_rises() -> None:
    world = World(Limits(tool_budgets={"pay": 1})).play(call(*pays(0, 3)), call(*pays(3, 2)), text())
    assert [head.call_index for head in world.heads(BudgetExceeded)] == [2, 3, 4, 5]
    assert world.state.guards.budgets == {"pay": BudgetUse(1, 4)}


@pytest.mark.requirement("run.budget.intercept")
@pytest.mark.parametrize("name", ["pay", "local"])
def test_budget_of_zero_lets_no_call_through_or_to_clients(name: str) -> None:
    world = World(Limits(tool_budgets={name: 0})).play(call(name), call(Ask(name, {"x": 1})), text())
    assert world.hows() == ["budget", "budget"]
    assert world.executions == []
    assert all(head.blocked for head in world.heads(CallOpened))
    assert world.end.status == "succeeded"


def test_unknown_and_invalid_calls_count() -> None:
    limits = Limits(tool_budgets={"nowhere": 1, "look": 1})
    world = World(limits).play(call("nowhere", Ask("look", {"bad": 1})), call(Ask("nowhere", {"x": 1}), "look"))
    assert world.hows(0) == ["unknown", "invalid"]
    assert world.hows(1) == ["budget", "budget"]


def test_tools_have_separate_budgets() -> None:
    world = World(Limits(tool_budgets={"pay": 1, "save": 2}))
    world.play(call(*pays(0, 2), "save", Ask("save", {"x": 1}), Ask("save", {"x": 2}), *["look"] * 4), text())
    assert sorted(world.hows()) == ["budget"] * 2 + ["returned"] * 7
    assert world.state.guards.budgets == {"pay": BudgetUse(1, 1), "save": BudgetUse(2, 1)}


def test_a_skipped_call_gives_its_place_back() -> None:
    world = World(Limits(tool_budgets={"pay": 2}))
    world.reply(call(*pays(0, 2)))
    world.steer("m1")
    world.play(call(*pays(2, 1)), text())
    assert world.hows() == ["returned", "skipped", "returned"]


def test_repeat_of_doubtful_call_takes_no_place_of_another_call() -> None:
    world = World(Limits(tool_budgets={"pay": 2}))
    world.reply(call(*pays(0, 1)))
    world.crash()
    world.play(call(*pays(0, 2)), text())
    assert world.hows() == ["in_doubt", "repeat_of_doubt", "returned"]


def test_a_budget_goes_on_over_a_crash_and_a_pause() -> None:
    world = World(Limits(tool_budgets={"pay": 1})).play(call(*pays(0, 1)))
    world.crash()
    world.pause()
    world.resume()
    world.play(call(*pays(1, 1)), text())
    assert world.hows() == ["returned", "budget"]


def test_run_fails_beyond_max_tool_turns_with_calls_answered() -> None:
    world = World(Limits(max_tool_turns=2)).play(call("look"), call("save"), call("pay", "local"))
    assert world.hows() == ["returned", "returned", "not_run", "not_run"]
    assert (world.end.status, world.end.code, world.end.reason) == ("failed", "max_tool_turns", "max_tool_turns")
    assert world.heads(FinalForced) == []
    assert world.model_calls == 3


def test_final_turn_can_replace_failure_beyond_max_tool_turns() -> None:
    world = World(Limits(max_tool_turns=2, on_max_tool_turns="finalize"))
    world.play(call("look"), call("save"), call("pay", "local"), text())
    assert world.hows() == ["returned", "returned", "not_run", "not_run"]
    assert world.heads(FinalForced) == [FinalForced("max_tool_turns")]
    assert world.texts(FinalForced) == [prompts.turns.FINAL_TURN["max_tool_turns"]]
    assert (world.end.status, world.end.code, world.end.reason) == ("succeeded", "", "max_tool_turns")
    assert world.model_calls == 4


def test_run_that_answers_within_its_tool_turns_carries_no_reason() -> None:
    world = World(Limits(max_tool_turns=2)).play(call("look"), call("save"), text())
    assert (world.end.status, world.end.reason) == ("succeeded", "")


@pytest.mark.parametrize("outcome", ["failed", "succeeded"])
def test_no_tool_turn_at_all_is_allowed(outcome: str) -> None:
    limits = Limits(max_tool_turns=0, on_max_tool_turns="error" if outcome == "failed" else "finalize")
    world = World(limits).play(call("look"), text())
    assert world.executions == []
    assert world.end.status == outcome
    assert World(limits).play(text()).end.status == "succeeded"


@pytest.mark.requirement("run.budget.counter")
def test_counter_goes_on_over_pause_await_summary_and_restart() -> None:
    rule = CompactionRule(at_tokens=150)
    world = World(Limits(tool_budgets={"look": 3, "wire": 1}, compaction=rule))
    world.reply(call("look", "wire"))
    world.pause()
    world.finish(world.tool_calls[0])
    world.resume()
    world.crash()
    world.say("approved")
    world.tokens = 200
    world.finish(world.tool_calls[0])
    [summary] = [command for command in world.running if isinstance(command, Compact)]
    world.summarized(summary)
    world.reply(call(Ask("look", {"bad": 1}), Ask("look", {"x": 1})))
    world.crash()
    world.finish(world.tool_calls[0])
    world.reply(call(Ask("look", {"x": 2}), Ask("wire", {"x": 2})))
    assert world.hows(2) == ["budget", "budget"]
    assert [(head.tool, head.call_index) for head in world.heads(BudgetExceeded)] == [("look", 4), ("wire", 2)]
