"""Calls that a running call asks for, such as those that code makes."""

from __future__ import annotations

import pytest

from weftline import prompts
from weftline.kernel.accept import MAX_NESTED, accepts
from weftline.kernel.decide import decide
from weftline.kernel.entries import (
    RULES,
    AskedCall,
    AwaitClosed,
    CallAsked,
    CallClosed,
    CallOpened,
    CallStarted,
    FinalForced,
    Limits,
    ResultsOverBudget,
)
from weftline.kernel.policy import CapReached, PolicyDecided, PolicyRule
from weftline.kernel.state import CallModel, Consult, ConsultPolicy, RunTool, StartChild

from .world import SECOND, Ask, World, call


def running(*, limits: Limits | None = None, gated: bool = False, beside: str = "", rules: int = RULES) -> World:
    """A run whose code is running."""
    world = World(limits, gated=gated, rules=rules)
    world.reply(call("code", *([beside] if beside else [])))
    if gated:
        world.consulted(Consult(0, 0))
    assert world.tool_calls == [RunTool(0, 0, 1)]
    return world


HOST = RunTool(0, 0, 1)


def indexes(world: World) -> list[int]:
    return [one.index for one in world.tool_calls]


def test_nested_call_is_an_ordinary_call_that_the_parent_awaits() -> None:
    world = running()
    assert world.ask_further(HOST, Ask("pay", {"x": 1}))
    assert indexes(world) == [0, 1]
    assert world.finish(RunTool(0, 1, 1))
    opened, started, closed = world.heads(CallOpened)[1], world.heads(CallStarted)[1], world.heads(CallClosed)[0]
    assert (opened.index, opened.parent, opened.effect) == (1, "c0-0", "once")
    assert (started.index, closed.index, closed.parent) == (1, 1, "c0-0")
    assert indexes(world) == [0]
    assert world.finish(HOST)
    assert isinstance(world.running[0], CallModel)
    assert world.heads(CallClosed)[1].parent == ""


def test_nested_calls_run_in_their_order_unless_they_are_concurrent() -> None:
    world = running()
    for name in ("scan", "send", "pay", "scan"):
        assert world.ask_further(HOST, name)
    assert indexes(world) == [0, 1, 2]
    world.finish(RunTool(0, 1, 1))
    assert indexes(world) == [0, 2]
    world.finish(RunTool(0, 2, 1))
    assert indexes(world) == [0, 3]
    world.finish(RunTool(0, 3, 1))
    assert indexes(world) == [0, 4]


def test_no_more_nested_calls_run_at_once_than_run_allows() -> None:
    world = running(limits=Limits(max_concurrent_calls=2))
    for _ in range(3):
        world.ask_further(HOST, "scan")
    assert indexes(world) == [0, 1, 2]


def test_calls_after_code_wait_for_it() -> None:
    world = running(beside="pay")
    world.ask_further(HOST, "look")
    assert indexes(world) == [0, 2]
    world.finish(RunTool(0, 2, 1))
    world.finish(HOST)
    assert indexes(world) == [1]


@pytest.mark.parametrize("name", ["wire", "local", "local_wire", "ask_user", "delegate"])
def test_code_waiting_for_outsiders_is_restarted_after_the_answer(name: str) -> None:
    world = running()
    world.ask_further(HOST, name)
    if name == "delegate":
        world.child_made(StartChild(0, 1))
    world.running.remove(HOST)  # the driver leaves, and the code with it
    decision = decide(world.state)
    assert (decision.append, decision.start) == ((), ())
    assert not world.state.in_flight
    assert world.state.waits_for_people == (name not in ("local", "delegate"))
    world.crash()
    assert world.state.epoch == 0  # nothing was lost
    if name in ("local", "delegate"):
        assert world.child_ends(1) if name == "delegate" else world.answer(1)
    else:
        assert world.say("answered" if name == "ask_user" else "approved")
    if name == "local_wire":
        world.answer(1)
    assert HOST in world.running


def test_code_continues_while_only_some_calls_wait() -> None:
    world = running()
    world.ask_further(HOST, "wire")
    world.ask_further(HOST, "look")
    assert HOST in decide(world.state).start
    assert not world.state.waits_for_people
    world.finish(RunTool(0, 2, 1))
    assert decide(world.state).start == ()
    assert world.state.waits_for_people


def test_crash_restarts_code_and_treats_nested_calls_by_effect() -> None:
    world = running()
    for name in ("scan", "send"):
        world.ask_further(HOST, name)
    world.crash()
    assert world.tool_calls == [RunTool(0, 0, 2), RunTool(0, 1, 2)]
    doubtful = [head for head in world.heads(CallClosed) if head.how == "in_doubt"]
    assert [head.name for head in doubtful] == ["send"]


def test_nested_call_requested_before_a_crash_is_not_lost() -> None:
    world = running()
    world.auto = False
    world.ask_further(HOST, "pay")
    world.crash()
    world.settle()
    assert [head.index for head in world.heads(CallStarted)] == [0, 0, 1]


def test_begun_calls_are_awaited_and_others_not_run() -> None:
    world = running()
    for name in ("pay", "look", "local", "wire"):
        world.ask_further(HOST, name)
    world.finish(HOST, how="failed")
    hows = {head.name: head.how for head in world.heads(CallClosed)}
    assert hows == {"code": "failed", "look": "skipped", "local": "skipped", "wire": "not_run"}
    assert [head.outcome for head in world.heads(AwaitClosed)] == ["withdrawn"]
    assert prompts.code.PARENT_ENDED in world.texts(CallClosed)
    assert world.tool_calls == [RunTool(0, 1, 1)]
    world.finish(RunTool(0, 1, 1))
    assert isinstance(world.running[0], CallModel)


