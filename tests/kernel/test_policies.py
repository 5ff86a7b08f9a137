"""Policies: caps, the clock, the engine, bookkeeping and terminal tools."""

from __future__ import annotations

from typing import Any

import pytest
from campaigns.simulation.policies import check_policy
from hypothesis import given

from weftline.kernel import policies
from weftline.kernel.accept import accepts
from weftline.kernel.decide import decide
from weftline.kernel.entries import (
    AttemptFailed,
    AttemptStarted,
    AwaitClosed,
    CallClosed,
    CallOpened,
    CallStarted,
    FinalForced,
    Limits,
)
from weftline.kernel.policy import CapReached, PolicyDecided, PolicyRule, TagClause
from weftline.kernel.state import ConsultPolicy, FinishChild, StartChild

from .histories import History, bring_to_its_end, histories, lived
from .world import SECOND, Ask, Fault, World, call, text


def under(**rule: Any) -> World:
    return World(Limits(policy=PolicyRule(**rule)))


def looks(*xs: int) -> list[Ask]:
    return [Ask("scan", {"x": x}) for x in xs]


def why(world: World) -> list[str]:
    return [head.reason for head in world.heads(FinalForced)]


@given(histories)
def test_no_history_goes_further_than_its_policy(history: History) -> None:
    world = lived(history)
    check_policy(world.entries)
    bring_to_its_end(world)
    check_policy(world.entries)


# Caps


@pytest.mark.requirement("run.cap.tool_calls")
def test_turn_that_does_not_fit_is_refused_whole() -> None:
    world = under(max_tool_calls=3).play(call(*looks(1, 2)), call(*looks(3, 4)), text())
    assert world.hows(0) == ["returned", "returned"]
    assert world.hows(1) == ["cap", "cap"]
    assert "3 tool calls" in world.texts(CallClosed)[-1]
    assert world.heads(CapReached) == [CapReached("tool_cap", 3, 2)]
    assert why(world) == ["tool_cap"]
    assert (world.end.status, world.end.reason) == ("succeeded", "tool_cap")


@pytest.mark.requirement("run.cap.tool_calls")
def test_a_turn_that_fits_exactly_runs() -> None:
    world = under(max_tool_calls=2).play(call(*looks(1, 2)), text())
    assert world.hows(0) == ["returned", "returned"]
    assert (world.end.status, world.end.reason) == ("succeeded", "")


@pytest.mark.requirement("run.cap.tool_calls_counted")
def test_unknown_and_invalid_calls_count_but_bookkeeping_not() -> None:
    world = under(max_tool_calls=3)
    world.reply(call("nowhere", Ask("look", {"bad": 1}), "note", "note"))
    assert world.state.policy.calls == 2
    for command in list(world.tool_calls):
        world.finish(command)
    world.reply(call("local"))
    assert world.state.policy.calls == 3
    world.answer(0)
    world.reply(call("note", "look"))
    assert world.hows(2) == ["cap"]
    assert [one.name for one in world.state.batch.calls if one.stage == "started"] == ["note"]
    world.finish(world.tool_calls[0])
    world.reply(text())
    assert (world.end.status, world.end.reason) == ("succeeded", "tool_cap")


@pytest.mark.requirement("run.cap.tool_calls_counted")
def test_denied_calls_count_but_blocked_ones_do_not() -> None:
    world = World(Limits(tool_budgets={"scan": 1}, loop_soft=2, policy=PolicyRule(max_tool_calls=3)))
    world.reply(call("wire"))
    world.say("denied")
    assert world.state.policy.calls == 1
    world.reply(call(*looks(1, 2)))
    world.finish(world.tool_calls[0])
    assert world.hows(1) == ["budget", "returned"]
    assert world.state.policy.calls == 2
    world.reply(call(*looks(1, 2)))
    assert world.hows(2) == ["loop", "loop"]
    assert world.state.policy.calls == 2


