"""Who speaks in a run with seats: two sides that take turns, agents that hand over, and what ends a session."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec.structs import replace

from weftline.kernel.entries import AttemptStarted, CallClosed, FinalForced, How, Limits, RunEnded, TurnCompleted
from weftline.kernel.evolve import evolve, fold
from weftline.kernel.seats import (
    STRENGTH,
    RunStopped,
    SeatAskedOn,
    SeatClosing,
    SeatRule,
    SeatTaken,
)
from weftline.kernel.state import CallModel, State

from . import laws, test_machine
from .histories import bring_to_its_end
from .world import SEAT_TOOLS, Ask, Fault, Reply, World, call, text

A, B = SeatRule("review/a", "a"), SeatRule("review/b", "b", first_model=1)
TRIAGE, REFUNDS = SeatRule("triage/a", fallbacks=1), SeatRule("refunds/a", first_model=2)


def two_sides(a: SeatRule = A, b: SeatRule = B, *, most: int | None = 6) -> World:
    return World(Limits(seats=(a, b), max_side_turns=most))


def taken(world: World) -> list[tuple[int, str]]:
    return [(head.seat, head.why) for head in world.heads(SeatTaken)]


def hand_over(to: int) -> Ask:
    return Ask("hand_over", {"to": to})


# Side turns


def test_sides_alternate_until_the_cap_and_the_last_turn_has_no_tools() -> None:
    world = two_sides(most=3).play(text("A"), text("B"), text("Final"))
    assert taken(world) == [(0, "start"), (1, "answered"), (0, "answered")]
    assert [head.reason for head in world.heads(FinalForced)] == ["max_session_turns"]
    assert [head.final for head in world.heads(AttemptStarted)] == [False, False, True]
    assert (world.end.status, world.end.reason) == ("succeeded", "max_session_turns")


def test_each_side_asks_its_own_models() -> None:
    world = two_sides(a=replace(A, fallbacks=1), b=replace(B, first_model=2))
    world.play(Fault(), text(), text(), text())
    assert [head.choice for head in world.heads(AttemptStarted)][:4] == [0, 1, 2, 0]


def test_seat_without_models_left_ends_the_run() -> None:
    world = two_sides().play(text(), Fault())
    assert (world.end.status, world.end.code) == ("failed", "server")


def test_calls_belong_to_the_side_turn() -> None:
    world = two_sides().play(call("look"), call("look"), text(), call("look"))
    assert taken(world) == [(0, "start"), (1, "answered")]
    seats = world.state.seats
    assert seats is not None
    assert (seats.taken, seats.steps, seats.of_a, seats.of_b) == (2, 1, 3, 1)


def test_stop_tool_ends_the_side_turn_after_its_result() -> None:
    world = two_sides().play(call("yield", "look"))
    assert taken(world) == [(0, "start"), (1, "stop_tool")]
    assert world.hows() == ["returned", "skipped"]
    assert world.heads(SeatTaken)[-1].call == "c0-0"


def test_side_that_does_not_stop_is_asked_on_and_brought_to_its_last_answer() -> None:
    world = two_sides(a=replace(A, stop_on_response=False, stop_tool="yield")).play(*[text()] * 9)
    assert len(world.heads(SeatAskedOn)) == 7
    assert "yield" in world.texts(SeatAskedOn)[0]
    assert [head.reason for head in world.heads(SeatClosing)] == ["no_answer"]
    assert taken(world) == [(0, "start"), (1, "no_answer")]


def test_side_has_one_more_answer_after_its_steps() -> None:
    world = two_sides(a=replace(A, max_steps=2)).play(call("look"), call("scan"), call("pay"))
    assert [head.final for head in world.heads(AttemptStarted)] == [False, False, True, False]
    assert world.hows() == ["returned", "returned", "not_run"]
    assert taken(world) == [(0, "start"), (1, "max_steps")]


def test_one_side_ends_the_run_with_its_turn() -> None:
    one = World(Limits(seats=(replace(TRIAGE, max_steps=1),)))
    one.play(call("look"), text())
    assert (one.end.status, one.end.reason) == ("succeeded", "max_steps")
    stopping = World(Limits(seats=(TRIAGE,))).play(call("yield"))
    assert (stopping.end.status, stopping.end.call) == ("succeeded", "c0-0")


def test_two_sides_that_say_the_same_are_no_loop() -> None:
    world = two_sides(most=20).play(*[call("yield")] * 12)
    assert len(taken(world)) == 13
    assert not set(world.hows()) - {"returned"}


# Hand-offs


def test_called_agent_takes_over_and_may_hand_back() -> None:
    world = World(Limits(seats=(TRIAGE, REFUNDS)))
    world.play(call(hand_over(1)), call("look"), call(hand_over(0)), text())
    assert taken(world) == [(0, "start"), (1, "handoff"), (0, "handoff")]
    assert [head.choice for head in world.heads(AttemptStarted)] == [0, 2, 2, 0]
    assert world.end.status == "succeeded"


def test_agents_that_hand_over_in_circles_are_brought_to_an_end() -> None:
    world = World(Limits(seats=(TRIAGE, REFUNDS)))
    world.play(*[call(hand_over(turn % 2 == 0)) for turn in range(40)])
    assert [head.reason for head in world.heads(FinalForced)] == ["loop_detected"]


def test_agents_that_hand_over_whatever_the_guard_says_are_brought_to_an_end() -> None:
    world = World(Limits(seats=(TRIAGE, REFUNDS)))
    for _ in range(40):
        seats = world.state.seats
        assert seats is not None
        if world.state.ended:
            break
        world.play(call(hand_over(1 - seats.index)))
    assert [head.reason for head in world.heads(FinalForced)] == ["loop_detected"]


def test_hand_off_to_nobody_changes_nothing() -> None:
    world = World(Limits(seats=(TRIAGE, REFUNDS))).play(call(hand_over(7)), text())
    assert taken(world) == [(0, "start")]


# What ends the session


@pytest.mark.parametrize(
    ("calls", "ended"),
    [
        (("yield_too", "hand_over_too", "finish", "give_up"), "failure"),
        (("yield_too", "hand_over_too", "finish"), "session"),
        (("finish", "yield_too"), "session"),
        (("yield_too", "hand_over_too"), "handoff"),
        (("yield", "finish", "give_up"), "side"),
        (("look", "finish", "give_up"), "session"),
    ],
)
@pytest.mark.requirement("thread.exec.ending_call")
def test_first_of_a_sequence_decides_and_the_strongest_of_those_together(calls: tuple[str, ...], ended: str) -> None:
    world = two_sides().play(call(*calls))
    last = world.entries[-1].head
    match ended:
        case "failure":
            assert (world.end.status, world.end.code) == ("failed", "session_failed")
        case "session":
            assert world.end.status == "succeeded"
        case _:
            assert not isinstance(last, RunEnded)
            assert world.heads(SeatTaken)[-1].why == ("handoff" if ended == "handoff" else "stop_tool")


def test_ending_call_that_fails_ends_nothing() -> None:
    world = two_sides()
    world.reply(call("finish"))
    world.finish(world.tool_calls[0], how="failed")
    assert isinstance(world.running[0], CallModel)
    assert taken(world) == [(0, "start")]


def test_call_that_waits_for_a_person_is_overtaken() -> None:
    world = two_sides()
    world.reply(call("wire", "yield"))
    world.play()
    assert world.hows() == ["returned", "not_run"]
    assert not world.awaits
    assert taken(world)[-1] == (1, "stop_tool")


# What code asks for


def test_stopped_run_answers_its_calls_and_asks_no_model() -> None:
    world = two_sides()
    world.reply(call("look", "scan"))
    assert world.stop("hook:watch")
    assert not world.stop("hook:again")
    world.play(text())
    assert world.hows() == ["returned", "returned"]
    assert (world.end.status, world.end.reason, world.model_calls) == ("succeeded", "stopped", 1)
    assert world.state.seats is not None
    assert world.state.seats.stopped_by == "hook:watch"


def test_forced_side_takes_the_next_turn() -> None:
    world = two_sides()
    assert world.force(0)
    world.play(text(), text())
    assert taken(world) == [(0, "start"), (0, "forced"), (1, "answered")]


def test_run_without_sides_to_choose_from_takes_no_forced_turn() -> None:
    assert not World(Limits(seats=(TRIAGE, REFUNDS))).force(1)
    assert not World().force(0)
    assert not World().stop()


# Any course that a run may take

rules = st.builds(
    SeatRule,
    st.just("agent/x"),
    max_steps=st.sampled_from([None, 1, 2]),
    stop_on_response=st.sampled_from([True, True, False]),
    fallbacks=st.sampled_from([0, 1]),
)
tools = st.sampled_from([*map(Ask, SEAT_TOOLS), Ask("look"), Ask("scan"), Ask("pay"), hand_over(1), Ask("wire")])
replies = st.one_of(
    st.just(text()),
    st.just(Reply()),
    st.just(Fault("overloaded", retryable=True)),
    st.lists(tools, min_size=1, max_size=4).map(lambda calls: Reply("So.", tuple(calls))),
)


def limits_of(a: SeatRule, b: SeatRule, dual: bool, most: int, turns: int | None) -> Limits:
    return Limits(
        seats=(replace(a, side="a"), replace(b, side="b" if dual else "a", first_model=2)),
        max_side_turns=most if dual else None,
        max_turns=turns,
        max_tool_turns=1000,
    )


limits = st.builds(
    limits_of,
    rules,
    rules,
    st.booleans(),
    st.sampled_from([1, 3, 6]),
    st.sampled_from([None, None, 5]),
)
ENDINGS: tuple[How, ...] = ("returned", "returned", "failed")


@settings(max_examples=300)
@given(limits, st.lists(replies, max_size=30), st.lists(st.integers(0, 11), min_size=1, max_size=40))
def test_any_course_keeps_the_laws_of_seats(limits: Limits, answers: list[Reply | Fault], dice: list[int]) -> None:
    world = World(limits)
    left = list(answers)
    for number in range(200):
        if world.state.ended or not (world.running or world.awaits):
            break
        die = dice[number % len(dice)]
        if die == 11 and number % 7 == 3:
            world.stop(f"hook:{number}")
        elif die == 10:
            world.force(number % 2)
        elif die == 9:
            world.crash()
        elif not world.running:
            world.say("approved" if die % 2 else "denied")
        elif isinstance(command := world.running[die % len(world.running)], CallModel):
            if not left:
                break
            world.running.remove(command)
            world.model_ends(command, left.pop(0))
        elif command in world.tool_calls:
            world.finish(command, how=ENDINGS[die % 3])
        else:
            world.play()
    bring_to_its_end(world)
    laws.hold(world.entries)
    check(world)


def check(world: World) -> None:
    limits = world.state.limits
    heads = [head for _, head in world.facts]
    seat, sides, steps, closing = -1, 0, 0, False
    for before, head in zip([None, *heads], heads, strict=False):
        match head:
            case SeatTaken():
                assert (head.why == "start") == (seat < 0)
                if head.why in ("answered", "stop_tool", "max_steps", "no_answer"):
                    assert limits.seats[head.seat].side != limits.seats[seat].side
                seat, sides, steps, closing = head.seat, sides + 1, 0, False
            case AttemptStarted():
                rule = limits.seats[seat]
                assert rule.first_model <= head.choice <= rule.first_model + rule.fallbacks
            case TurnCompleted():
                steps += 1
                most = limits.seats[seat].max_steps
                assert most is None or steps <= most + 1
            case SeatClosing():
                assert not closing
                closing = True
            case _:
                pass
        if isinstance(before, RunStopped):
            assert not isinstance(head, AttemptStarted)
    assert limits.max_side_turns is None or sides <= limits.max_side_turns
    assert sum(isinstance(head, RunEnded) for head in heads) == 1
    for cut in range(0, len(world.facts), 5):
        state = fold(State(), world.facts[:cut])
        for at, head in world.facts[cut:]:
            state = evolve(state, head, at)
        assert state == world.state
    assert not world.state.broken
    _first_decides(world)


def _first_decides(world: World) -> None:
    """After the results of a turn, what follows is what its deciding call says."""
    asked: TurnCompleted | None = None
    returned: list[int] = []
    for _, head in world.facts:
        match head:
            case TurnCompleted():
                asked, returned = head, []
            case CallClosed(how="returned"):
                returned.append(head.index)
            case SeatTaken() if asked is not None and asked.calls and head.call:
                calls = asked.calls
                ending = [calls[one] for one in sorted(returned) if calls[one].ends]
                together = all(one.concurrent or one.verdict != "ok" for one in calls)
                strongest = max(ending, key=lambda one: STRENGTH[one.ends]) if together else ending[0]
                assert strongest.id == head.call
            case _:
                pass


class SeatMachine(test_machine.RunMachine):
    """Whatever people and machines can do to a run, done to one with seats."""

    @initialize(
        limits=test_machine.limits, gated=st.booleans(), a=rules, b=rules, most=st.sampled_from([None, 1, 2, 4])
    )
    def start(self, limits: Limits, gated: bool, a: SeatRule, b: SeatRule, most: int | None) -> None:
        """With one side, or with two that have a limit: without one they could talk forever."""
        seats = limits_of(a, b, most is not None, most or 0, None)
        self.world = World(replace(limits, seats=seats.seats, max_side_turns=most), gated=gated)
        self.replayed = State()
        self.messages = 0

    @precondition(lambda self: self.world.running)
    @rule(calls=st.lists(tools, min_size=1, max_size=3).map(tuple))
    def seats_are_ended(self, calls: tuple[Ask, ...]) -> None:
        self.finish_first(Reply("So.", calls))

    @precondition(lambda self: len(self.world.entries) > 15)
    @rule()
    def code_stops_the_run(self) -> None:
        self.world.stop()

    @rule(seat=st.integers(0, 1))
    def code_forces_a_turn(self, seat: int) -> None:
        self.world.force(seat)


TestSeatMachine = SeatMachine.TestCase
