"""Model turns: answers, failures and retries, truncation, the forced final turn, structured output."""

from __future__ import annotations

import pytest

from weftline.kernel.decide import decide
from weftline.kernel.entries import (
    AttemptFailed,
    AttemptStarted,
    CallClosed,
    CallOpened,
    FinalForced,
    Limits,
    OutputRejected,
    RunEnded,
    TurnCompleted,
)
from weftline.kernel.state import CallModel, Decision, New
from weftline.messages import Usage

from .world import ESTIMATE, SECOND, Ask, Fault, Reply, World, call, text

LOOPED = [call("look")] * 6


def test_a_plain_answer_ends_the_run_with_what_it_used() -> None:
    world = World().play(text())
    end = world.end
    assert (end.status, end.code, end.reason, end.finish) == ("succeeded", "", "", "end_turn")
    assert (end.turns, end.attempts, end.usage, end.active_us) == (1, 1, Usage(input=10, output=5), 11)
    assert end.model.id == "demo"


def test_a_retryable_failure_is_tried_again_when_it_is_due() -> None:
    world = World()
    world.reply(Fault("rate_limit", retryable=True, retry_after_us=30 * SECOND))
    due_at = world.clock + 30 * SECOND
    assert decide(world.state) == Decision(due_at=due_at)
    world.wait_until(due_at - 1)
    assert world.running == []
    world.wait_until(due_at)
    assert world.running == [CallModel(0, 2)]
    world.play(text())
    assert (world.end.status, world.end.usage) == ("succeeded", Usage(input=20, output=5))


@pytest.mark.parametrize("last", [text(), Fault("server")], ids=["answered", "failed"])
def test_a_turn_counts_once_however_often_it_was_tried(last: Reply | Fault) -> None:
    world = World().play(call("look"), *[Fault("rate_limit", retryable=True)] * 3)
    world.crash()
    world.play(last)
    assert (world.end.turns, world.end.attempts) == (2, 6)


def test_cancelled_run_counts_only_the_turn_that_it_cut() -> None:
    world = World()
    world.cancel()
    assert (world.end.turns, world.end.attempts) == (1, 1)
    batch = World()
    batch.reply(call("look"))
    batch.cancel()
    assert (batch.end.turns, batch.end.attempts) == (1, 1)


def test_retries_are_bounded_and_the_last_failure_gives_the_class() -> None:
    world = World(Limits(max_retries=2)).play(
        *[Fault("overloaded", retryable=True)] * 2, Fault("server", retryable=True)
    )
    assert world.model_calls == 3
    assert [(head.turn, head.attempt) for head in world.heads(AttemptStarted)] == [(0, 1), (0, 2), (0, 3)]
    assert (world.end.status, world.end.code) == ("failed", "server")


def test_a_completed_turn_starts_the_count_of_failures_again() -> None:
    fault = Fault("server", retryable=True)
    world = World(Limits(max_retries=1)).play(fault, call("look"), fault, text())
    assert world.end.status == "succeeded"


def test_a_failure_that_is_not_retryable_ends_the_run() -> None:
    world = World().play(Fault("auth"))
    assert (world.end.status, world.end.code, world.model_calls) == ("failed", "auth", 1)


def test_a_further_attempt_says_why_it_is_made() -> None:
    world = World().play(Fault("overloaded", retryable=True))
    assert [head.cause for head in world.heads(AttemptStarted)] == ["", "overloaded"]
    world.crash()
    assert [head.cause for head in world.heads(AttemptStarted)] == ["", "overloaded", "abandoned"]
    world.play(call("look"))
    world.crash()
    assert [head.cause for head in world.heads(AttemptStarted)][3:] == ["", "abandoned"]


def test_a_crash_between_failures_does_not_start_their_count_again() -> None:
    world = World(Limits(max_retries=1)).play(Fault("server", retryable=True))
    world.crash()
    world.reply(Fault("server", retryable=True))
    assert (world.end.status, world.end.code) == ("failed", "server")


def test_outcome_of_attempt_that_was_given_up_is_refused() -> None:
    world = World()
    outcome = world.model_outcome(world.model_call, text())
    world.auto = False
    world.crash()
    assert not world.offer(outcome)


def test_second_forced_final_turn_in_log_leaves_first_reason() -> None:
    world = World()
    world.append(New(FinalForced("loop_detected")), New(FinalForced("max_tool_turns")))
    assert world.state.guards.final == "loop_detected"


