"""What hooks, tools and providers of one's own know about a run while it goes on, and what they can remember."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from weftline import Agent, Engine, RunContext, ToolContext, ToolFailed, tool
from weftline.agent.records import HISTORY_BYTES
from weftline.errors import NotFound
from weftline.events import CallFinished, FinalForced, RunPaused, RunResumed, TextDelta
from weftline.failure import Bounds
from weftline.hooks import AfterModel, BeforeModel, ToolAfter, ToolGate, TurnEnded
from weftline.messages import ToolResults, User
from weftline.policies import Policy
from weftline.providers.base import Chunk, ModelRequest, ProviderError
from weftline.testing import ScriptedModel, calls
from weftline.tools import Bounded, Hint, Telemetry

from .kit import injected, results_in, scripted


class Seeing(ScriptedModel):
    """A provider of one's own, which looks at the run that asks."""

    def __init__(self, turns: list[Any], failures: int = 0) -> None:
        super().__init__(turns)
        self.seen: list[tuple[RunContext[Any], int, int, int]] = []
        self.failures = failures

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Chunk]]:
        run = cast("RunContext[Any]", request.run)
        self.seen.append((run, run.turn, run.attempt, len(run.calls)))
        if self.failures:
            self.failures -= 1
            raise ProviderError("overloaded", "Busy.", retry_after_s=0)
        async for chunks in super().stream(request):
            yield chunks


@tool(effect="read", bounded=True)
def pages(context: ToolContext, q: str, n: int = 3) -> Bounded:
    """Lists pages."""
    context.telemetry = Telemetry(tokens_used=7)
    return Bounded(value={"q": q}, returned=n)


@tool(effect="read")
def broken() -> str:
    """Fails."""
    raise ToolFailed("No.", hint=Hint("rate_limited", "Later."))


@pytest.mark.requirement("run.turn.context")
async def test_hooks_and_providers_see_the_run_and_its_calls(tmp_path: Path) -> None:
    model = Seeing(
        ["Never said.", calls(("pages", {"q": "a", "n": "2"}), ("broken", {})), calls("helper", task="Help."), "Done."],
        1,
    )
    helping = Seeing(["helped"])
    helper = Agent(helping, name="helper")
    agent = Agent(model, name="lead", tools=[pages, broken, helper.as_tool("Helps.")])
    seen: list[tuple[RunContext[Any], int, int, float | None, int]] = []

    @agent.on(BeforeModel)
    def look(before: BeforeModel, context: RunContext[Any]) -> None:
        assert before.turn == context.turn
        seen.append((context, context.turn, context.attempt, context.time_left_s, len(context.calls)))

    async with Engine(tmp_path, agents=[agent]) as engine:
        given: Any = {"labels": {"a": "b"}, "metadata": {"c": [1]}, "policy": Policy(time_budget_s=600)}
        run = await engine.start(agent, "Go.", thread="t", turn_id="t1", **given)
        result = await run.result()
    asked = [(turn, attempt, count) for _, turn, attempt, _, count in seen]
    assert asked == [(0, 1, 0), (0, 2, 0), (1, 3, 2), (2, 4, 3)]
    assert [(turn, attempt, count) for _, turn, attempt, count in model.seen] == asked
    context = seen[-1][0]
    info = context.run
    assert (info.id, info.labels, info.metadata, info.parent, info.tool) == (run.id, {"a": "b"}, {"c": [1]}, None, None)
    assert (info.thread_id or "").startswith("ses_") and (info.agent, info.turn_id) == ("lead", "t1")
    assert all(left is not None and 500 < left <= 600 for *_, left, _ in seen)
    first, second, third = context.calls
    assert (first.name, first.args, first.bounds, first.telemetry.tokens_used) == (
        "pages",
        {"q": "a", "n": 2},
        Bounds(2),
        7,
    )
    assert second.failure is not None and second.failure.hint is not None
    assert (second.ok, second.result, second.failure.hint.reason) == (False, "No.", "rate_limited")
    assert (first, second, third) == result.calls and third.result == "helped"
    child = helping.seen[0][0].run
    assert (child.parent, child.parent_agent, child.parent_call) == (run.id, "lead", third.id)
    assert (child.tool, child.tool_args, child.labels) == ("helper", third.args, {"a": "b"})
    assert repr(context) == f"<RunContext {run.id}>"


# What is too large to be passed around


@tool(effect="read", concurrent=True)
async def big(size: int) -> str:
    """Returns much."""
    return "x" * size


