"""Calls that are carried out by runs of their own."""

from __future__ import annotations

import pytest

from weftline import prompts
from weftline.kernel.accept import accepts
from weftline.kernel.decide import decide
from weftline.kernel.entries import (
    RULES,
    AwaitOpened,
    CallClosed,
    CallStarted,
    ChildEnded,
    FinalForced,
    Limits,
    Parent,
    RunCreated,
)
from weftline.kernel.evolve import evolve
from weftline.kernel.state import CallModel, Decision, FinishChild, StartChild, State
from weftline.messages import Usage

from .world import Ask, World, call

SECOND = 1_000_000


def begun(*names: str, limits: Limits | None = None, rules: int = RULES) -> World:
    """A run whose calls have all begun as far as they may."""
    return World(limits, rules=rules).play(call(*[Ask(name, {"x": index}) for index, name in enumerate(names)]))


def test_call_begins_with_its_child_and_ends_with_its_result() -> None:
    world = World()
    world.reply(call("ask"))
    assert world.running == [StartChild(0, 0)]
    assert world.child_made(StartChild(0, 0))
    assert world.heads(CallStarted) == [CallStarted(0, 0, 1, child="run-0-0", id="c0.0", name="ask")]
    assert (world.running, decide(world.state)) == ([], Decision())
    assert world.state.open_children == ["run-0-0"]
    assert not world.state.in_flight
    assert not accepts(world.state, world.closing(0), attempt=1)
    assert world.child_ends(0)
    assert world.running == [FinishChild(0, 0)]
    assert not world.child_ends(0)
    assert world.child_finished(FinishChild(0, 0))
    assert isinstance(world.running[0], CallModel)


def test_a_crash_loses_no_child_and_begins_none_twice() -> None:
    world = begun("ask")
    world.crash()
    assert (world.running, world.state.open_children) == ([], ["run-0-0"])
    world.child_ends(0)
    world.crash()
    assert world.running == [FinishChild(0, 0)]
    world.play()
    assert len(world.heads(CallStarted)) == len(world.heads(CallClosed)) == 1


def test_a_child_whose_making_was_cut_off_is_made_anew() -> None:
    world = World()
    world.reply(call("ask"))
    world.crash()
    assert world.running == [StartChild(0, 0)]


def test_a_child_that_cannot_be_made_closes_its_call() -> None:
    world = World()
    world.reply(call("ask"))
    world.child_made(StartChild(0, 0), fails=True)
    assert world.hows() == ["failed"]
    assert isinstance(world.running[0], CallModel)


def test_calls_of_a_turn_keep_order_unless_all_are_concurrent() -> None:
    assert begun("ask", "ask").state.open_children == ["run-0-0"]
    assert begun("delegate", "delegate").state.open_children == ["run-0-0", "run-0-1"]


@pytest.mark.requirement("loop.spawn.limits")
def test_children_beyond_the_limit_wait_in_line() -> None:
    world = begun(*["delegate"] * 5, limits=Limits(max_children=2))
    assert world.children == [0, 1]
    assert world.state.waits_for_children
    world.child_ends(1)
    world.play()
    assert (world.children, world.hows()) == ([0, 2], ["returned"])
    for index in (0, 2, 3, 4):
        world.child_ends(index)
        world.play()
    assert world.hows() == ["returned"] * 5


@pytest.mark.requirement("loop.spawn.limits")
def test_other_calls_pass_children_that_wait_in_line() -> None:
    world = begun("delegate", "delegate", "scan", limits=Limits(max_children=1))
    assert (world.children, world.hows()) == ([0], ["returned"])


@pytest.mark.requirement("loop.spawn.limits")
def test_children_that_wait_in_line_are_never_made_after_cancel() -> None:
    world = begun(*["delegate"] * 3, limits=Limits(max_children=1))
    world.cancel()
    world.child_ends(0, "cancelled")
    world.play()
    assert world.state.ended
    assert [head.child for head in world.heads(CallStarted)] == ["run-0-0"]


@pytest.mark.requirement("loop.spawn.limits")
def test_the_line_goes_on_after_a_crash() -> None:
    world = begun(*["delegate"] * 3, limits=Limits(max_children=1))
    world.crash()
    assert world.children == [0]
    world.child_ends(0)
    world.play()
    assert world.children == [1]


@pytest.mark.requirement("loop.spawn.limits")
def test_an_approved_child_waits_in_line_too() -> None:
    world = begun("delegate", "hire", limits=Limits(max_children=1))
    assert world.say("approved")
    world.play()
    assert world.children == [0]
    world.child_ends(0)
    world.play()
    assert world.children == [1]


def test_two_children_made_at_once_take_one_place() -> None:
    world = World(Limits(max_children=1))
    world.reply(call("hire", "delegate"))
    world.say("approved")
    assert world.running == [StartChild(0, 1), StartChild(0, 0)]
    assert world.child_made(StartChild(0, 0))
    assert not world.child_made(StartChild(0, 1))
    assert world.children == [0]
    world.child_ends(0)
    world.play()
    assert world.children == [1]


