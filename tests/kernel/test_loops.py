"""Loop detection: a model that repeats itself is told so, then brought to its end."""

from __future__ import annotations

from itertools import cycle, islice

import pytest

from weftline import prompts
from weftline.kernel.calls import signature
from weftline.kernel.entries import AttemptStarted, CallClosed, FinalForced, Limits, LoopDetected

from .world import Ask, Reply, World, call, text

A = call(Ask("look", {"at": 1}), Ask("look", {"at": 2}))
B = call(Ask("look", {"at": 3}))
C = call(Ask("look", {"at": 4}))
D = call(Ask("scan", {"at": 5}))


def results_differ() -> World:
    """A world with no limit of its own in the way."""
    return World(Limits(max_tool_turns=1000))


def play(world: World, *replies: Reply) -> World:
    """Tools that never answer the same twice, so that only the calls can repeat."""
    counter = iter(range(10_000))
    return world.play(*replies, tool=lambda _name, _digest: f"r{next(counter)}")


@pytest.mark.requirement("run.loop.signature")
def test_the_order_of_calls_and_of_keys_makes_no_difference() -> None:
    one = call(Ask("look", {"x": 1, "y": [1, {"b": 2, "a": 1}]}), Ask("scan"))
    same = call(Ask("scan"), Ask("look", {"y": [1, {"a": 1, "b": 2}], "x": 1}))
    world = play(World(), one, same, one)
    assert world.hows(2) == ["loop", "loop"]


@pytest.mark.requirement("run.loop.signature")
@pytest.mark.parametrize(
    "other",
    [
        call(Ask("look", {"at": 1})),
        call(Ask("look", {"at": 1}), Ask("look", {"at": 2}), Ask("look", {"at": 2})),
        call(Ask("look", {"at": 1}), Ask("look", {"at": 2.0})),
        call(Ask("look", {"at": 1}), Ask("scan", {"at": 2})),
    ],
    ids=["one less", "one more", "another value", "another tool"],
)
def test_one_call_more_or_less_or_different_resets_the_streak(other: Reply) -> None:
    world = play(World(), A, A, other, A)
    assert world.heads(LoopDetected) == []
    assert set(world.hows()) == {"returned"}


def test_equal_calls_in_one_turn_count_with_their_number() -> None:
    once = signature([("look", "d")])
    assert signature([("look", "d"), ("look", "d")]) != once
    assert signature([("b", "d"), ("a", "d")]) == signature([("a", "d"), ("b", "d")])


@pytest.mark.requirement("run.loop.nudge")
def test_third_equal_turn_skips_the_batch_with_one_message() -> None:
    world = play(World(), A, A, A, A, A)
    assert [world.hows(turn) for turn in range(5)] == [["returned"] * 2] * 2 + [["loop"] * 2] * 3
    assert world.heads(LoopDetected) == [LoopDetected(3, False, ("look",))]
    assert world.texts(LoopDetected) == [prompts.turns.repeating_calls(3)]
    skipped = [
        body for head, body in zip(world.heads(CallClosed), world.texts(CallClosed), strict=True) if head.turn == 2
    ]
    assert skipped == [prompts.calls.repeated_call("look")] * 2
    kinds = [type(entry.head) for entry in world.entries]
    assert kinds.index(LoopDetected) + 1 == kinds.index(AttemptStarted, kinds.index(LoopDetected))


@pytest.mark.requirement("run.loop.hard_cutoff")
def test_repeating_model_is_asked_seven_times_and_executes_twice() -> None:
    world = play(World(), *[A] * 6, text("All I know."))
    assert world.model_calls == 7
    assert len(world.executions) == 2 * len(A.calls)
    assert world.heads(LoopDetected) == [LoopDetected(3, False, ("look",)), LoopDetected(6, True, ("look",))]
    assert world.heads(FinalForced) == [FinalForced("loop_detected")]
    assert [head.final for head in world.heads(AttemptStarted)] == [False] * 6 + [True]
    assert (world.end.status, world.end.reason, world.end.turns) == ("succeeded", "loop_detected", 7)


def test_the_thresholds_are_those_of_the_run() -> None:
    world = play(World(Limits(loop_soft=2, loop_hard=4)), *[A] * 4, text())
    assert [(head.count, head.hard) for head in world.heads(LoopDetected)] == [(2, False), (4, True)]
    assert len(world.executions) == len(A.calls)


def test_different_turn_ends_streak_and_new_one_is_told_again() -> None:
    world = play(World(), A, A, A, B, A, A, A)
    assert [set(world.hows(turn)) for turn in range(7)] == [
        *[{"returned"}] * 2,
        {"loop"},
        *[{"returned"}] * 3,
        {"loop"},
    ]
    assert [head.count for head in world.heads(LoopDetected)] == [3, 3]


def test_a_streak_goes_on_over_a_crash_and_a_pause() -> None:
    world = play(World(), A, A)
    world.crash()
    world.pause()
    world.resume()
    play(world, A)
    assert world.hows(2) == ["loop", "loop"]