@pytest.mark.requirement("run.cap.per_turn")
def test_first_calls_run_and_others_are_refused_with_reasons() -> None:
    world = under(per_turn_max_tool_calls=2, max_tool_calls=4)
    world.play(call(*looks(1, 2), "note", *looks(3, 4)), call(*looks(5, 6)), text())
    closed = {head.id: head for head in world.heads(CallClosed) if head.turn == 0}
    assert [closed[f"c0-{index}"].how for index in range(5)] == ["returned", "returned", "returned", "cap", "cap"]
    assert "at most 2" in next(told for told in world.texts(CallClosed) if told)
    assert world.state.policy.calls == 4
    assert (world.end.status, world.end.reason) == ("succeeded", "")


@pytest.mark.requirement("run.cap.failures")
def test_turns_in_row_whose_calls_all_failed_force_final_turn() -> None:
    world = under(max_consecutive_failed_tool_calls=2)
    for turn in range(2):
        world.reply(call(*looks(turn, turn + 10, turn + 20)))
        for command in list(world.tool_calls):
            world.finish(command, how="failed")
        assert world.state.policy.failures == turn + 1
    assert why(world) == ["failure_cap"]
    world.reply(text())
    assert (world.end.status, world.end.reason) == ("succeeded", "failure_cap")


@pytest.mark.requirement("run.cap.failures")
def test_success_restarts_the_count_but_model_errors_change_nothing() -> None:
    world = under(max_consecutive_failed_tool_calls=2)
    world.reply(call(*looks(1)))
    world.finish(world.tool_calls[0], how="failed")
    world.reply(call("nowhere", Ask("look", {"bad": 1}), "note"))
    world.finish(world.tool_calls[0], how="failed")
    assert world.state.policy.failures == 1
    world.reply(call(*looks(2, 3)))
    world.finish(world.tool_calls[0], how="failed")
    world.finish(world.tool_calls[0])
    assert world.state.policy.failures == 0


@pytest.mark.requirement("run.cap.failures")
def test_each_failed_call_can_count_by_itself() -> None:
    world = under(max_consecutive_failed_tool_calls=3, failure_counting="call")
    world.reply(call(*looks(1, 2, 3)))
    for command in list(world.tool_calls):
        world.finish(command, how="failed")
    assert why(world) == ["failure_cap"]


# Tools that are special


@pytest.mark.requirement("run.tool.terminal")
def test_run_ends_with_the_success_of_a_terminal_tool() -> None:
    world = under().play(call("submit", "look"))
    assert world.hows(0) == ["returned", "returned"]
    assert (world.end.status, world.end.call, world.end.turns) == ("succeeded", "c0-0", 1)


@pytest.mark.requirement("run.tool.terminal")
def test_a_terminal_tool_that_fails_does_not_end_the_run() -> None:
    world = World()
    world.reply(call("submit"))
    world.finish(world.tool_calls[0], how="failed")
    world.reply(text())
    assert (world.end.status, world.end.call) == ("succeeded", "")


# Time


@pytest.mark.requirement("run.time.budget")
def test_model_call_is_cut_at_timeout_and_final_turn_follows() -> None:
    world = under(time_budget_us=5 * SECOND)
    began = world.clock
    assert decide(world.state).due_at == began + 5 * SECOND
    world.wait_until(began + 5 * SECOND)
    assert [head.reason for head in world.heads(AttemptFailed)] == ["abandoned"]
    assert world.heads(CapReached) == [CapReached("time_budget", 5 * SECOND, 5 * SECOND)]
    assert why(world) == ["time_budget"]
    assert world.model_call.final
    world.reply(text())
    assert (world.end.status, world.end.reason) == ("succeeded", "time_budget")


@pytest.mark.requirement("run.time.budget")
def test_only_the_final_turn_begins_after_the_time() -> None:
    world = under(time_budget_us=5 * SECOND)
    world.clock += 6 * SECOND
    world.reply(call("look", "local"))
    assert world.heads(CallStarted) == []
    assert world.hows(0) == ["not_run", "not_run"]
    assert [head.blocked for head in world.heads(CallOpened)] == [True, True]
    assert why(world) == ["time_budget"]


