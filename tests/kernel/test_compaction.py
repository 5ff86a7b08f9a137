"""Shorter requests: when a summary is asked for, and what follows from its outcome."""

from __future__ import annotations

import pytest

from weftline.kernel.context import (
    CompactionFailed,
    CompactionRule,
    CompactionStarted,
    ContextCompacted,
    ContextMeasured,
    ContextRestored,
)
from weftline.kernel.decide import decide
from weftline.kernel.entries import AttemptStarted, Limits
from weftline.kernel.state import CallModel, Compact
from weftline.messages import Usage

from .world import ESTIMATE, SECOND, Ask, Fault, World, call, text

RULE = CompactionRule(at_tokens=90)
OVERFLOW = Fault("context_window")


def world_of(rule: CompactionRule | None = RULE, *, max_retries: int = 3, fallbacks: int = 0) -> World:
    return World(Limits(compaction=rule, max_retries=max_retries, fallbacks=fallbacks))


def test_a_run_without_a_rule_measures_nothing() -> None:
    world = world_of(None).play(call("look"), text())
    assert world.end.status == "succeeded"
    assert not world.heads(ContextMeasured)


def test_request_that_is_small_enough_is_sent_as_it_is() -> None:
    world = world_of(CompactionRule(at_tokens=100)).play(call("look"), text())
    assert [head.turn for head in world.heads(ContextMeasured)] == [0, 1]
    assert not world.heads(CompactionStarted)


def test_a_larger_one_waits_for_its_summary() -> None:
    world = world_of()
    assert world.running == [Compact(1)]
    assert not world.heads(AttemptStarted)
    assert world.summarized(Compact(1))
    assert world.running == [CallModel(0, 1)]
    assert not world.offer(world.summary_outcome(Compact(1))), "it is taken once"


@pytest.mark.requirement("run.history.compress_kept")
def test_next_summary_waits_for_a_quarter_of_the_limit() -> None:
    world = world_of()
    world.summarized(world.summaries[0], after=95)
    for tokens, expected in ((110, 1), (117, 1), (118, 2)):
        world.tokens = tokens
        world.play(call("look"))
        assert len(world.heads(CompactionStarted)) == expected, tokens


@pytest.mark.parametrize("reason", ["error", "useless"])
def test_failed_summary_does_not_end_the_run(reason: str) -> None:
    world = world_of()
    world.not_summarized(world.summaries[0], "error" if reason == "error" else "useless", retryable=True)
    world.play(*[call("look", "scan")] * 2)
    assert len(world.heads(CompactionStarted)) == 1
    world.tokens = 123
    world.reply(call("pay"))
    world.finish(world.tool_calls[0])
    assert world.summaries == [Compact(2)]
    world.not_summarized(Compact(2))
    assert world.play(text()).end.status == "succeeded"


def test_nothing_is_asked_for_where_nothing_can_be_left_out() -> None:
    world = world_of()
    world.summarized(world.summaries[0], after=200)
    world.tokens, world.spare = 1000, 0
    assert world.play(call("look"), text()).end.status == "succeeded"
    assert len(world.heads(CompactionStarted)) == 1


def test_turn_limit_waits_for_more_if_one_fails() -> None:
    world = world_of(CompactionRule(at_turns=8))
    for turns, expected in ((7, 0), (8, 1), (9, 1), (10, 2), (11, 2)):
        world.turns = turns
        world.reply(call(Ask("look", {"x": turns})))
        world.finish(world.tool_calls[0])
        for running in world.summaries:
            world.not_summarized(running)
        assert len(world.heads(CompactionStarted)) == expected, turns


def test_a_refused_request_is_made_shorter_and_sent_again() -> None:
    world = world_of(CompactionRule()).play(call("look"))
    world.reply(OVERFLOW)
    assert world.heads(ContextMeasured) == [ContextMeasured(1, "context_window", 100, 50)]
    assert world.summaries == [Compact(1)]
    world.summarized(Compact(1))
    assert world.running == [CallModel(1, 2)]
    assert world.heads(AttemptStarted)[-1].cause == "context_window"
    assert world.play(text()).end.status == "succeeded"


def test_one_that_is_still_too_long_then_fails_the_run() -> None:
    world = world_of(CompactionRule())
    world.reply(OVERFLOW)
    world.summarized(world.summaries[0])
    world.reply(OVERFLOW)
    assert (world.end.status, world.end.code) == ("failed", "context_window")
    assert len(world.heads(CompactionStarted)) == 1