@pytest.mark.requirement("run.loop.cycles")
@pytest.mark.parametrize("period", [2, 3, 4])
def test_a_cycle_is_a_streak_of_its_repetitions(period: int) -> None:
    steps = (A, B, C, D)[:period]
    soft, hard = 3 * period, 6 * period
    world = play(results_differ(), *islice(cycle(steps), hard), text())
    skipped = [turn for turn in range(hard) if set(world.hows(turn)) == {"loop"}]
    assert skipped == list(range(soft - 1, hard))
    assert [(head.count, head.hard, head.by) for head in world.heads(LoopDetected)] == [
        (3, False, "cycle"),
        (6, True, "cycle"),
    ]
    assert world.end.reason == "loop_detected"


def test_turns_that_come_back_without_a_period_are_no_loop() -> None:
    world = play(results_differ(), A, B, A, C, B, A, D, C, A, B, D)
    assert world.heads(LoopDetected) == []


def test_a_cycle_of_five_is_left_alone() -> None:
    five = (A, B, C, D, call(Ask("scan", {"at": 6})))
    world = play(results_differ(), *five * 6)
    assert world.heads(LoopDetected) == []


@pytest.mark.requirement("run.loop.same_results")
def test_reads_with_other_arguments_and_equal_results_are_streak_too() -> None:
    world = World().play(*[call(Ask("look", {"page": n})) for n in range(6)], text())
    assert set(world.hows()) == {"returned"}
    assert [(head.count, head.hard, head.by) for head in world.heads(LoopDetected)] == [
        (3, False, "results"),
        (6, True, "results"),
    ]
    assert world.texts(LoopDetected)[0] == prompts.turns.repeating_results(3)
    assert (world.end.status, world.end.reason) == ("succeeded", "loop_detected")
    assert world.model_calls == 7


@pytest.mark.requirement("run.loop.same_results")
@pytest.mark.parametrize("name", ["save", "move", "pay", "local", "nowhere"])
def test_equal_results_of_writing_tools_are_no_streak(name: str) -> None:
    world = World()
    for n in range(8):
        world.play(call(Ask(name, {"page": n})))
        for index, one in enumerate(world.state.batch.calls):
            if one.client and one.stage == "opened":
                world.answer(index)
    assert world.heads(LoopDetected) == []


@pytest.mark.requirement("run.loop.same_results")
def test_results_that_a_guard_gave_are_no_streak() -> None:
    world = World(Limits(tool_budgets={"look": 0})).play(*[call(Ask("look", {"page": n})) for n in range(8)])
    assert world.heads(LoopDetected) == []


def test_same_call_again_does_not_lengthen_streak_of_results() -> None:
    one, other = call(Ask("look", {"page": 1})), call(Ask("look", {"page": 2}))
    assert World().play(one, one, other).heads(LoopDetected) == []


def test_a_different_result_ends_a_streak_of_results() -> None:
    results = iter(["same", "same", "new", "same", "same", "same"])
    calls = [call(Ask("look", {"page": n})) for n in range(6)]
    world = World().play(*calls, tool=lambda _name, _digest: next(results))
    assert [head.count for head in world.heads(LoopDetected)] == [3]


@pytest.mark.requirement("run.loop.counting")
def test_loop_detection_can_be_switched_off() -> None:
    world = World(Limits(loop_soft=0)).play(*[A] * 20, *[call(Ask("look", {"p": n})) for n in range(20)], *[B, C] * 12)
    assert world.heads(LoopDetected) == []
    assert set(world.hows()) == {"returned"}


def test_skipped_calls_spend_no_budget_and_their_turn_counts() -> None:
    limits = Limits(tool_budgets={"pay": 3}, max_tool_turns=5)
    world = World(limits).play(*[call("pay")] * 4, call(Ask("pay", {"to": "b"})), call("look"))
    assert world.hows()[:5] == ["returned", "returned", "loop", "loop", "returned"]
    assert (world.end.code, world.state.guards.tool_turns) == ("max_tool_turns", 6)


@pytest.mark.requirement("run.loop.new_streak")
def test_streak_survives_crashes_pauses_and_awaits() -> None:
    world = World(Limits(loop_soft=3, loop_hard=9))
    world.reply(call("look", "wire"))
    world.crash()
    world.finish(world.tool_calls[0])
    world.say("approved")
    world.finish(world.tool_calls[0])
    world.pause()
    world.reply(call("look", "wire"))
    world.resume()
    world.say("denied")
    world.finish(world.tool_calls[0])
    world.reply(call("look", "wire"))
    assert world.hows(2) == ["loop", "loop"]
    assert [head.count for head in world.heads(LoopDetected)] == [3]
    world.reply(call("scan"))
    world.finish(world.tool_calls[0])
    for turn in range(4, 7):
        world.reply(call("look"))
        if turn < 6:
            world.finish(world.tool_calls[0])
    assert world.hows(4) == world.hows(5) == ["returned"]
    assert world.hows(6) == ["loop"]
    assert [head.count for head in world.heads(LoopDetected)] == [3, 3]
