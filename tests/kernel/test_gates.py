"""Code of the agent's that decides: on calls before they are announced, and on answers before the run ends."""

from __future__ import annotations

import pytest

from weftline.kernel.entries import (
    BudgetExceeded,
    CallClosed,
    CallGated,
    CallOpened,
    CallStarted,
    FinalForced,
    How,
    Limits,
    OutputAccepted,
    OutputRejected,
    Over,
    ResultsOverBudget,
    RunAdopted,
    Verdict,
)
from weftline.kernel.state import BudgetUse, CallModel, CheckOutput, Consult, New

from .world import Ask, World, call, text


def asked(*asks: Ask | str, limits: Limits | None = None) -> World:
    """A world in which the model has just asked for these calls."""
    world = World(limits, gated=True)
    world.reply(call(*asks))
    return world


def check_of(world: World) -> CheckOutput:
    (command,) = world.running
    assert isinstance(command, CheckOutput)
    return command


def test_nothing_is_announced_before_the_gates_have_decided() -> None:
    world = asked("look")
    assert world.running == [Consult(0, 0)]
    assert world.heads(CallOpened) == []
    world.consulted(world.consults[0], digest="other")
    assert world.heads(CallGated) == [CallGated(0, 0, "ok", "other")]
    assert world.heads(CallOpened)[0].digest == "other"
    assert [command.index for command in world.tool_calls] == [0]


def test_sequential_batch_shows_each_call_after_earlier_results() -> None:
    world = asked("look", "save", "pay")
    seen: list[int] = []
    while world.consults:
        (consult,) = world.consults
        seen.append(consult.index)
        world.consulted(consult)
        world.finish(world.tool_calls[0])
    assert seen == [0, 1, 2]
    assert world.hows() == ["returned", "returned", "returned"]


def test_concurrent_batch_shows_all_calls_to_gates_together() -> None:
    world = asked("scan", Ask("scan", {"x": 1}), "send")
    assert [consult.index for consult in world.consults] == [0, 1, 2]
    world.consulted(world.consults[1])
    assert [command.index for command in world.tool_calls] == [1]


def test_client_calls_see_gates_at_once_and_are_offered() -> None:
    world = asked("look", "local", "local_read")
    assert sorted(consult.index for consult in world.consults) == [0, 1, 2]
    world.consulted(Consult(0, 2))
    assert [head.index for head in world.heads(CallOpened)] == [2]


@pytest.mark.requirement("loop.call.blocked")
def test_a_blocked_call_is_not_begun_and_not_counted() -> None:
    world = asked("look", limits=Limits(tool_budgets={"look": 1}))
    world.consulted(world.consults[0], "blocked")
    assert world.hows() == ["blocked"]
    assert world.heads(CallStarted) == []
    assert world.state.guards.budgets == {}


@pytest.mark.requirement("loop.call.substituted")
def test_an_answered_call_is_not_begun_and_counted() -> None:
    world = asked("nowhere", limits=Limits(tool_budgets={"nowhere": 1}))
    world.consulted(world.consults[0], "answered")
    assert world.hows() == ["answered"]
    assert world.state.guards.budgets == {"nowhere": BudgetUse(used=1)}


@pytest.mark.parametrize(
    ("verdict", "yields", "how"),
    [
        ("blocked", False, "blocked"),
        ("answered", False, "answered"),
        ("answered", True, "budget"),
        ("blocked", True, "budget"),
        ("ok", False, "budget"),
        ("invalid", False, "budget"),
    ],
)
@pytest.mark.requirement("loop.gate.order")
def test_agent_gates_precede_budgets_and_the_framework(verdict: str, yields: bool, how: str) -> None:
    world = asked("look", limits=Limits(tool_budgets={"look": 0}))
    world.consulted(world.consults[0], verdict, yields=yields)  # type: ignore[arg-type]
    assert world.hows() == [how]
    assert bool(world.heads(BudgetExceeded)) == (how == "budget")


def test_crash_during_gates_asks_them_again() -> None:
    world = asked("pay")
    world.crash()
    assert world.heads(RunAdopted) == []
    assert world.running == [Consult(0, 0)]
    world.consulted(world.consults[0])
    assert len(world.heads(CallStarted)) == 1


def test_crash_after_gates_have_decided_does_not_ask_them_again() -> None:
    world = asked("look", "look")
    world.auto = False
    world.consulted(world.consults[0], "blocked")
    world.crash()
    world.settle()
    assert world.hows() == ["blocked"]
    assert world.running == [Consult(0, 1)]


def test_the_gates_are_not_asked_while_the_run_is_paused() -> None:
    world = asked("look", "look")
    world.pause()
    world.consulted(world.consults[0])
    assert world.running == []
    world.resume()
    assert world.heads(CallStarted) == [CallStarted(0, 0, 1)]


def test_steering_skips_calls_that_the_gates_have_not_seen() -> None:
    world = asked("look", "pay")
    world.consulted(world.consults[0])
    world.steer("m1")
    world.finish(world.tool_calls[0])
    assert world.hows() == ["returned", "not_run"]
    assert world.texts(CallClosed)[1].startswith("Skipped: ")