@pytest.mark.requirement("run.batch.deadline")
def test_unfinished_calls_close_at_timeout_and_results_stay() -> None:
    world = under(time_budget_us=5 * SECOND)
    world.reply(call("scan", "send", Ask("scan", {"x": 1}), "delegate", "local_read"))
    [child] = [command for command in world.running if isinstance(command, StartChild)]
    world.child_made(child)
    world.finish(world.tool_calls[0])
    world.wait_until(world.clock + 5 * SECOND)
    assert {head.id: head.how for head in world.heads(CallClosed)} == {
        "c0-0": "returned",
        "c0-1": "in_doubt",
        "c0-2": "timeout",
        "c0-4": "timeout",
    }
    assert world.state.open_children == ["run-0-3"]
    world.child_ends(3, "cancelled")
    [finish] = [command for command in world.running if isinstance(command, FinishChild)]
    world.child_finished(finish)
    assert why(world) == ["time_budget"]


@pytest.mark.requirement("run.tool.bookkeeping")
def test_a_bookkeeping_call_may_finish_within_the_grace() -> None:
    world = under(time_budget_us=5 * SECOND, finalizer_grace_us=3 * SECOND)
    world.reply(call("note", "scan"))
    world.wait_until(world.clock + 5 * SECOND)
    assert [head.name for head in world.heads(CallClosed)] == ["scan"]
    world.clock += 2 * SECOND
    world.finish(world.tool_calls[0])
    assert [head.how for head in world.heads(CallClosed)] == ["timeout", "returned"]
    assert why(world) == ["time_budget"]
    world.wait_until(world.clock + SECOND)
    assert (world.end.status, world.end.code) == ("failed", "time_budget")


@pytest.mark.requirement("run.tool.bookkeeping")
def test_bookkeeping_call_is_cut_off_at_end_of_grace() -> None:
    world = under(time_budget_us=5 * SECOND, finalizer_grace_us=3 * SECOND)
    world.reply(call("note"))
    world.wait_until(world.clock + 5 * SECOND)
    assert world.heads(CallClosed) == []
    world.wait_until(world.clock + 3 * SECOND)
    assert [head.how for head in world.heads(CallClosed)] == ["timeout"]
    assert (world.end.status, world.end.code) == ("failed", "time_budget")


def test_ended_childs_result_is_prepared_within_the_grace() -> None:
    world = under(time_budget_us=5 * SECOND, finalizer_grace_us=3 * SECOND)
    world.reply(call("delegate"))
    [child] = [command for command in world.running if isinstance(command, StartChild)]
    world.child_made(child)
    world.child_ends(0, "succeeded")
    world.wait_until(world.clock + 5 * SECOND)
    assert world.heads(CallClosed) == []
    world.wait_until(world.clock + 3 * SECOND)
    assert [head.how for head in world.heads(CallClosed)] == ["timeout"]
    assert (world.end.status, world.end.code) == ("failed", "time_budget")


@pytest.mark.requirement("run.time.waiting_free")
def test_waiting_for_people_clients_and_a_resume_uses_no_time() -> None:
    world = under(time_budget_us=10 * SECOND)
    world.clock += SECOND
    world.reply(call("wire"))
    assert decide(world.state).due_at is None
    world.clock += 3600 * SECOND
    world.say("approved")
    world.clock += SECOND
    world.finish(world.tool_calls[0])
    world.clock += SECOND
    world.reply(call("local"))
    assert world.state.policy.time.us == 3 * SECOND
    world.clock += 60 * SECOND
    world.answer(0)
    assert decide(world.state).due_at == world.clock + 7 * SECOND
    world.reply(call(Ask("look", {"x": 1})))
    world.pause()
    world.finish(world.tool_calls[0])
    world.clock += 3600 * SECOND
    assert decide(world.state).due_at is None
    world.resume()
    world.clock += 2 * SECOND
    world.reply(text())
    assert world.state.policy.time.us == 5 * SECOND
    assert (world.end.status, world.end.reason) == ("succeeded", "")


@pytest.mark.requirement("run.time.waiting_free")
def test_tool_that_works_while_person_is_asked_uses_time() -> None:
    world = under(time_budget_us=10 * SECOND)
    world.reply(call("ask_user", "scan"))
    world.wait_until(world.clock + 10 * SECOND)
    assert [head.outcome for head in world.heads(AwaitClosed)] == ["withdrawn"]
    assert why(world) == ["time_budget"]


