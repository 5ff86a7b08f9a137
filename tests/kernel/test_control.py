"""Pause, cancel, steering and follow-ups: what people can do to a run under way."""

from __future__ import annotations

import pytest

from weftline import prompts
from weftline.kernel.accept import MAX_QUEUED
from weftline.kernel.decide import decide
from weftline.kernel.entries import (
    AttemptFailed,
    CallClosed,
    CallOpened,
    CallStarted,
    Limits,
    MessagesTaken,
    RunPaused,
    RunResumed,
)
from weftline.kernel.state import CallModel, Decision, RunTool

from .world import Ask, Fault, World, call, text


def in_batch(*names: str) -> World:
    """A run whose model has just asked for these calls."""
    world = World()
    world.reply(call(*(Ask(name, {"n": n}) for n, name in enumerate(names))))
    return world


def test_pause_lets_running_call_finish_and_starts_nothing_after_it() -> None:
    world = in_batch("look", "save", "pay")
    assert world.pause()
    assert world.state.status == "paused"
    world.finish(RunTool(0, 0, 1))
    assert world.running == []
    assert decide(world.state) == Decision()
    assert [one.stage for one in world.state.batch.calls] == ["closed", "opened", "opened"]
    assert world.heads(RunPaused) == [RunPaused("look at it", "ops")]


def test_a_pause_lets_the_running_model_call_finish() -> None:
    world = World()
    world.pause()
    world.reply(call("look"))
    assert world.running == []
    assert world.heads(CallStarted) == []
    other = World()
    other.pause()
    other.reply(text())
    assert other.end.status == "succeeded"


def test_a_resumed_run_goes_on_where_it_stopped() -> None:
    world = in_batch("look", "save", "pay")
    world.pause()
    world.finish(RunTool(0, 0, 1))
    assert world.resume()
    assert world.state.status == "running"
    assert world.running == [RunTool(0, 1, 1)]
    world.play(text())
    assert world.hows() == ["returned"] * 3
    assert len(world.heads(RunResumed)) == 1


def test_steering_in_a_pause_waits_for_the_resume() -> None:
    world = in_batch("look", "save")
    world.pause()
    world.steer("m1")
    world.finish(RunTool(0, 0, 1))
    assert world.hows() == ["returned"]
    world.resume()
    assert world.hows() == ["returned", "skipped"]


def test_client_may_answer_in_pause_and_run_waits_for_resume() -> None:
    world = in_batch("local")
    world.pause()
    assert world.answer(0)
    assert world.running == []
    world.resume()
    assert world.running == [CallModel(1, 1)]


def test_a_pause_needs_leave_and_a_resume_a_pause() -> None:
    assert not World(Limits(interrupts_allowed=False)).pause()
    world = World()
    assert not world.resume()
    assert world.pause()
    assert not world.pause()
    assert world.cancel()
    assert not world.pause()


def test_a_run_is_not_resumed_by_a_crash() -> None:
    world = in_batch("look", "save")
    world.pause()
    world.crash()
    assert world.running == []
    assert decide(world.state) == Decision()
    world.resume()
    assert world.running == [RunTool(0, 0, 2)]


def test_cancel_closes_every_call_and_marks_doubt() -> None:
    world = World()
    world.reply(call("scan", "send", "local_read"))
    world.cancel("parent")
    assert world.hows() == ["cancelled", "in_doubt", "cancelled"]
    assert (world.end.status, world.end.code, world.end.reason) == ("cancelled", "", "parent")
    assert world.texts(CallClosed) == [prompts.calls.CANCELLED, prompts.calls.in_doubt("send"), prompts.calls.CANCELLED]


@pytest.mark.parametrize("name", ["save", "move", "pay"])
def test_cancel_leaves_call_in_doubt_that_may_have_changed_something(name: str) -> None:
    world = in_batch(name)
    world.cancel()
    assert world.hows() == ["in_doubt"]


def test_a_cancel_answers_calls_that_never_began() -> None:
    world = in_batch("pay", "save", "move")
    world.cancel()
    assert world.hows() == ["in_doubt", "cancelled", "cancelled"]


def test_cancel_closes_the_model_call_and_counts_its_cost() -> None:
    world = World()
    world.cancel()
    failed = world.heads(AttemptFailed)
    assert [(head.cls, head.reason, head.estimated) for head in failed] == [("cancelled", "cancelled", True)]
    assert world.end.usage == failed[0].usage


def test_calls_completed_after_a_cancel_are_answered_unstarted() -> None:
    world = World()
    world.auto = False
    world.cancel()
    world.reply(call("pay", "local"))
    world.settle()
    assert world.hows() == ["cancelled", "cancelled"]
    assert all(head.blocked for head in world.heads(CallOpened))
    assert world.end.status == "cancelled"