@pytest.mark.parametrize("calls", [(), (Ask("pay"), Ask("local"))], ids=["text only", "with calls"])
def test_truncated_turn_ends_run_and_runs_none_of_its_calls(calls: tuple[Ask, ...]) -> None:
    world = World().play(Reply("So far", calls, finish="max_tokens"))
    assert (world.end.status, world.end.code, world.end.finish) == ("failed", "truncation", "max_tokens")
    assert world.executions == []
    assert world.hows() == ["not_run"] * len(calls)


@pytest.mark.requirement("run.final.no_answer")
def test_calls_of_the_final_turn_are_not_executed() -> None:
    world = World().play(*LOOPED, Reply("What I know.", (Ask("pay"), Ask("local"))))
    assert world.hows(6) == ["not_run", "not_run"]
    assert (world.end.status, world.end.code, world.end.reason) == ("succeeded", "", "loop_detected")


@pytest.mark.requirement("run.final.no_answer")
@pytest.mark.parametrize("reply", [Reply(), call("pay")], ids=["empty", "only calls"])
def test_final_turn_without_text_fails_run_with_its_reason(reply: Reply) -> None:
    world = World().play(*LOOPED, reply)
    assert (world.end.status, world.end.code, world.end.reason) == ("failed", "loop_detected", "loop_detected")
    assert "loop_detected" in world.texts(RunEnded)[0]
    assert all(head.name == "look" for head in world.heads(CallClosed) if head.how == "returned")


@pytest.mark.requirement("run.final.no_answer")
@pytest.mark.parametrize(
    ("reply", "code"),
    [(Fault("server"), "server"), (Reply("So f", finish="max_tokens"), "truncation")],
    ids=["failing", "truncated"],
)
def test_final_turn_that_fails_keeps_its_class_and_reason(reply: Reply | Fault, code: str) -> None:
    world = World().play(*LOOPED, reply)
    assert (world.end.status, world.end.code, world.end.reason) == ("failed", code, "loop_detected")


@pytest.mark.requirement("run.final.once")
def test_first_limit_gives_the_reason_despite_a_crash() -> None:
    world = World(Limits(max_tool_turns=5, on_max_tool_turns="finalize")).play(*[call("look")] * 6)
    world.crash()
    assert world.running == [CallModel(6, 2, True)]
    world.play(text())
    assert world.heads(FinalForced) == [FinalForced("max_tool_turns")]
    assert sum(head.turn == 6 for head in world.heads(TurnCompleted)) == 1
    assert (world.end.status, world.end.reason) == ("succeeded", "max_tool_turns")


def test_every_call_is_closed_before_the_final_turn_begins() -> None:
    world = World().play(*LOOPED)
    opened, closed = world.heads(CallOpened), world.heads(CallClosed)
    assert [head.id for head in opened] == [head.id for head in closed]
    assert isinstance(world.entries[-1].head, AttemptStarted)


def test_answer_that_does_not_fit_is_asked_for_once_more() -> None:
    world = World().play(Reply("{", output_invalid=True), Reply("{}"))
    assert world.heads(OutputRejected) == [OutputRejected(0)]
    assert (world.end.status, world.end.turns) == ("succeeded", 2)


def test_a_second_answer_that_does_not_fit_fails_the_run() -> None:
    bad = Reply("{", output_invalid=True)
    world = World().play(bad, bad)
    assert (world.end.status, world.end.code, world.end.turns) == ("failed", "invalid_output", 2)


def test_final_turn_whose_answer_does_not_fit_is_no_success() -> None:
    world = World().play(*LOOPED, Reply("{", output_invalid=True))
    assert (world.end.status, world.end.code, world.end.reason) == ("failed", "invalid_output", "loop_detected")


def test_model_call_cut_by_a_crash_is_estimated_and_repeated() -> None:
    world = World()
    world.crash()
    abandoned = AttemptFailed(0, 1, "abandoned", "abandoned", usage=Usage(input=ESTIMATE), estimated=True)
    assert world.heads(AttemptFailed) == [abandoned]
    assert world.running == [CallModel(0, 2)]
    world.play(text())
    assert (world.end.attempts, world.end.usage) == (2, Usage(input=ESTIMATE + 10, output=5))


def test_crashes_are_not_counted_as_retries() -> None:
    world = World(Limits(max_retries=0))
    for _ in range(5):
        world.crash()
    assert world.play(text()).end.status == "succeeded"


def test_crash_does_not_bring_a_retry_forward() -> None:
    world = World()
    world.reply(Fault("rate_limit", retryable=True, retry_after_us=600 * SECOND))
    entries = len(world.entries)
    world.crash()
    assert len(world.entries) == entries
    assert decide(world.state).due_at == world.clock + 600 * SECOND