@pytest.mark.requirement("run.result.omitted")
async def test_large_result_leaves_the_history_and_can_be_loaded() -> None:
    many = calls(*[("big", {"size": HISTORY_BYTES + 1}) for _ in range(200)], ("big", {"size": HISTORY_BYTES}))
    agent, model = scripted(many, tools=[big])
    seen: list[Any] = []

    @agent.on(AfterModel)
    def look(_: AfterModel, context: RunContext[Any]) -> None:
        seen[:] = context.calls
        for call in context.calls[:1]:
            whole = context.result_of(call.id)
            assert (whole.result, whole.result_omitted) == ("x" * (HISTORY_BYTES + 1), False)
            with pytest.raises(NotFound, match="no result of a call 'nope'"):
                context.result_of("nope")

    result = await agent.run("Go.")
    *large, fits = sorted(seen, key=lambda call: -call.args["size"])
    assert len(large) == 200
    assert {(one.result, one.result_omitted, one.result_omitted_reason, one.result_bytes) for one in large} == {
        ("", True, "workflow_budget", HISTORY_BYTES + 1)
    }
    assert (len(fits.result), fits.result_omitted, fits.result_omitted_reason) == (HISTORY_BYTES, False, None)
    assert {len(call.result) for call in result.calls} == {HISTORY_BYTES, HISTORY_BYTES + 1}
    assert model.requests[1].messages[-1] == result.messages[-2]


@pytest.mark.requirement("run.result.omitted")
async def test_server_data_of_a_large_result_is_left_out_too() -> None:
    from weftline.tools import ServerData

    @tool(effect="read")
    def find(context: ToolContext, size: int) -> str:
        """Finds."""
        context.server_data.append(ServerData("rows", [1]))
        return "x" * size

    agent, _ = scripted(calls(("find", {"size": HISTORY_BYTES + 1}), ("find", {"size": 1})), tools=[find])
    seen: list[Any] = []

    @agent.on(AfterModel)
    def look(_: AfterModel, context: RunContext[Any]) -> None:
        seen[:] = context.calls

    result = await agent.run("Go.")
    assert [len(one.server_data) for one in seen] == [0, 1]
    assert [len(one.server_data) for one in result.calls] == [1, 1]


# What a run remembers


@tool(effect="read")
def remember(context: ToolContext, key: str) -> str:
    """Remembers."""
    before = dict(context.state)
    context.state[key] = len(before)
    return str(before)


def remembering(model: ScriptedModel, seen: list[Any]) -> Agent[Any, Any]:
    agent = Agent(model, name="elephant", tools=[remember])

    @agent.on(BeforeModel)
    def before(_: BeforeModel, context: RunContext[Any]) -> None:
        seen.append(dict(context.state))
        context.state[f"before{context.turn}"] = context.turn

    @agent.on(ToolGate)
    def gate(_: ToolGate, context: RunContext[Any]) -> None:
        context.state["gate"] = context.state.get("gate", 0) + 1

    @agent.on(ToolAfter)
    def after(_: ToolAfter, context: RunContext[Any]) -> None:
        context.state.pop("before0", None)

    @agent.on(TurnEnded)
    def ended(turn: TurnEnded, context: RunContext[Any]) -> None:
        context.state["ended"] = turn.turn

    return agent


@pytest.mark.requirement("run.turn.state")
async def test_state_of_hooks_and_tools_persists_within_its_run() -> None:
    seen: list[Any] = []
    model = ScriptedModel([calls("remember", key="a"), calls("remember", key="b"), "Done.", "Other."])
    agent = remembering(model, seen)
    await agent.run("Go.")
    first = {"gate": 1, "a": 2, "ended": 0}
    second = {**first, "before1": 1, "gate": 2, "b": 4, "ended": 1}
    assert seen == [{}, first, second]
    await agent.run("Another.")
    assert seen[3:] == [{}, first, second]


@pytest.mark.requirement("run.turn.state")
async def test_another_process_goes_on_with_what_hooks_remembered(tmp_path: Path) -> None:
    """Every write of a hook is in the log with what follows it, wherever the process stops."""
    stuck = {"deltas": ["a", "b"], "delay_ms": 600_000}
    model, seen = ScriptedModel([calls("remember", key="a"), stuck, "Done."]), list[Any]()
    agent = remembering(model, seen)
    async with Engine(tmp_path, agents=[agent], drain_s=0) as engine:
        run = await engine.start(agent, "Go.")
        async for event in run:
            if isinstance(event, TextDelta):
                break
    first = {"gate": 1, "a": 2, "ended": 0}
    assert seen[-1] == first
    async with Engine(tmp_path, agents=[remembering(ScriptedModel(["Done."]), seen)]) as engine:
        await engine.attach(run.id).result()
    assert seen[2:] == [first]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("", 1, "a string of 1 to 256 characters"),
        ("k" * 257, 1, "a string of 1 to 256 characters"),
        (5, 1, "a string of 1 to 256 characters"),
        ("k", None, "delete the key"),
        ("k", object(), "is not JSON"),
        ("k", "x" * 65_536, "at most 65,536"),
    ],
)
async def test_unrememberable_state_is_refused_where_it_is_set(key: Any, value: Any, why: str) -> None:
    agent, _ = scripted(tools=[])
    said: list[str] = []

    @agent.on(BeforeModel)
    def before(_: BeforeModel, context: RunContext[Any]) -> None:
        with pytest.raises(ValueError) as refused:
            context.state[key] = value
        said.append(str(refused.value))

    await agent.run("Go.")
    assert why in said[0]