def test_late_result_after_a_cancel_is_refused() -> None:
    world = in_batch("local", "pay")
    world.auto = False
    world.cancel()
    assert world.state.questions.ignored == ("c0-0",)
    assert not world.answer(0)
    assert not world.finish(RunTool(0, 1, 1))
    assert not world.cancel()
    assert not world.steer("m1")
    world.settle()
    assert world.end.status == "cancelled"
    assert world.state.questions.ignored == ("c0-0",)


def test_a_cancel_wins_over_a_pause() -> None:
    world = in_batch("look", "pay")
    world.pause()
    world.cancel()
    assert world.end.status == "cancelled"


@pytest.mark.requirement("loop.batch.steer")
def test_steering_between_sequential_calls_skips_the_rest_uncounted() -> None:
    world = World(Limits(tool_budgets={"save": 5}))
    world.reply(call("look", "save", "pay"))
    world.steer("m1")
    assert world.hows() == []
    world.finish(RunTool(0, 0, 1))
    assert world.hows() == ["returned", "skipped", "skipped"]
    assert [told.startswith("Skipped: ") for told in world.texts(CallClosed)] == [False, True, True]
    assert world.state.guards.budgets["save"].used == 0
    assert world.heads(MessagesTaken) == [MessagesTaken(("m1",))]
    assert world.running == [CallModel(1, 1)]


@pytest.mark.requirement("loop.batch.steer")
def test_steering_interrupts_no_concurrent_batch() -> None:
    world = World()
    world.steer("before")
    world.auto = False
    world.reply(call("scan", "send"))
    world.step()
    world.steer("early")
    world.auto = True
    world.settle()
    world.steer("during")
    assert world.tool_calls == [RunTool(0, 0, 1), RunTool(0, 1, 1)]
    world.finish(RunTool(0, 1, 1))
    assert world.heads(MessagesTaken) == []
    world.finish(RunTool(0, 0, 1))
    assert world.hows() == ["returned", "returned"]
    assert world.heads(MessagesTaken) == [MessagesTaken(("before", "early", "during"))]


@pytest.mark.parametrize("other", [Ask("nowhere"), Ask("look", {"bad": True})], ids=["unknown", "invalid"])
def test_a_call_that_never_runs_makes_no_batch_sequential(other: Ask) -> None:
    world = World()
    world.reply(call("scan", other, "send"))
    assert world.tool_calls == [RunTool(0, 0, 1), RunTool(0, 2, 1)]


def test_steering_leaves_calls_with_the_client_alone() -> None:
    world = in_batch("local", "look", "save")
    world.steer("m1")
    world.finish(RunTool(0, 1, 1))
    assert world.hows() == ["returned", "skipped"]
    assert world.running == []
    world.answer(0)
    assert world.running == [CallModel(1, 1)]


def test_steering_when_the_answer_is_ready_starts_another_turn() -> None:
    world = World()
    world.steer("m1")
    world.reply(text())
    assert world.heads(MessagesTaken) == [MessagesTaken(("m1",))]
    assert world.running == [CallModel(1, 1)]
    assert world.play(text()).end.turns == 2


def test_a_follow_up_is_taken_only_at_the_end() -> None:
    world = World()
    world.follow_up("m1")
    world.play(call("look", "save"), call(Ask("look", {"x": 1})))
    assert world.hows() == ["returned"] * 3
    assert world.heads(MessagesTaken) == []
    world.play(text())
    assert world.heads(MessagesTaken) == [MessagesTaken(("m1",))]
    assert world.play(text()).end.undelivered == ()


def test_a_follow_up_waits_until_no_steering_is_left() -> None:
    world = World()
    world.follow_up("later")
    world.steer("now")
    world.play(text(), text(), text())
    assert world.heads(MessagesTaken) == [MessagesTaken(("now",)), MessagesTaken(("later",))]
    assert world.end.turns == 3


def test_messages_that_were_never_read_are_listed_at_the_end() -> None:
    world = World()
    world.steer("m1")
    world.follow_up("m2")
    world.reply(Fault("auth"))
    assert (world.end.status, world.end.undelivered) == ("failed", ("m1", "m2"))


def test_a_final_turn_takes_no_message() -> None:
    world = World().play(*[call("look")] * 6)
    world.steer("m1")
    world.play(text())
    assert (world.end.status, world.end.undelivered) == ("succeeded", ("m1",))


def test_late_steering_is_listed_at_the_end() -> None:
    world = World().play(*[call("look")] * 5)
    world.steer("m1")
    world.play(call("look"), text())
    assert world.heads(MessagesTaken) == []
    assert (world.end.reason, world.end.undelivered) == ("loop_detected", ("m1",))


def test_the_queue_of_messages_is_bounded() -> None:
    world = World()
    assert all(world.follow_up(f"m{n}") for n in range(MAX_QUEUED))
    assert not world.follow_up("one too many")