def test_nested_calls_do_not_begin_in_a_pause() -> None:
    world = running()
    world.pause()
    assert world.ask_further(HOST, "look")
    assert len(world.heads(CallStarted)) == 1
    assert world.state.is_waiting(0)
    world.resume()
    assert indexes(world) == [0, 1]


def test_a_cancel_closes_the_code_and_what_it_asked_for() -> None:
    world = running()
    for name in ("pay", "look"):
        world.ask_further(HOST, name)
    world.cancel()
    assert [(head.name, head.how) for head in world.heads(CallClosed)] == [
        ("code", "cancelled"),
        ("pay", "in_doubt"),
        ("look", "cancelled"),
    ]
    assert not world.ask_further(HOST, "look")


def test_gates_are_asked_about_nested_calls_and_budgets_count_them() -> None:
    world = running(limits=Limits(tool_budgets={"look": 1}), gated=True)
    for _ in range(3):
        world.ask_further(HOST, "look")
    assert world.consults == [Consult(0, 1)]
    world.consulted(Consult(0, 1), "blocked")
    world.consulted(Consult(0, 2))
    world.finish(RunTool(0, 2, 1))
    world.consulted(Consult(0, 3))
    assert world.hows() == ["blocked", "returned", "budget"]


def test_call_that_may_have_happened_is_not_repeated_by_code() -> None:
    world = running()
    world.ask_further(HOST, "pay")
    world.crash()
    assert world.ask_further(RunTool(0, 0, 2), "pay")
    assert world.hows() == ["in_doubt", "repeat_of_doubt"]


def test_call_cap_ends_code_and_then_the_run() -> None:
    world = running(limits=Limits(policy=PolicyRule(max_tool_calls=2)))
    for _ in range(3):
        world.ask_further(HOST, "scan")
    assert world.hows() == ["cap", "cap"]
    assert [head.used for head in world.heads(CapReached)] == [2]
    assert prompts.policy.over_call_cap(2) in world.texts(CallClosed)
    world.finish(RunTool(0, 1, 1))
    world.finish(HOST)
    assert [head.reason for head in world.heads(FinalForced)] == ["tool_cap"]


def test_time_limit_applies_after_the_call_cap() -> None:
    rule = PolicyRule(max_tool_calls=2, time_budget_us=5 * SECOND)
    world = running(limits=Limits(policy=rule))
    for _ in range(2):
        world.ask_further(HOST, "scan")
    assert [head.reason for head in world.heads(CapReached)] == ["tool_cap"]
    world.wait_until(world.clock + 5 * SECOND)
    assert [head.reason for head in world.heads(CapReached)] == ["tool_cap", "time_budget"]
    assert not world.state.batch.unclosed
    assert [head.reason for head in world.heads(FinalForced)] == ["time_budget"]


def test_turn_policy_applies_to_calls_of_its_code() -> None:
    world = World(Limits(policy=PolicyRule(engine=True, per_turn_max_tool_calls=2)))
    world.reply(call("code"))
    world.judged(ConsultPolicy(0), PolicyDecided(0, allowed=("code", "look")))
    for name in ("pay", "look", "look"):
        world.ask_further(HOST, name)
    assert world.hows() == ["excluded", "cap"]


def test_nested_results_are_not_part_of_what_the_model_reads() -> None:
    world = running(limits=Limits(tool_output_budget_bytes=10))
    world.ask_further(HOST, "look")
    world.finish(RunTool(0, 1, 1), size=1000)
    world.finish(HOST, size=5)
    assert not world.heads(ResultsOverBudget)


def test_children_of_code_are_limited() -> None:
    world = running(limits=Limits(max_children=1))
    for _ in range(2):
        world.ask_further(HOST, "delegate")
    world.ask_further(HOST, "scan")
    assert world.running == [HOST, StartChild(0, 1), RunTool(0, 3, 1)]
    world.child_made(StartChild(0, 1))
    assert StartChild(0, 2) not in world.running
    world.child_ends(1)
    assert StartChild(0, 2) in world.running


def test_runs_of_the_first_rules_refuse_further_children_of_code() -> None:
    world = running(limits=Limits(max_children=1), rules=1)
    for _ in range(2):
        world.ask_further(HOST, "delegate")
    assert world.hows() == ["blocked"]
    assert prompts.subagents.too_many_children(1) in world.texts(CallClosed)


def test_only_a_running_host_may_ask_for_more() -> None:
    world = running(beside="pay")
    asked = AskedCall("x", "look", "d", effect="read")
    refused = {
        "another turn": (CallAsked(1, 2, 0, asked), 1),
        "a place that is taken": (CallAsked(0, 1, 0, asked), 1),
        "a place too far": (CallAsked(0, 3, 0, asked), 1),
        "a parent that is not a host": (CallAsked(0, 2, 1, asked), 0),
        "a parent that is not there": (CallAsked(0, 2, 7, asked), 1),
        "an attempt that is over": (CallAsked(0, 2, 0, asked), 2),
    }
    for why, (head, attempt) in refused.items():
        assert not accepts(world.state, head, attempt=attempt), why
    assert accepts(world.state, CallAsked(0, 2, 0, asked), attempt=1)
    world.finish(HOST)
    assert not accepts(world.state, CallAsked(0, 2, 0, asked), attempt=1)


def test_the_calls_of_one_turn_have_a_limit() -> None:
    world = running()
    world.auto = False
    for _ in range(MAX_NESTED):
        assert world.ask_further(HOST, "look")
    assert not world.ask_further(HOST, "look")