async def test_a_run_remembers_a_bounded_number_of_keys() -> None:
    agent, _ = scripted(tools=[])
    said: list[str] = []

    @agent.on(BeforeModel)
    def before(_: BeforeModel, context: RunContext[Any]) -> None:
        for number in range(256):
            context.state[str(number)] = number
        context.state["7"] = "again"
        with pytest.raises(ValueError) as refused:
            context.state["one more"] = 1
        said.append(str(refused.value))
        assert len(context.state) == len(list(context.state)) == 256

    await agent.run("Go.")
    assert said == ["a run remembers at most 256 keys"]


# The last turn


@tool(effect="read")
def look(x: int = 0) -> str:
    """Looks."""
    return f"saw {x}"


@pytest.mark.requirement("run.final.turn")
async def test_forced_final_turn_is_one_call_without_tools() -> None:
    turns = [calls("look", x=1), calls(("look", {"x": 2}), ("look", {"x": 3})), "As far as I know: 1."]
    model = ScriptedModel(turns)
    agent = Agent(model, name="last", tools=[look])
    async with Engine(agents=[agent]) as engine:
        run = await engine.start(agent, "Go.", policy=Policy(max_tool_calls=2), thread="t")
        events = [event async for event in run]
        result = await run.result()
        saved = [one.content for one in await run.messages()]
        kept = await engine.thread("t").messages()
    last = model.requests[-1]
    assert last.tools_disabled and len(model.requests) == 3
    *conversation, instruction = last.messages
    assert results_in(conversation)[0] == "saw 1" and len(results_in(conversation)) == 3
    assert isinstance(instruction, User) and "tool call limit" in instruction.text and injected(last)
    assert (result.status, result.reason, result.text) == ("succeeded", "tool_cap", "As far as I know: 1.")
    assert (result.turns, result.usage.input) == (3, 30)
    assert [*conversation, result.messages[-1]] == list(result.messages) == saved == kept
    assert instruction.text not in str(events)
    assert not [event for event in events if isinstance(event, RunPaused | RunResumed)]
    assert [event.reason for event in events if isinstance(event, FinalForced)] == ["tool_cap"]


# Time-outs


@pytest.mark.requirement("run.time.tool_timeout")
async def test_call_that_takes_too_long_is_cancelled_with_a_hint() -> None:
    cut: list[str] = []

    async def hang() -> str:
        """Hangs."""
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cut.append("cut")
            raise

    tools = [tool(effect=cast(Any, effect), concurrent=True, name=name)(hang) for name, effect in SLOW.items()]
    rules = {"exact": 0.02, "exact*": 60, "pre*": 60, "prefix_*": 0.02, "in_*": 0, "all": 0}
    agent, _ = scripted(calls(*[(name, dict[str, Any]()) for name in SLOW]), tools=tools)
    policy = Policy(tool_timeout_s=0.03, per_tool_timeout_s=rules)
    async with agent.stream("Go.", policy=policy) as run:
        finished = [event async for event in run if isinstance(event, CallFinished)]
        result = await run.result()
    assert len(cut) == 4 and result.reason == ""
    assert {call.name: call.how for call in result.calls} == dict.fromkeys(SLOW, "timeout") | {"in_doubt": "in_doubt"}
    for call in (*result.calls, *finished):
        assert call.failure is not None and call.failure.hint is not None
        assert (call.ok, call.failure.kind, call.failure.hint.reason) == (False, "timeout", "timeout")
    with pytest.raises(ValueError, match="tool_timeout_s"):
        Policy(tool_timeout_s=-1)  # at the door: what is not positive and gets into a run is ignored


SLOW = {"exact": "read", "prefix_one": "read", "all": "read", "in_doubt": "once"}


@pytest.mark.requirement("run.time.tool_timeout")
async def test_calls_take_no_longer_than_the_remaining_time_budget() -> None:
    @tool(effect="read")
    async def hang() -> str:
        """Hangs."""
        return await asyncio.get_running_loop().create_future()

    agent, _ = scripted(calls("hang"), tools=[hang])
    (call,) = (await agent.run("Go.", policy=Policy(tool_timeout_s=60, time_budget_s=2.0))).calls
    assert call.failure is not None and call.failure.hint is not None
    assert (call.how, call.failure.hint.reason) == ("timeout", "timeout")


# Bounds of results that were provided


@pytest.mark.requirement("run.result.bounds_shown")
async def test_bounds_come_out_the_same_whoever_gave_the_result() -> None:
    cut = Bounded(
        value={"items": [1], "returned": 9, "total": 9, "truncated": 9, "refinement_hint": 9},
        returned=1,
        truncated=True,
        refinement_hint="Less.",
    )

    @tool(effect="read", bounded=True)
    def listed(gated: bool = False) -> Bounded:
        """Lists."""
        return cut

    agent, _ = scripted(calls("listed"), calls("listed", gated=True), tools=[listed])

    @agent.on(ToolGate)
    def gate(asked: ToolGate) -> None:
        if asked.args["gated"]:
            asked.answer(cut)

    result = await agent.run("Go.")
    executed, provided = [message.results[0] for message in result.messages if isinstance(message, ToolResults)]
    assert executed.parts == provided.parts
    assert executed.text == '{"items":[1],"refinement_hint":"Less.","returned":1,"truncated":true}'
    assert result.calls[0].bounds == result.calls[1].bounds == cut.bounds