@pytest.mark.requirement("run.child.await")
def test_run_clock_stops_with_its_child_unless_working() -> None:
    world = under(time_budget_us=10 * SECOND)
    world.reply(call("ask"))
    assert world.child_made(StartChild(0, 0))
    world.clock += SECOND
    assert world.child_waits(0) and not world.child_waits(0)
    assert (world.state.policy.time.us, decide(world.state).due_at) == (SECOND, None)
    world.clock += 3600 * SECOND
    world.crash()
    assert world.child_waits(0, waits=False) and not world.child_waits(0, waits=False)
    assert decide(world.state).due_at == world.clock + 9 * SECOND
    world.clock += SECOND
    assert world.child_waits(0)
    world.clock += 3600 * SECOND
    assert world.child_ends(0, "cancelled") and not world.child_waits(0)
    assert world.state.policy.time.us == 2 * SECOND

    world = under(time_budget_us=10 * SECOND)
    world.reply(call("delegate", "scan"))
    for command in [one for one in world.running if isinstance(one, StartChild)]:
        assert world.child_made(command)
    assert world.child_waits(0) and world.tool_calls
    assert decide(world.state).due_at == world.clock + 10 * SECOND


def test_undriven_time_is_not_active_time() -> None:
    world = under(time_budget_us=10 * SECOND)
    world.reply(call("look"))
    world.clock += 3600 * SECOND
    world.crash()
    assert (world.state.policy.time.us, why(world)) == (0, [])
    world.finish(world.tool_calls[0])
    world.reply(Fault("overloaded", retryable=True, retry_after_us=4 * SECOND))
    world.clock += 3600 * SECOND
    world.crash()
    assert world.state.policy.time.us == 4 * SECOND


def test_wait_before_retry_ends_when_time_is_up() -> None:
    world = under(time_budget_us=5 * SECOND)
    world.reply(Fault("timeout", retryable=True, retry_after_us=60 * SECOND))
    assert decide(world.state).due_at == world.clock + 5 * SECOND
    world.wait_until(world.clock + 5 * SECOND)
    assert why(world) == ["time_budget"]
    assert [(head.attempt, head.final) for head in world.heads(AttemptStarted)] == [(1, False), (2, True)]
    world.reply(text())
    assert world.end.status == "succeeded"


@pytest.mark.requirement("run.time.grace")
@pytest.mark.parametrize(
    ("rule", "grace_s"),
    [
        ({"time_budget_us": 60 * SECOND}, 70),
        ({"time_budget_us": 60 * SECOND, "finalizer_grace_us": 3 * SECOND}, 63),
        ({"finalizer_grace_us": 3 * SECOND}, 3),
        ({"plan_timeout_us": 7 * SECOND}, 7),
    ],
)
def test_late_final_turn_fails_the_run_with_its_reason(rule: dict[str, int], grace_s: int) -> None:
    world = under(max_tool_calls=0, **rule)
    began = world.clock
    world.reply(call("look"))
    assert world.model_call.final
    assert decide(world.state).due_at == began + grace_s * SECOND
    world.wait_until(began + grace_s * SECOND)
    assert (world.end.status, world.end.code, world.end.reason) == ("failed", "tool_cap", "tool_cap")
    assert [head.reason for head in world.heads(AttemptFailed)] == ["abandoned"]


# The engine


def judging(world: World) -> ConsultPolicy:
    [found] = [command for command in world.running if isinstance(command, ConsultPolicy)]
    return found


def test_policy_engine_is_asked_again_only_after_a_crash() -> None:
    world = under(engine=True)
    world.reply(call(*looks(1, 2)))
    assert world.heads(CallOpened) == []
    world.crash()
    world.judged(judging(world))
    assert len(world.tool_calls) == 2
    world.crash()
    assert not accepts(world.state, PolicyDecided(0))
    assert not [command for command in world.running if isinstance(command, ConsultPolicy)]