def test_a_cancel_closes_calls_that_the_gates_have_not_seen() -> None:
    world = asked("look", "pay")
    world.cancel()
    assert world.hows() == ["cancelled", "cancelled"]
    assert world.end.status == "cancelled"


def test_decision_of_gates_that_comes_too_late_is_refused() -> None:
    world = asked("look")
    decided = world.gate_outcome(world.consults[0])
    assert world.offer(decided)
    assert not world.offer(decided)


def test_a_repeated_turn_is_skipped_without_asking_the_gates() -> None:
    world = World(Limits(loop_soft=2, loop_hard=3), gated=True)
    world.play(call("look"))
    world.reply(call("look"))
    assert world.consults == []
    assert world.hows(1) == ["loop"]


# Answers


def test_an_accepted_answer_ends_the_run() -> None:
    world = World(Limits(check_output=True)).play(text("Fine."))
    assert world.heads(OutputAccepted) == [OutputAccepted(0)]
    assert world.end.status == "succeeded"


def test_rejected_answer_is_requested_again_within_the_limits() -> None:
    world = World(Limits(check_output=True, output_retries=2))
    for _ in range(2):
        world.reply(text("No."))
        world.checked(check_of(world), accepted=False)
        assert not world.state.ended
    world.reply(text("No."))
    world.checked(check_of(world), accepted=False)
    assert (world.end.status, world.end.code) == ("failed", "invalid_output")
    assert len(world.heads(OutputRejected)) == 3


def test_follow_up_has_right_to_corrections_of_its_own() -> None:
    world = World(Limits(check_output=True))
    world.reply(text("No."))
    world.checked(check_of(world), accepted=False)
    world.follow_up("m1")
    world.reply(text("Yes."))
    world.reply(text("No."))
    world.checked(check_of(world), accepted=False)
    world.play(text("Yes."))
    assert world.end.status == "succeeded"


def test_answer_is_not_checked_when_message_makes_it_preliminary() -> None:
    world = World(Limits(check_output=True))
    world.follow_up("m1")
    world.reply(text("Fine."))
    assert isinstance(world.running[0], CallModel)


def test_forced_final_answer_is_checked_but_not_repeated() -> None:
    world = World(Limits(check_output=True, max_turns=1)).play(call("look"))
    world.reply(text("No."))
    world.checked(check_of(world), accepted=False)
    assert (world.end.status, world.end.code) == ("failed", "invalid_output")


# Budgets of the agent's code, and of results


@pytest.mark.requirement("loop.budget.steer", "loop.budget.function")
@pytest.mark.parametrize(("verdict", "how"), [("ok", "returned"), ("blocked", "blocked"), ("answered", "answered")])
def test_call_over_an_agent_budget_is_reported_and_continues(verdict: Verdict, how: How) -> None:
    world = asked("look")
    world.consulted(world.consults[0], verdict, over=Over(2, 3))
    world.play(text("Done."))
    assert world.hows() == [how]
    assert world.heads(BudgetExceeded) == [BudgetExceeded("look", 2, 3)]


@pytest.mark.requirement("loop.behavior.output_budget")
def test_results_that_are_too_large_are_followed_by_word_once() -> None:
    world = World(Limits(tool_output_budget_bytes=15))
    world.reply(call("scan", "scan"))
    for command in list(world.tool_calls):
        world.finish(command, size=10)
    assert world.heads(ResultsOverBudget) == [ResultsOverBudget(0, 20, 15)]
    assert "20 bytes" in world.texts(ResultsOverBudget)[0]
    world.reply(call("look"))
    world.crash()
    world.finish(world.tool_calls[0], size=15)
    assert len(world.heads(ResultsOverBudget)) == 1


# Limits on turns


@pytest.mark.requirement("loop.turn.max_turns")
def test_last_allowed_turn_is_followed_by_one_without_tools() -> None:
    world = World(Limits(max_turns=2)).play(call("look"), call(Ask("look", {"x": 1})))
    assert world.heads(FinalForced) == [FinalForced("max_turns")]
    assert world.model_call.final
    world.reply(text("That is all."))
    assert (world.end.status, world.end.reason, world.end.turns) == ("succeeded", "max_turns", 3)


def test_run_that_answers_in_time_knows_no_limit_of_turns() -> None:
    world = World(Limits(max_turns=2)).play(call("look"), text("Done."))
    assert world.heads(FinalForced) == []
    assert world.end.reason == ""


# Doubts


def test_no_doubt_is_forgotten_however_many_there_are() -> None:
    pays = [Ask("send", {"to": n}) for n in range(20)]
    world = World().play(call("look"))
    world.reply(call(*pays))
    world.crash()
    assert world.hows(1) == ["in_doubt"] * 20
    world.reply(call(pays[0], pays[19], Ask("send", {"to": 99}), "look"))
    assert world.hows(2)[:3] == ["repeat_of_doubt"] * 3
    assert world.heads(CallStarted)[-1].index == 3


def test_tool_that_became_stricter_before_its_call_counts_so() -> None:
    world = World()
    world.auto = False
    world.reply(call("look"))
    world.step()
    world.append(New(CallStarted(0, 0, 1, effect="once")))
    world.auto = True
    world.crash()
    assert world.hows() == ["in_doubt"]