@pytest.mark.requirement("loop.spawn.limits")
def test_a_run_without_room_for_any_child_refuses_them() -> None:
    world = begun("delegate", limits=Limits(max_children=0))
    assert world.hows() == ["blocked"]
    assert prompts.subagents.NO_CHILDREN in world.texts(CallClosed)


def test_runs_of_first_rules_still_refuse_children_beyond_limit() -> None:
    world = begun(*["delegate"] * 5, limits=Limits(tool_budgets={"delegate": 9}), rules=1)
    assert world.state.open_children == ["run-0-0", "run-0-1", "run-0-2"]
    assert world.hows() == ["blocked", "blocked"]
    assert prompts.subagents.too_many_children(3) in world.texts(CallClosed)
    assert world.state.guards.budgets["delegate"].used == 3


def test_children_one_after_the_other_are_never_too_many() -> None:
    world = begun(*["ask"] * 5, limits=Limits(max_children=1))
    for index in range(5):
        world.child_ends(index)
        world.play()
    assert world.hows() == ["returned"] * 5


@pytest.mark.requirement("loop.spawn.limits")
@pytest.mark.parametrize(("depth", "how"), [(2, None), (3, "blocked")])
def test_a_run_that_is_deep_enough_has_no_children(depth: int, how: str | None) -> None:
    world = World()
    world.state = evolve(State(), RunCreated(1, Limits(), parent=Parent("run-x", 0, 0, depth)), 0)
    world.running.clear()
    world.settle()
    world.play(call("ask"))
    assert world.state.depth == depth
    assert world.hows() == ([] if how is None else [how])


def test_a_cancel_waits_for_children_and_for_nothing_else() -> None:
    world = begun("delegate", "delegate", "scan")
    world.cancel()
    assert not world.state.ended
    assert decide(world.state) == Decision(due_at=0)
    world.child_ends(0)
    world.crash()
    assert not world.state.ended
    world.child_ends(1, "cancelled")
    assert world.end.status == "cancelled"
    assert world.hows() == ["returned", "cancelled", "cancelled"]


def test_child_in_the_making_is_dropped_on_pause_or_cancel() -> None:
    for stop in (World.pause, World.cancel):
        world = World()
        world.reply(call("ask"))
        stop(world)
        assert not world.child_made(StartChild(0, 0))
        assert not world.heads(CallStarted)


def test_a_deadline_that_would_end_the_run_waits_for_children() -> None:
    world = begun("delegate", "local_read", limits=Limits(local_timeout_us=5 * SECOND))
    world.wait_until(world.clock + 6 * SECOND)
    assert (world.state.ended, decide(world.state)) == (False, Decision())
    world.child_ends(0)
    assert world.end.code == "local_timeout"


def test_run_ending_with_its_children_keeps_its_other_deadlines() -> None:
    limits = Limits(local_timeout_us=5 * SECOND, grant_ttl_us=6 * SECOND, await_timeout_us=20 * SECOND)
    world = World(limits)
    world.reply(call("delegate", "local_read", "wire", "wire"))
    asked, other = [head.id for head in world.heads(AwaitOpened)]
    assert world.child_made(StartChild(0, 0))
    world.say("approved", asked)
    due_at = world.state.questions.open[other].deadline_at
    world.wait_until(world.clock + 7 * SECOND)
    assert [head.id for head in world.heads(AwaitOpened)] == [asked, other], "its approval has lapsed"
    assert decide(world.state) == Decision(due_at=due_at)
    world.child_ends(0)
    assert world.end.code == "local_timeout"


@pytest.mark.requirement("loop.spawn.result")
def test_usage_of_children_counts_in_totals_and_limits() -> None:
    world = begun("ask", limits=Limits(max_cost_nusd=7))
    before = world.state.totals
    world.child_ends(0)
    assert world.state.totals.usage == before.usage + Usage(input=3, output=2)
    assert world.state.totals.cost_nusd == before.cost_nusd + 7
    world.play()
    assert [head.reason for head in world.heads(FinalForced)] == ["max_cost"]


def test_useless_end_is_refused_and_a_stored_one_is_damage() -> None:
    world = begun("look")
    end = ChildEnded(0, 0, "succeeded")
    assert not accepts(world.state, end)
    assert evolve(world.state, end, 0).broken
    waiting = begun("ask").state
    assert evolve(waiting, CallStarted(0, 0, 2, child="run-other"), 0).broken
    assert evolve(waiting, CallClosed(0, 0, "c0-0", "ask", "returned"), 0).broken


def test_a_damaged_run_ends_although_its_child_is_open() -> None:
    world = begun("ask")
    world.state = evolve(world.state, ChildEnded(0, 7, "failed"), 0)
    world.settle()
    assert (world.end.code, world.hows()) == ("worker_error", ["in_doubt"])
