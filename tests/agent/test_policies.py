"""Policies of agents and their runs: what a model is offered, what runs, and how a run comes to its end."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from weftline import Agent, Engine, Limits, RunFailed, ToolContext, ToolFailed, tool
from weftline.agent.options import LocalSpec
from weftline.agent.planning.plans import plan_of
from weftline.behaviors import Behavior, ToolBudget
from weftline.events import FinalForced, PolicyDecided, TurnRestarted
from weftline.failure import Hint
from weftline.kernel.policy import PolicyRule
from weftline.kernel.policy import TagClause as ClauseRule
from weftline.policies import BasicPolicy, Caps, Policy, PolicyDecision, PolicyTurn, TagClause
from weftline.providers.base import Chunk, ModelRequest
from weftline.runtime.model_calls.models import attempt_limit
from weftline.spec import groups
from weftline.testing import ScriptedModel, calls

from .kit import results_in, scripted


@tool(effect="read", concurrent=True, tags=["safe"])
def look(x: int = 0) -> str:
    """Looks."""
    return f"saw {x}"


@tool(effect="read", tags=["safe", "costly"])
def search(q: str = "") -> str:
    """Searches."""
    return "found"


@tool(effect="idempotent", bookkeeping=True)
def note(text: str = "") -> str:
    """Takes a note."""
    return "noted"


@tool(effect="idempotent", terminal=True)
def submit(answer: str) -> str:
    """Hands in the answer."""
    if answer == "bad":
        raise ToolFailed("Not like that.")
    return f"submitted {answer}"


SLOW = {"deltas": ["a", "b"], "delay_ms": 60_000}
"""An answer that takes its time."""


class SlowUntilItsLastWord(ScriptedModel):
    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        if not request.tools_disabled:
            await asyncio.get_running_loop().create_future()
        async for chunks in super().stream(request):
            yield chunks


def both(*turns: dict[str, Any]) -> dict[str, Any]:
    """One turn with the calls of several."""
    return {"tool_calls": [call for turn in turns for call in turn["tool_calls"]]}


def offered(model: ScriptedModel) -> list[list[str]]:
    return [[spec.name for spec in request.tools] for request in model.requests]


# Policies of agents and runs


def test_policy_of_run_takes_place_of_its_agents() -> None:
    agent = Agent(
        "m",
        policy=Policy(max_tool_calls=10, time_budget_s=60, allowed_tags=["safe"], denied_tags=["slow"]),
    )
    own = Policy(
        max_tool_calls=3,
        time_budget_s=90,
        tool_timeout_s=0.5,
        per_tool_timeout_s={"web_*": 5},
        plan_timeout_s=30,
        per_turn_max_tool_calls=2,
        max_consecutive_failed_tool_calls=4,
        finalizer_grace_s=7,
        restrict_to_tool="look",
        allowed_tags=["cheap"],
        denied_tags=["costly"],
        tag_clauses=[TagClause(("a",), ("b",))],
        interrupts_allowed=False,
    )
    limits = plan_of(agent, LocalSpec(policy=own), code="a", model="m").limits
    assert limits.policy == PolicyRule(
        max_tool_calls=3,
        per_turn_max_tool_calls=2,
        max_consecutive_failed_tool_calls=4,
        time_budget_us=90_000_000,
        plan_timeout_us=30_000_000,
        tool_timeout_us=500_000,
        per_tool_timeout_us={"web_*": 5_000_000},
        finalizer_grace_us=7_000_000,
        restrict_to_tool="look",
        allowed_tags=("cheap",),
        denied_tags=("costly",),
        tag_clauses=(ClauseRule(("a",), ("b",)),),
    )
    assert not limits.interrupts_allowed
    assert limits.policy is not None
    assert limits.policy.allows("look", frozenset({"cheap", "slow", "a"}))
    assert not limits.policy.allows("look", frozenset({"safe", "a"}))


def test_none_or_zero_keeps_the_agents_value() -> None:
    agent = Agent("m", policy=Policy(max_tool_calls=10, time_budget_s=60))
    plan = plan_of(agent, LocalSpec(policy=Policy(max_tool_calls=0, time_budget_s=0.0)), code="a", model="m")
    assert plan.limits.policy == PolicyRule(max_tool_calls=10, time_budget_us=60_000_000)
    assert plan_of(Agent("m"), LocalSpec(policy=Policy()), code="a", model="m").limits.policy is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tool_calls": -1},
        {"max_tool_calls": 1.5},
        {"time_budget_s": -0.1},
        {"time_budget_s": float("nan")},
        {"per_tool_timeout_s": {"look": -1}},
        {"allowed_tags": "safe"},
        {"allowed_tags": [1]},
        {"denied_tags": 5},
        {"tag_clauses": [("a",)]},
        {"max_tool_calls": 10**30},
        {"time_budget_s": 1e15},
        {"time_budget_s": 10**400},
        {"time_budget_s": 1e-7},
        {"tool_timeout_s": "5"},
        {"interrupts_allowed": "no"},
        {"failure_counting": "day"},
    ],
)
def test_a_value_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Policy(**wrong)


def test_value_that_is_not_a_policy_is_refused() -> None:
    nothing: Any = {}
    with pytest.raises(TypeError, match="must be a Policy"):
        Agent("m", policy=nothing)
    with pytest.raises(TypeError, match="must be a Policy"):
        plan_of(Agent("m"), LocalSpec(policy=nothing), code="a", model="m")


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError):
        Policy(max_calls=1)  # type: ignore[call-arg]


# Filters


@pytest.mark.requirement("run.filter.tags")
async def test_only_tools_that_the_filters_leave_are_offered_and_run() -> None:
    agent, model = scripted(
        both(calls("search", q="x"), calls("look", x=1), calls("nowhere")),
        tools=[look, search, note],
        policy=Policy(allowed_tags=["safe"]),
    )
    result = await agent.run("Go.", policy=Policy(denied_tags=["costly"]))
    assert offered(model) == [["look"], ["look"]]
    assert [call.how for call in result.calls] == ["excluded", "returned", "unknown"]
    told = results_in(result.messages)
    assert told[0] == "The tool search is not available in this run. Continue with the tools that are."
    assert "nowhere" in told[2]
    assert result.status == "succeeded"


@pytest.mark.requirement("run.filter.tags")
async def test_an_empty_list_of_allowed_tags_leaves_no_tool() -> None:
    agent, model = scripted(calls("look"), tools=[look])
    result = await agent.run("Go.", policy=Policy(allowed_tags=[]))
    assert offered(model) == [[], []]
    assert (result.calls[0].how, result.text) == ("excluded", "Done.")


@pytest.mark.requirement("run.filter.tags")
async def test_a_run_can_be_restricted_to_one_tool() -> None:
    agent, model = scripted(calls("note"), tools=[look, search, note])
    result = await agent.run("Go.", policy=Policy(restrict_to_tool="note"))
    assert offered(model)[0] == ["note"]
    assert result.calls[0].how == "returned"


# How runs end


@pytest.mark.requirement("run.cap.tool_calls")
async def test_final_turn_has_no_tools_and_result_carries_reason() -> None:
    agent, model = scripted(calls("look", x=1), both(calls("look", x=2), calls("look", x=3)), tools=[look])
    async with agent.stream("Go.", policy=Policy(max_tool_calls=2)) as run:
        events = [event async for event in run]
        result = await run.result()
    assert (result.status, result.reason, result.text, result.turns) == ("succeeded", "tool_cap", "Done.", 3)
    assert [call.how for call in result.calls] == ["returned", "cap", "cap"]
    assert [event.reason for event in events if isinstance(event, FinalForced)] == ["tool_cap"]
    last = model.requests[-1]
    assert last.tools_disabled
    assert "tool call limit" in str(last.messages[-1])


async def test_a_run_that_the_model_ended_carries_no_reason() -> None:
    agent, _ = scripted(calls("look"), tools=[look], policy=Policy(max_tool_calls=5, time_budget_s=60))
    assert (await agent.run("Go.")).reason == ""


@pytest.mark.requirement("run.tool.terminal")
async def test_a_terminal_tool_ends_the_run_without_another_word() -> None:
    model = ScriptedModel([calls("submit", answer="bad"), both(calls("submit", answer="42"), calls("look"))])
    result = await Agent(model, tools=[submit, look]).run("Go.")
    assert (result.status, result.text, result.turns) == ("succeeded", "", 2)
    assert [call.how for call in result.calls] == ["failed", "returned", "returned"]
    assert result.calls[1].result == "submitted 42"
    model.assert_done()


@pytest.mark.requirement("run.tool.bookkeeping")
async def test_a_bookkeeping_tool_runs_although_the_cap_is_spent() -> None:
    agent, _ = scripted(calls("look"), both(calls("note"), calls("look", x=2)), tools=[look, note])
    result = await agent.run("Go.", policy=Policy(max_tool_calls=1))
    assert sorted((call.name, call.how) for call in result.calls) == [
        ("look", "cap"),
        ("look", "returned"),
        ("note", "returned"),
    ]


@pytest.mark.requirement("run.loop.counting")
@pytest.mark.requirement("run.cap.tool_calls_counted")
async def test_calls_that_loop_detection_skips_spend_none_of_the_cap() -> None:
    turns = [calls("look") for _ in range(3)] + [calls("look", x=1)]
    agent, _ = scripted(*turns, tools=[look], limits=Limits(loop_soft=2, loop_hard=9))
    result = await agent.run("Go.", policy=Policy(max_tool_calls=2))
    assert [call.how for call in result.calls] == ["returned", "loop", "loop", "returned"]
    assert result.reason == ""


# Time


@pytest.mark.requirement("run.batch.deadline")
@pytest.mark.requirement("run.time.budget")
async def test_tool_at_work_at_timeout_is_cut() -> None:
    cut: list[str] = []

    @tool(effect="read", concurrent=True)
    async def hang() -> str:
        """Hangs."""
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cut.append("cut")
            raise
        return ""

    agent, _ = scripted(both(calls("hang"), calls("look")), tools=[hang, look])
    result = await agent.run("Go.", policy=Policy(time_budget_s=1))
    assert (result.status, result.reason, result.text) == ("succeeded", "time_budget", "Done.")
    assert {call.name: call.how for call in result.calls} == {"hang": "timeout", "look": "returned"}
    assert cut == ["cut"]
    assert "cut off because the time budget" in results_in(result.messages)[0]


@pytest.mark.requirement("run.time.budget")
async def test_model_still_answering_at_timeout_gets_a_last_turn() -> None:
    slow = SlowUntilItsLastWord(["Enough."])
    result = await Agent(slow).run("Go.", policy=Policy(time_budget_s=0.05))
    assert (result.status, result.reason, result.text) == ("succeeded", "time_budget", "Enough.")
    assert (result.turns, result.attempts) == (1, 2)


@pytest.mark.requirement("run.time.grace")
async def test_final_turn_that_never_answers_fails_run_with_its_reason() -> None:
    slow = ScriptedModel([SLOW, SLOW])
    with pytest.raises(RunFailed) as failed:
        await Agent(slow).run("Go.", policy=Policy(time_budget_s=0.03, finalizer_grace_s=0.03))
    assert (failed.value.code, failed.value.result.reason) == ("time_budget", "time_budget")


@pytest.mark.requirement("run.time.plan_timeout")
async def test_slow_attempt_counts_as_timeout_and_is_retried() -> None:
    slow = ScriptedModel([SLOW, calls("look"), SLOW, "There."])
    async with asyncio.timeout(60), Engine() as engine:
        run = await engine.start(Agent(slow, tools=[look]), "Go.", policy=Policy(plan_timeout_s=1.0))
        result = await run.result()
        again = [(event.turn, event.reason) async for event in run if isinstance(event, TurnRestarted)]
    assert (result.status, result.text, result.attempts) == ("succeeded", "There.", 4)
    assert again == [(0, "timeout"), (1, "timeout")]


@pytest.mark.requirement("run.time.plan_timeout")
def test_policy_that_does_not_say_gives_model_call_two_minutes() -> None:
    assert attempt_limit(PolicyRule(), 600.0) == (120.0, True)
    assert attempt_limit(PolicyRule(plan_timeout_us=130_000_000), 600.0) == (130.0, True)
    assert attempt_limit(PolicyRule(), 60.0) == (60.0, False)
    assert attempt_limit(None, 600.0) == (600.0, False)


@pytest.mark.requirement("run.time.plan_timeout")
async def test_attempts_repeat_within_the_time_budget() -> None:
    slow = SlowUntilItsLastWord(["Enough."])
    agent = Agent(slow, limits=Limits(max_retries=1000))
    result = await agent.run("Go.", policy=Policy(plan_timeout_s=0.01, time_budget_s=2.0))
    assert (result.status, result.reason, result.text) == ("succeeded", "time_budget", "Enough.")
    assert result.turns == 1 and result.attempts > 2


@pytest.mark.requirement("run.batch.isolated")
async def test_policy_rule_that_fails_is_an_error_of_its_call() -> None:
    @tool(effect="read", concurrent=True)
    async def web_get() -> str:
        """Hangs."""
        return await asyncio.get_running_loop().create_future()

    @tool(effect="read", concurrent=True)
    def boom() -> str:
        """Fails."""
        raise KeyError("x")

    @tool(effect="read", concurrent=True)
    def odd() -> object:
        """Returns what nobody can read."""
        return {1, object()}

    turn = both(calls("web_get"), calls("boom"), calls("odd"), calls("look"))
    agent, _ = scripted(turn, tools=[web_get, boom, odd, look])
    result = await agent.run("Go.", policy=Policy(per_tool_timeout_s={"web_*": 0.03}))
    assert {call.name: call.how for call in result.calls} == {
        "web_get": "timeout",
        "boom": "failed",
        "odd": "failed",
        "look": "returned",
    }
    assert (result.status, result.reason) == ("succeeded", "")


async def test_subagent_is_cancelled_when_time_of_its_parent_is_up() -> None:
    slow = Agent(ScriptedModel([SLOW] * 4), name="slow")
    agent, _ = scripted(calls("slow", task="Think."), tools=[slow.as_tool("Thinks.")])
    result = await agent.run("Go.", policy=Policy(time_budget_s=2.0))
    assert (result.status, result.reason) == ("succeeded", "time_budget")
    assert [call.how for call in result.calls] == ["failed"]


# Engines


async def test_plain_engine_may_block_and_asynchronous_one_is_on_loop() -> None:
    threads: list[int] = []

    def plain(turn: PolicyTurn) -> PolicyDecision:
        threads.append(threading.get_ident())
        return PolicyDecision()

    class Asynchronous:
        async def __call__(self, turn: PolicyTurn) -> PolicyDecision:
            threads.append(threading.get_ident())
            return PolicyDecision()

    for engine in (plain, Asynchronous()):
        agent, _ = scripted(calls("look", x=1), tools=[look], policy_engine=engine)
        await agent.run("Go.")
    assert threads[0] != threading.get_ident() == threads[1]


@pytest.mark.requirement("run.policy.tightens")
async def test_policy_engine_is_asked_once_per_turn() -> None:
    asked: list[PolicyTurn] = []
    seen: list[dict[str, str]] = []

    @tool(effect="read", tags=["safe"])
    def peek(context: ToolContext, x: int) -> str:
        """Peeks."""
        seen.append(dict(context.labels))
        return "ok"

    async def engine(turn: PolicyTurn) -> PolicyDecision:
        asked.append(turn)
        return PolicyDecision(labels={f"turn{turn.turn}": "seen"}, caps=Caps(tool_calls=3), metadata={"why": [1]})

    agent, _ = scripted(calls("peek", x=1), calls("peek", x=2), tools=[peek], policy_engine=engine)
    async with agent.stream("Go.", policy=Policy(max_tool_calls=9), labels={"team": "zoo"}) as run:
        events = [event async for event in run]
    assert [(one.turn, [call.tool for call in one.calls], one.calls[0].args) for one in asked] == [
        (0, ["peek"], {"x": 1}),
        (1, ["peek"], {"x": 2}),
    ]
    assert [one.left.tool_calls for one in asked] == [9, 2]
    assert asked[0].tools[0].tags == {"safe"}
    assert asked[1].labels == seen[0] == {"team": "zoo", "turn0": "seen"}
    decided = [event for event in events if isinstance(event, PolicyDecided)]
    assert [(one.turn, one.calls_left, one.labels) for one in decided] == [
        (0, 3, {"turn0": "seen"}),
        (1, 3, {"turn1": "seen"}),
    ]


@pytest.mark.requirement("run.policy.decision")
async def test_policy_engine_decides_with_everything_before_any_call() -> None:
    asked: list[PolicyTurn] = []
    ran: list[int] = []

    @tool(effect="read", tags=["safe"])
    def web_search(x: int) -> str:
        """Searches the web."""
        ran.append(x)
        if x == 1:
            raise ToolFailed("Where?", hint=Hint("missing_fields", "Say where.", missing_fields=("where",)))
        return "ok"

    def engine(turn: PolicyTurn) -> PolicyDecision:
        asked.append(turn)
        assert len(ran) == turn.turn  # none of the turn's own has begun
        caps = Caps(tool_calls=3, consecutive_failures=2)
        return PolicyDecision(allowed_tools=["web_search"], caps=caps, labels={"seen": "yes"}, metadata={"why": [1]})

    agent, _ = scripted(calls("web_search", x=1), calls("web_search", x=2), tools=[web_search], policy_engine=engine)
    policy = Policy(max_tool_calls=9, max_consecutive_failed_tool_calls=5)
    async with agent.stream("Go.", policy=policy, metadata={"ticket": "7"}, labels={"team": "zoo"}) as run:
        await run.result()
        entries = (await run.entries(limit=1000)).entries
    first, second = asked
    assert (first.run.id, first.run.metadata, first.turn, first.hint) == (run.id, {"ticket": "7"}, 0, None)
    [call] = first.calls
    assert (call.tool, call.args, bool(call.id)) == ("web_search", {"x": 1}, True)
    [offered] = first.tools
    assert (offered.name, offered.title, offered.tags) == ("web_search", "Web search", {"safe"})
    assert offered.description == "Searches the web."
    assert (first.left, second.left) == (Caps(9, 5), Caps(2, 1))
    assert second.labels == {"team": "zoo", "seen": "yes"}
    assert second.hint is not None and second.hint.reason == "missing_fields"
    kinds = [entry.kind for entry in entries]
    turns = [place for place, kind in enumerate(kinds) if kind == "turn.completed"]
    for turn in (0, 1):  # a turn that was killed after this is not asked about again: tests/crash/test_policies.py
        batch = kinds[turns[turn] : turns[turn + 1]]
        assert batch.index("policy.decided") < batch.index("call.opened") < batch.index("call.started")
    [decided, _] = [entry for entry in entries if entry.kind == "policy.decided"]
    assert decided.head == {
        "type": "policy.decided",
        "turn": 0,
        "allowed": ["web_search"],
        "calls_left": 3,
        "failures_left": 2,
    }
    assert decided.body == {"labels": {"seen": "yes"}, "metadata": {"why": [1]}}


@pytest.mark.requirement("run.policy.fail_closed")
@pytest.mark.parametrize("wrong", [None, PolicyDecision(allowed_tools="look"), PolicyDecision(caps=Caps(-1)), "raise"])
async def test_nonsense_from_a_policy_engine_blocks_the_turn(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    turns: list[int] = []

    def engine(turn: PolicyTurn) -> Any:
        turns.append(turn.turn)
        if wrong == "raise" and not turn.turn:
            raise RuntimeError("out of order")
        return PolicyDecision() if turn.turn else wrong

    agent, _ = scripted(calls("look", x=1), calls("look", x=2), tools=[look], policy_engine=engine)
    with caplog.at_level(logging.CRITICAL, "weftline.runtime.agent_code.consulting"):
        result = await agent.run("Go.")
    assert [call.how for call in result.calls] == ["blocked", "returned"]
    assert (turns, result.status) == ([0, 1], "succeeded")


@pytest.mark.requirement("run.policy.disable_tools")
async def test_an_engine_can_bring_a_run_to_its_end() -> None:
    def disabling(turn: PolicyTurn) -> PolicyDecision:
        return PolicyDecision(disable_tools=True)

    agent, _ = scripted(calls("look"), tools=[look], policy_engine=disabling)
    result = await agent.run("Go.")
    assert (result.status, result.reason, result.calls[0].how) == ("succeeded", "policy", "cap")


@pytest.mark.requirement("run.policy.basic")
async def test_the_basic_engine_goes_by_lists_and_a_block_wins() -> None:
    agent, _ = scripted(
        both(calls("look", x=1), calls("search"), calls("note")),
        tools=[look, search, note],
        policy_engine=BasicPolicy(blocked_tags=["costly"], allowed_tags=["safe"]),
    )
    result = await agent.run("Go.")
    assert {call.name: call.how for call in result.calls} == {
        "look": "returned",
        "search": "excluded",
        "note": "excluded",
    }


@pytest.mark.requirement("run.policy.basic")
async def test_basic_engine_withholds_missing_tools_and_labels_runs() -> None:
    labels: list[dict[str, str]] = []
    basic = BasicPolicy(blocked_tools=["search"])

    def engine(turn: PolicyTurn) -> PolicyDecision:
        labels.append(dict(turn.labels))
        return basic(turn)

    agent, _ = scripted(calls("search"), calls("look"), calls("look", x=1), tools=[look, search], policy_engine=engine)
    result = await agent.run("Go.")
    assert [call.how for call in result.calls] == ["excluded", "returned", "returned"]
    assert labels == [
        {},
        {"policy_engine": "basic"},
        {"policy_engine": "basic", "policy_hint": "tool_unavailable"},
    ]


@pytest.mark.requirement("run.budget.counter")
async def test_tool_has_one_budget_under_all_its_names() -> None:
    agent, _ = scripted(
        both(calls("Peek", x=1), calls("look", x=2), calls("Peek", x=3)),
        tools=[look],
        tool_aliases={"look": "Peek"},
        behavior=Behavior(tool_budgets={"look": ToolBudget(2)}),
    )
    assert [call.how for call in (await agent.run("Go.")).calls].count("budget") == 1
    own = await agent.run("Go.", behavior=Behavior(tool_budgets={"look": 1}))
    assert [call.how for call in own.calls].count("budget") == 2


def test_policy_page_has_every_rule_in_both_forms() -> None:
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE))
    assert [*rows] == [*Policy.__struct_fields__]
    assert {*rows.values()} == {*groups.Policy.__struct_encode_fields__}