@pytest.mark.requirement("run.policy.tightens")
def test_a_decision_lowers_what_is_left_and_never_raises_it() -> None:
    world = under(engine=True, max_tool_calls=5)
    world.reply(call(*looks(1)))
    world.judged(judging(world), PolicyDecided(0, calls_left=2))
    world.finish(world.tool_calls[0])
    world.reply(call(*looks(2)))
    world.judged(judging(world), PolicyDecided(1, calls_left=40))
    world.finish(world.tool_calls[0])
    assert policies.call_cap(world.state) == 2
    world.reply(call(*looks(3)))
    world.judged(judging(world), PolicyDecided(2, calls_left=40))
    assert why(world) == ["tool_cap"]


@pytest.mark.requirement("run.policy.tightens")
def test_tool_that_engine_does_not_allow_is_not_available() -> None:
    world = under(engine=True)
    world.reply(call("scan", "look"))
    world.judged(judging(world), PolicyDecided(0, allowed=("look",)))
    assert world.hows(0) == ["excluded"]
    world.finish(world.tool_calls[0])
    world.reply(call("scan", "look"))
    world.judged(judging(world), PolicyDecided(1, allowed=()))
    assert world.hows(1) == ["excluded", "excluded"]
    world.reply(text())
    assert world.end.status == "succeeded"


@pytest.mark.requirement("run.policy.disable_tools")
def test_an_engine_that_disables_tools_forces_the_final_turn() -> None:
    world = under(engine=True)
    world.reply(call("scan", "note"))
    world.judged(judging(world), PolicyDecided(0, disable_tools=True))
    assert world.hows(0) == ["cap", "cap"]
    assert why(world) == ["policy"]
    world.reply(text())
    assert (world.end.status, world.end.reason) == ("succeeded", "policy")


@pytest.mark.requirement("run.policy.fail_closed")
def test_failing_policy_engine_blocks_the_turn_and_is_retried() -> None:
    world = under(engine=True)
    world.reply(call("scan", "note"))
    world.judged(judging(world), PolicyDecided(0, failed=True))
    assert world.hows(0) == ["blocked", "blocked"]
    world.reply(call("look"))
    world.judged(judging(world))
    assert len(world.tool_calls) == 1


# Filters and time-outs


@pytest.mark.requirement("run.filter.tags")
def test_all_filters_that_are_given_apply_together() -> None:
    tags = frozenset({"read", "cheap"})
    assert PolicyRule().allows("look", tags)
    assert PolicyRule(restrict_to_tool="look").allows("look", tags)
    assert not PolicyRule(restrict_to_tool="scan").allows("look", tags)
    assert PolicyRule(allowed_tags=("cheap", "safe")).allows("look", tags)
    assert not PolicyRule(allowed_tags=("safe",)).allows("look", tags)
    assert not PolicyRule(allowed_tags=()).allows("look", tags)
    assert not PolicyRule(allowed_tags=("cheap",), denied_tags=("read",)).allows("look", tags)
    both = (TagClause(("read",)), TagClause(("cheap", "safe"), ("slow",)))
    assert PolicyRule(tag_clauses=both).allows("look", tags)
    assert not PolicyRule(tag_clauses=both).allows("look", frozenset({"read"}))
    assert not PolicyRule(tag_clauses=(TagClause(()),)).allows("look", tags)


def test_tool_timeout_follows_rule_prefix_then_default() -> None:
    rule = PolicyRule(
        tool_timeout_us=30 * SECOND,
        per_tool_timeout_us={"web_*": 9 * SECOND, "web_get*": 8 * SECOND, "web_get_page": 7 * SECOND, "bad*": -1},
    )
    assert rule.tool_timeout_s("web_get_page", None) == 7
    assert rule.tool_timeout_s("web_get_all", 100) == 8
    assert rule.tool_timeout_s("web_search", None) == 9
    assert rule.tool_timeout_s("bad", None) == 30
    assert rule.tool_timeout_s("look", 5.0) == 5
    assert rule.tool_timeout_s("look", 50.0) == 30
    assert PolicyRule().tool_timeout_s("look", None) is None
