"""The knobs of an agent's behavior, and what they do to runs."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline import Agent, Engine, Limits, Settings, tool
from weftline.agent.behavior import DEFAULTS, Exceeded, Ruling, decayed, level_of, resolved
from weftline.behaviors import Behavior, ThinkingDecay, ToolBudget, ToolSearch
from weftline.errors import InvalidRequest
from weftline.events import BudgetExceeded
from weftline.hooks import OutputBudgetExceeded, ToolAfter, ToolBudgetExceeded, ToolGate, ToolTransform
from weftline.messages import Text
from weftline.providers.catalog import Catalog
from weftline.testing import ScriptedModel, calls

from .kit import injected, last_words, results_in, scripted

ran: list[str] = []


@tool(effect="read", concurrent=True)
def look(at: str = "") -> str:
    """Looks."""
    ran.append(at)
    if at == "fail":
        raise RuntimeError("no")
    return f"seen {at}"


@tool
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


# Precedence


@pytest.mark.requirement("loop.behavior.defaults")
def test_the_defaults_are_these() -> None:
    assert resolved() == DEFAULTS
    assert (DEFAULTS.cache, DEFAULTS.compact_strategy, DEFAULTS.compact_threshold_bytes) == (True, "off", 131072)
    assert (DEFAULTS.compact_keep_turns, DEFAULTS.tool_disclosure, DEFAULTS.elide_stale_reads) == (4, "eager", False)
    assert DEFAULTS.tool_output_budget_bytes is DEFAULTS.dedup_tools is DEFAULTS.tool_budgets is None
    assert DEFAULTS.persist_threshold_bytes is DEFAULTS.persist_dir is DEFAULTS.thinking_decay is None
    assert Limits().max_turns is None


KNOBS: dict[str, st.SearchStrategy[Any]] = {
    "cache": st.booleans(),
    "compact_strategy": st.sampled_from(["off", "tail"]),
    "compact_keep_turns": st.integers(0, 9),
    "keep_recent_turns": st.integers(1, 9),
    "tool_output_budget_bytes": st.integers(0, 9),
    "tool_disclosure": st.sampled_from(["eager", "lazy"]),
    "tool_budgets": st.dictionaries(st.sampled_from("ab"), st.integers(0, 3).map(ToolBudget)),
    "thinking_decay": st.builds(ThinkingDecay, st.integers(0, 3), st.floats(0, 1), st.integers(0, 9)),
    "tool_search": st.builds(ToolSearch, st.integers(1, 9), st.booleans()),
    "persist_dir": st.just("out"),
}
behaviors = st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in KNOBS.items()}).map(
    lambda knobs: Behavior(**knobs)
)


@pytest.mark.requirement("loop.behavior.precedence")
@given(behaviors, behaviors, behaviors)
def test_each_knob_is_the_first_that_is_given(run: Behavior, agent: Behavior, preset: Behavior) -> None:
    found = resolved(run, agent, preset)
    for name in KNOBS:
        given_ones = [getattr(one, name) for one in (run, agent, preset, DEFAULTS)]
        assert getattr(found, name) == next((one for one in given_ones if one is not None), None)
    assert resolved(run, agent.over(preset)) == found


@given(behaviors)
def test_stored_behavior_is_read_back(behavior: Behavior) -> None:
    assert Behavior.from_stored(behavior.stored()) == behavior


@pytest.mark.requirement("loop.behavior.precedence")
@pytest.mark.parametrize(
    "knobs",
    [
        {"compact_keep_turns": -1},
        {"keep_recent_turns": 0},
        {"compact_strategy": "head"},
        {"tool_output_budget_bytes": -1},
        {"tool_output_budget_bytes": True},
        {"tool_disclosure": "never"},
        {"tool_budgets": {"a": -1}},
        {"cache": "yes"},
        {"reasoning_budget_tokens": -5},
    ],
)
def test_value_outside_its_range_is_refused_when_it_is_given(knobs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(knobs))):
        Behavior(**knobs)


def test_a_knob_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="compact_tail"):
        Behavior(compact_tail=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("make", [lambda: ToolBudget(-1), lambda: ToolBudget(1, "stop"), lambda: ToolSearch(0)])  # type: ignore[arg-type]
def test_parts_of_knobs_are_checked_too(make: Any) -> None:
    with pytest.raises(ValueError, match=r"must|is"):
        make()


async def test_a_durable_run_keeps_its_own_behavior_and_refuses_functions(tmp_path: Path) -> None:
    models = Catalog()
    model = ScriptedModel([calls("look", at="a"), "Done."])
    models.add(model, name="lab")
    agent = Agent("lab:script", name="looker", tools=[look], limits=Limits(loop_soft=0))
    async with Engine(tmp_path, agents=[agent], models=models) as engine:
        own = Behavior(tool_budgets={"look": ToolBudget(0, "steer")}, cache=False)
        result = await agent.run("Go.", engine=engine, behavior=own)
        assert [call.how for call in result.calls] == ["returned"]
        assert [request.cache for request in model.requests] == [False, False]
        with pytest.raises(InvalidRequest, match="dedup_tools"):
            await agent.run("Go.", engine=engine, behavior=Behavior(dedup_tools={"look": lambda args: "x"}))


# The model's settings


@pytest.mark.requirement("loop.cache.knob")
async def test_caching_is_switched_off_for_an_agent_or_a_run() -> None:
    agent, model = scripted(tools=[])
    await agent.run("Go.")
    await agent.run("Go.", behavior=Behavior(cache=False))
    quiet, other = scripted(tools=[], behavior=Behavior(cache=False))
    await quiet.run("Go.")
    assert [request.cache for request in [*model.requests, *other.requests]] == [True, False, False]


@pytest.mark.requirement("loop.behavior.thinking_decay")
@given(st.integers(1, 50), st.integers(0, 100_000), st.integers(0, 10), st.floats(0, 1), st.integers(0, 200_000))
def test_reasoning_never_rises(turn: int, base: int, after: int, factor: float, floor: int) -> None:
    decay = ThinkingDecay(after, factor, floor)
    found = decayed(decay, turn=turn, base=base)
    assert 0 <= found <= base
    assert found == base if turn <= after else found == min(base, int(max(floor, base * factor ** (turn - after))))
    assert decayed(lambda turn, base: base * 10 - turn, turn=turn, base=base) <= base
    assert decayed(lambda turn, base: -1, turn=turn, base=base) == 0


@pytest.mark.requirement("loop.behavior.thinking_decay", "loop.behavior.reasoning")
async def test_later_turns_of_a_run_think_less() -> None:
    decay = Behavior(thinking_decay=ThinkingDecay(1, 0.5))
    agent, model = scripted(calls("look"), calls("look"), tools=[look], behavior=decay, settings=Settings(reasoning=80))
    await agent.run("Go.")
    await agent.run("Go.")
    assert [request.reasoning for request in model.requests] == [80, 40, 20] * 2
    exact = Behavior(thinking_decay=lambda turn, base: base - 4096 * (turn - 1), reasoning_budget_tokens=10240)
    agent, model = scripted(calls("look"), calls("look"), calls("look"), tools=[look], behavior=exact)
    await agent.run("Go.")
    assert [request.reasoning_budget_tokens for request in model.requests] == [10240, 6144, 2048, None]
    assert [request.reasoning for request in model.requests] == [50, 37, 20, 0]


@given(st.integers(-5, 200_000), st.integers(0, 1000))
def test_more_tokens_are_never_a_lower_level(tokens: int, more: int) -> None:
    assert 0 <= level_of(tokens) <= level_of(tokens + more) <= 100


# Budgets of tools


@pytest.mark.requirement("loop.budget.block")
@pytest.mark.parametrize("budget", [2, ToolBudget(2)])
async def test_budget_holds_exactly_also_for_calls_at_same_time(budget: int | ToolBudget) -> None:
    turn = {"tool_calls": [{"name": "look", "args": {"at": str(n)}} for n in range(4)]}
    agent, _ = scripted(turn, tools=[look], behavior=Behavior(tool_budgets={"look": budget}))
    told: list[tuple[str, int, int]] = []
    agent.on(ToolBudgetExceeded)(lambda at: told.append((at.tool, at.max_calls, at.call_index)))
    result = await agent.run("Go.")
    assert sorted(ran) == ["0", "1"]
    assert [call.how for call in result.calls].count("budget") == 2
    assert all(call.result.startswith("Blocked: look") for call in result.calls if call.how == "budget")
    assert told == [("look", 2, 3), ("look", 2, 4)]


@pytest.mark.requirement("loop.budget.steer")
async def test_budget_that_steers_lets_calls_run_and_tells_model_once() -> None:
    turn = {"tool_calls": [{"name": "look", "args": {"at": str(n)}} for n in range(3)]}
    agent, model = scripted(turn, turn, tools=[look], behavior=Behavior(tool_budgets={"look": ToolBudget(2, "steer")}))
    told: list[int] = []
    agent.on(ToolBudgetExceeded)(lambda at: told.append(at.call_index))
    async with agent.stream("Go.") as run:
        seen = [event.call_index async for event in run.events() if isinstance(event, BudgetExceeded)]
        result = await run.result()
    assert len(ran) == 6 and {call.how for call in result.calls} == {"returned"}
    assert told == seen == [3, 4, 5, 6]
    assert [len(injected(request)) for request in model.requests] == [0, 1, 1]
    assert "look should be called at most 2 times" in last_words(model.requests[1])


@pytest.mark.requirement("loop.budget.function")
async def test_a_function_decides_about_calls_beyond_their_budget() -> None:
    asked: list[Exceeded] = []

    def decide(exceeded: Exceeded) -> Ruling:
        asked.append(exceeded)
        if exceeded.count == 4:
            raise RuntimeError("no")
        return Ruling("steer", "Slowly.") if exceeded.count == 2 else Ruling("block", "Enough.")

    one = calls("pay", amount=1)
    agent, model = scripted(
        one, one, one, one, tools=[pay], behavior=Behavior(tool_budgets={"pay": ToolBudget(1, decide)})
    )
    result = await agent.run("Go.")
    assert [call.how for call in result.calls] == ["returned", "returned", "blocked", "blocked"]
    assert result.calls[2].result == "Blocked: Enough."
    assert asked == [Exceeded("pay", 1, n) for n in (2, 3, 3)]
    assert injected(model.requests[-1]) == ["Slowly."]


@pytest.mark.requirement("loop.call.counts", "loop.budget.block")
async def test_unknown_and_invalid_calls_use_up_a_budget() -> None:
    turns = [calls("pay", amount="x"), calls("pay", amount=1), calls("ghost"), calls("ghost")]
    agent, _ = scripted(*turns, tools=[pay], behavior=Behavior(tool_budgets={"pay": 1, "ghost": 1}))
    result = await agent.run("Go.")
    assert [call.how for call in result.calls] == ["invalid", "budget", "unknown", "budget"]


# Results


@pytest.mark.requirement("loop.behavior.output_budget")
async def test_results_over_their_budget_are_kept_and_talked_about() -> None:
    turn = {"tool_calls": [{"name": "look", "args": {"at": "x" * 40}}, {"name": "look", "args": {"at": "y" * 40}}]}
    agent, model = scripted(turn, calls("look"), tools=[look], behavior=Behavior(tool_output_budget_bytes=89))
    told: list[tuple[int, int, int]] = []
    agent.on(OutputBudgetExceeded)(lambda at: told.append((at.turn, at.bytes, at.budget)))
    result = await agent.run("Go.")
    assert last_words(model.requests[1]) == (
        "[Tool output budget exceeded: 90 bytes returned in this turn (cap: 89). "
        "Summarize the salient findings before calling more tools.]"
    )
    assert results_in(model.requests[1].messages) == [f"seen {'x' * 40}", f"seen {'y' * 40}"]
    assert told == [(0, 90, 89)]
    assert last_words(model.requests[2]) == ""
    assert len(result.calls) == 3
    agent, model = scripted(turn, tools=[look], behavior=Behavior(tool_output_budget_bytes=90))
    await agent.run("Go.")
    assert last_words(model.requests[1]) == ""


@pytest.mark.requirement("loop.dedup.tools")
async def test_the_last_call_of_a_tool_is_not_repeated() -> None:
    steps = [calls("look", at=at) for at in ("a", "a", "b", "a", "fail", "fail")]
    agent, _ = scripted(*steps, tools=[look], behavior=Behavior(dedup_tools={"look": None}))
    seen: list[tuple[str, int]] = []
    agent.on(ToolTransform)(lambda at: seen.append(("transform", at.output_bytes)))
    agent.on(ToolAfter)(lambda at: seen.append(("after", at.counts.get("look", 0))))
    result = await agent.run("Go.")
    assert ran == ["a", "b", "a", "fail", "fail"]
    assert [call.how for call in result.calls] == ["returned", "answered", "returned", "returned", "failed", "failed"]
    assert result.calls[1].result == "seen a"
    assert [what for what, _ in seen] == ["transform", "after"] * 6
    assert [count for what, count in seen if what == "after"] == [0, 1, 2, 3, 4, 5]


async def test_a_hasher_says_what_of_the_arguments_matters() -> None:
    steps = [calls("look", at=at) for at in ("a", "A", "b")]
    agent, _ = scripted(*steps, tools=[look], behavior=Behavior(dedup_tools={"look": lambda args: args["at"].lower()}))
    await agent.run("Go.")
    assert ran == ["a", "b"]


async def test_a_hasher_that_fails_changes_nothing() -> None:
    def broken(args: object) -> str:
        raise RuntimeError("no")

    again = calls("look", at="a")
    agent, _ = scripted(again, again, tools=[look], behavior=Behavior(dedup_tools={"look": broken}))
    await agent.run("Go.")
    assert ran == ["a", "a"]


@pytest.mark.requirement("loop.dedup.tools")
async def test_a_tool_that_does_something_is_not_deduplicated() -> None:
    with pytest.raises(ValueError, match="pay"):
        scripted(tools=[pay], behavior=Behavior(dedup_tools={"pay": None}))
    agent, _ = scripted(tools=[pay])
    with pytest.raises(Exception, match="pay"):
        await agent.run("Go.", behavior=Behavior(dedup_tools={"pay": None}))


@pytest.mark.requirement("loop.batch.sequential")
async def test_calls_run_one_after_other_if_behavior_says_so() -> None:
    active = most = 0

    @tool(effect="read", concurrent=True)
    async def work() -> str:
        nonlocal active, most
        active += 1
        most = max(most, active)
        for _ in range(5):
            await asyncio.sleep(0)
        active -= 1
        return "done"

    turn: dict[str, Any] = {"tool_calls": [{"name": "work", "args": {}}] * 3}
    for behavior, expected in ((Behavior(), 3), (Behavior(tool_execution="sequential"), 1)):
        most = 0
        agent, _ = scripted(turn, tools=[work], behavior=behavior)
        await agent.run("Go.")
        assert most == expected


# Large results


def only_file(place: Path) -> Path:
    (path,) = place.iterdir()
    return path


@tool(effect="read")
def big(size: int = 5000, letter: str = "ä") -> list[Any] | str:
    """A large result."""
    return letter * size


@pytest.mark.requirement("loop.persist.stub")
async def test_large_result_is_in_file_and_stub_in_conversation(tmp_path: Path) -> None:
    behavior = Behavior(persist_threshold_bytes=9_999, persist_dir=tmp_path / "out")
    agent, model = scripted(calls("big"), calls("big", size=4999), tools=[big], behavior=behavior)
    sizes: list[int] = []
    agent.on(ToolAfter)(lambda at: sizes.append(at.output_bytes))
    result = await agent.run("Go.")
    stub = str(result.calls[0].result)
    head, _, rest = stub.partition("\n")
    path = only_file(tmp_path / "out")
    assert head == f'<persisted-output tool="big" bytes="10000" path="{path}">'
    preview = rest.removesuffix("\n</persisted-output>")
    assert preview == "ä" * 1024
    assert path.read_text() == "ä" * 5000
    assert results_in(model.requests[1].messages) == results_in(model.requests[2].messages)[:1] == [stub]
    assert results_in(result.messages)[0] == stub
    assert sizes == [len(stub.encode()), 9998]


EXCLUDED = {"persist_threshold_bytes": 10, "persist_dir": "out", "persist_exclude_tools": ["big"]}


@pytest.mark.requirement("loop.persist.off")
@pytest.mark.parametrize("knobs", [{"persist_threshold_bytes": 10}, {"persist_dir": "out"}, EXCLUDED])
async def test_excluded_or_directoryless_tools_write_nothing(
    knobs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent, _ = scripted(calls("big"), tools=[big], behavior=Behavior(**knobs))
    result = await agent.run("Go.")
    assert result.calls[0].result == "ä" * 5000
    assert os.listdir(tmp_path) == []


async def test_a_result_that_cannot_be_written_stays_in_the_conversation(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where the directory should be")
    behavior = Behavior(persist_threshold_bytes=10, persist_dir=tmp_path / "out")
    agent, _ = scripted(calls("big"), tools=[big], behavior=behavior)
    result = await agent.run("Go.")
    assert result.calls[0].result == "ä" * 5000


async def test_names_of_files_cannot_lead_out_of_their_directory(tmp_path: Path) -> None:
    behavior = Behavior(persist_threshold_bytes=3, persist_dir=tmp_path / "out")
    agent, model = scripted(calls("../../etc/passwd"), tools=[], behavior=behavior)
    agent.on(ToolGate)(lambda gate: gate.answer([Text("four"), Text("five")]))
    result = await agent.run("Go.")
    path = only_file(tmp_path / "out")
    assert path.read_text() == "four\nfive" and "persisted-output" in result.calls[0].result
    assert model.requests


def test_the_page_about_behaviors_lists_every_knob_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "behaviors.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    expected = {field.name: getattr(DEFAULTS, field.name) for field in fields(Behavior)}
    shown = {name: "none" if value is None else str(value) for name, value in expected.items()}
    shown["tool_search"] = "ToolSearch()"
    assert {name: text.strip('`" ') for name, text in rows.items()} == shown