def test_the_next_turn_may_be_made_shorter_again() -> None:
    world = world_of(CompactionRule())
    world.reply(OVERFLOW)
    world.summarized(world.summaries[0])
    world.play(call("look"))
    world.reply(OVERFLOW)
    assert world.summaries == [Compact(2)]


def test_a_fallback_is_asked_when_a_summary_did_not_help() -> None:
    world = world_of(CompactionRule(), fallbacks=1)
    world.reply(OVERFLOW)
    world.summarized(world.summaries[0])
    world.reply(OVERFLOW)
    assert world.model_call == CallModel(0, 3, choice=1)


def test_unshortenable_request_fails_the_run() -> None:
    world = world_of(CompactionRule())
    world.spare = 0
    world.reply(OVERFLOW)
    assert (world.end.status, world.end.code) == ("failed", "context_window")


def test_required_summary_is_retried_like_a_model_call() -> None:
    world = world_of(CompactionRule(), max_retries=1)
    world.reply(OVERFLOW)
    world.not_summarized(world.summaries[0], retryable=True, retry_after_us=5 * SECOND)
    assert not world.running
    due_at = decide(world.state).due_at
    assert due_at == world.clock + 5 * SECOND
    world.wait_until(world.clock + 5 * SECOND)
    world.not_summarized(world.summaries[0], retryable=True)
    assert (world.end.status, world.end.code) == ("failed", "context_window")


def test_question_cut_by_a_crash_is_counted_and_repeated() -> None:
    world = world_of()
    world.crash()
    assert world.heads(CompactionFailed) == [
        CompactionFailed(1, "abandoned", usage=Usage(input=ESTIMATE), estimated=True)
    ]
    assert world.summaries == [Compact(2)]
    assert not world.offer(world.summary_outcome(Compact(1))), "the answer of the earlier process comes too late"
    world.summarized(Compact(2))
    end = world.play(text()).end
    assert (end.attempts, end.turns) == (3, 1)
    assert end.usage == Usage(input=ESTIMATE + 9 + 10, output=4 + 5)
    world.crash()
    assert len(world.heads(CompactionStarted)) == 2


def test_a_summary_that_is_durable_is_never_asked_for_again() -> None:
    world = world_of()
    world.auto = False
    world.summarized(world.summaries[0])
    world.crash()
    world.auto = True
    world.settle()
    assert world.running == [CallModel(0, 1)]
    assert len(world.heads(CompactionStarted)) == len(world.heads(ContextCompacted)) == 1


def test_a_cancel_closes_the_summary_that_is_being_written() -> None:
    world = world_of()
    world.cancel()
    assert [head.reason for head in world.heads(CompactionFailed)] == ["cancelled"]
    assert world.end.status == "cancelled"
    assert world.end.usage == Usage(input=ESTIMATE)


def test_a_paused_run_asks_for_no_summary() -> None:
    world = world_of(CompactionRule())
    world.pause()
    world.reply(OVERFLOW)
    assert not world.summaries
    assert not world.state.ended
    world.resume()
    assert world.summaries == [Compact(1)]


def test_undone_summary_is_repeated_only_if_necessary() -> None:
    world = world_of()
    assert not world.restore(), "there is nothing to take back yet"
    world.summarized(world.summaries[0])
    world.tokens = 1000
    assert world.restore()
    assert not world.restore()
    world.play(call("look"))
    assert world.heads(ContextRestored) == [ContextRestored("ops")]
    assert len(world.heads(CompactionStarted)) == 1
    world.reply(OVERFLOW)
    assert world.summaries == [Compact(2)]


def test_summary_is_not_undone_while_another_is_written() -> None:
    world = world_of()
    world.summarized(world.summaries[0])
    world.tokens = 1000
    world.reply(call("look"))
    world.finish(world.tool_calls[0])
    assert world.summaries == [Compact(2)]
    assert not world.restore()
    world.summarized(Compact(2))
    assert world.restore()


def test_summary_that_thread_left_is_in_force_and_costs_nothing() -> None:
    world = world_of(CompactionRule(at_tokens=100))
    world.offer(ContextCompacted(0, 4, 200, 60, cost_nusd=0))
    assert not world.state.compaction.in_force, "nobody outside can state one"
