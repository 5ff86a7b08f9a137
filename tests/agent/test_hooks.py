"""An agent's own code at the points of a run."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import pytest

from weftline import Agent, Limits, RunContext, RunFailed, hook, tool
from weftline.agent.hooks import POINTS
from weftline.events import TextDelta
from weftline.hooks import (
    AfterModel,
    ArgumentsRejected,
    BeforeModel,
    ContextBuilt,
    Hook,
    OutputReady,
    Point,
    ResultsStored,
    RunEnded,
    RunStarted,
    SystemRendered,
    TextStreamed,
    ToolAfter,
    ToolAfterFailure,
    ToolAfterSuccess,
    ToolBefore,
    ToolError,
    ToolGate,
    ToolTransform,
    ToolUnknown,
    TurnEnded,
)
from weftline.messages import Text, User
from weftline.testing import ScriptedModel, calls


@tool
def shell(command: str) -> str:
    """Runs a command."""
    if command == "fail":
        raise RuntimeError("no")
    return f"ran {command}"


def agent(*turns: Any, **options: Any) -> tuple[Agent[Any, Any], ScriptedModel]:
    model = ScriptedModel([*turns, "Done."])
    return Agent(model, tools=[shell], limits=Limits(loop_soft=0), **options), model


@pytest.mark.requirement("loop.hook.run_order")
async def test_the_points_of_a_run_come_in_their_order() -> None:
    one, _ = agent(calls("shell", command="ls"))
    seen: list[str] = []
    for point in POINTS.values():
        one.on(point)(lambda at: seen.append(at.name))
    await one.run("Go.")
    per_request = ["system_rendered", "rows_loaded", "context_built", "before_model"]
    assert seen == [
        "run_started",
        "messages_taken",
        *per_request,
        "after_model",
        "usage_counted",
        "tool_gate",
        "tool_before",
        "tool_after_success",
        "tool_transform",
        "tool_after",
        "results_stored",
        "turn_ended",
        *per_request,
        "text_streamed",
        "stream_ended",
        "after_model",
        "usage_counted",
        "output_ready",
        "turn_ended",
        "run_ended",
    ]


async def test_turn_whose_answer_is_rejected_ends_before_next_one_begins() -> None:
    one, _ = agent("No.")
    seen: list[str] = []

    @one.on(OutputReady)
    def judge(ready: OutputReady[str]) -> None:
        seen.append(f"ready {ready.text}")
        if ready.text == "No.":
            ready.reject("Say yes.")

    for point in ("turn_ended", "before_model", "run_ended"):
        one.on(point)(lambda at: seen.append(at.name))
    await one.run("Go.")
    asked = "before_model"
    assert seen == [asked, "ready No.", "turn_ended", asked, "ready Done.", "turn_ended", "run_ended"]


async def test_a_turn_whose_answer_nobody_judges_has_ended_too() -> None:
    cut = {"text": "Half of", "finish_reason": "max_tokens"}
    one = Agent(ScriptedModel([cut]), limits=Limits(max_retries=0))
    seen: list[str] = []
    for point in ("output_ready", "turn_ended", "run_ended"):
        one.on(point)(lambda at: seen.append(at.name))
    with suppress(RunFailed):
        await one.run("Go.")
    assert [name for name in seen if name != "output_ready"] == ["turn_ended", "run_ended"]


@pytest.mark.requirement("loop.call.blocked")
async def test_a_gate_blocks_a_call() -> None:
    one, model = agent(calls("shell", command="rm"), deps=str)

    @one.on(ToolGate)
    async def only_here(gate: ToolGate, context: RunContext[str]) -> None:
        gate.answer("ignored")
        gate.block(f"Stay inside {context.deps}.")

    result = await one.run("Go.", deps="/home")
    assert [(call.how, call.ok, call.result) for call in result.calls] == [
        ("blocked", False, "Blocked: Stay inside /home.")
    ]
    assert model.requests[1].messages[-1].results[0].is_error  # type: ignore[union-attr]


@pytest.mark.requirement("loop.call.substituted")
async def test_gate_answers_for_tool_even_if_there_is_none() -> None:
    one, _ = agent(calls("ghost"))
    seen: list[str] = []
    for point in (ToolUnknown, ToolBefore, ToolTransform, ToolAfter):
        one.on(point)(lambda at: seen.append(at.name))
    one.on(ToolGate)(lambda gate: gate.answer({"n": 1}))
    result = await one.run("Go.")
    assert [(call.how, call.ok, call.result) for call in result.calls] == [("answered", True, '{"n":1}')]
    assert seen == ["tool_transform", "tool_after"]


async def test_a_gate_changes_arguments_which_are_then_checked() -> None:
    one, _ = agent(calls("shell", command="a"), calls("shell", command="b"))

    @one.on(ToolGate)
    def change(gate: ToolGate) -> None:
        gate.args = {"command": "safe"} if gate.args["command"] == "a" else {"command": 7, "x": 1}

    result = await one.run("Go.")
    assert [(call.how, call.args) for call in result.calls] == [
        ("returned", {"command": "safe"}),
        ("blocked", {"command": "b"}),
    ]


@pytest.mark.requirement("loop.gate.fail_closed")
async def test_a_gate_that_raises_blocks_the_call(caplog: pytest.LogCaptureFixture) -> None:
    one, _ = agent(calls("shell", command="ls"))

    @one.on(ToolGate)
    def broken(gate: ToolGate) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR):
        result = await one.run("Go.")
    assert [call.how for call in result.calls] == ["blocked"]
    assert result.calls[0].result.startswith("Blocked: ")
    assert "broken" in caplog.text
    assert result.status == "succeeded"


@pytest.mark.requirement("loop.call.unknown")
async def test_an_unknown_tool_has_a_point_of_its_own() -> None:
    one, _ = agent(calls("ghost"))
    seen: list[str] = []
    for point in (ToolBefore, ToolTransform, ToolAfter):
        one.on(point)(lambda at: seen.append(at.name))

    @one.on(ToolUnknown)
    def suggest(unknown: ToolUnknown) -> None:
        unknown.result = "Unknown tool: use shell."

    result = await one.run("Go.")
    assert [(call.how, call.result) for call in result.calls] == [("unknown", "Unknown tool: use shell.")]
    assert seen == []


@pytest.mark.requirement("loop.call.invalid")
async def test_unfitting_arguments_are_reported_and_nothing_is_called() -> None:
    one, _ = agent(calls("shell", command=["a"]))
    seen: list[str] = []
    for point in (ToolBefore, ToolTransform, ToolAfter):
        one.on(point)(lambda at: seen.append(at.name))
    rejected: list[str] = []
    one.on(ArgumentsRejected)(lambda at: rejected.append(at.issues))
    result = await one.run("Go.")
    assert [call.how for call in result.calls] == ["invalid"]
    assert "command" in rejected[0]
    assert seen == []


@pytest.mark.requirement("loop.call.raised", "loop.call.transform")
async def test_an_error_and_a_result_can_be_rewritten() -> None:
    one, model = agent(calls("shell", command="fail"))
    failed: list[str] = []

    @one.on(ToolError)
    def explain(at: ToolError) -> None:
        at.result = (Text("It failed, try later."),)

    one.on(ToolAfterFailure)(lambda at: failed.append(at.tool))
    one.on(ToolAfterSuccess)(lambda at: failed.append("success"))

    @one.on(ToolTransform)
    def shout(at: ToolTransform) -> None:
        at.result = (Text("LATER"),)
        at.is_error = False

    result = await one.run("Go.")
    assert [(call.how, call.ok, call.result) for call in result.calls] == [("returned", True, "LATER")]
    assert failed == ["shell"]
    assert model.requests[1].messages[-1].results[0].text == "LATER"  # type: ignore[union-attr]


async def test_requests_are_shaped_one_by_one_and_the_conversation_stays() -> None:
    one, model = agent(calls("shell", command="ls"))

    @one.on(SystemRendered)
    def friendly(at: SystemRendered) -> None:
        at.system = f"Turn {at.turn}."

    @hook(ContextBuilt)
    def only_the_last(at: ContextBuilt) -> None:
        at.messages = [User.of("Rewritten.")]

    @one.on(BeforeModel)
    def cool(at: BeforeModel) -> None:
        at.temperature = 0.1
        at.tools = ()

    result = await one.run("Go.", hooks=[only_the_last])
    assert [request.system for request in model.requests] == ["Turn 0.", "Turn 1."]
    assert all(list(request.messages) == [User.of("Rewritten.")] for request in model.requests)
    assert [(request.temperature, len(request.tools)) for request in model.requests] == [(0.1, 0), (0.1, 0)]
    assert len(result.messages) == 4


@pytest.mark.requirement("loop.turn.orphan_repair")
async def test_a_pair_that_a_hook_separates_is_left_out_whole(caplog: pytest.LogCaptureFixture) -> None:
    one, model = agent(calls("shell", command="ls"))

    @one.on(ContextBuilt)
    def drop_results(at: ContextBuilt) -> None:
        at.messages = [message for message in at.messages if not hasattr(message, "results")]

    with caplog.at_level(logging.WARNING):
        await one.run("Go.")
    assert [type(message).__name__ for message in model.requests[1].messages] == ["User"]
    assert "without their other half" in caplog.text


@pytest.mark.requirement("loop.hook.observer_errors")
async def test_an_error_of_a_watcher_or_a_shaper_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    one, model = agent()
    seen: list[str] = []

    @one.on(SystemRendered)
    def broken(at: SystemRendered) -> None:
        at.system = "half done"
        raise ZeroDivisionError

    @one.on(SystemRendered)
    def after(at: SystemRendered) -> None:
        seen.append(at.system)

    @one.on(RunStarted)
    def also_broken(at: RunStarted) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR):
        result = await one.run("Go.")
    assert result.status == "succeeded"
    assert seen == [""]
    assert model.requests[0].system is None


async def test_a_shaper_that_must_not_fail_fails_the_turn() -> None:
    from weftline import RunFailed

    one, model = agent()

    @one.on(SystemRendered, fail_closed=True)
    def broken(at: SystemRendered) -> None:
        raise ZeroDivisionError

    with pytest.raises(RunFailed, match="broken"):
        await one.run("Go.")
    assert model.requests == []


@pytest.mark.parametrize("point", list(POINTS.values()))
async def test_hook_cannot_set_fields_that_its_point_forbids(point: type[Point]) -> None:
    assert point.kind in ("gate", "shaper", "watcher")
    made = point.__new__(point)
    object.__setattr__(made, "_made", True)
    with pytest.raises(AttributeError, match=f"cannot set 'turn' of {point.name}"):
        made.turn = 3  # type: ignore[attr-defined]


@pytest.mark.requirement("loop.hook.scopes", "loop.hook.order")
async def test_agent_hooks_precede_run_hooks() -> None:
    seen: list[str] = []

    def named(name: str) -> Hook[RunStarted]:
        def fn(at: RunStarted) -> None:
            seen.append(name)

        return Hook(RunStarted, fn)

    one, _ = agent(hooks=[named("agent")])
    await one.run("Go.", hooks=[named("run 1"), named("run 2")])
    await one.run("Go.")
    assert seen == ["agent", "run 1", "run 2", "agent"]


@pytest.mark.requirement("loop.hook.unknown_name")
async def test_value_that_is_not_a_hook_point_is_refused() -> None:
    with pytest.raises(TypeError, match="is not a point"):
        hook(str)(print)  # type: ignore[type-var]


@pytest.mark.requirement("loop.hook.run_end")
async def test_the_end_of_a_run_is_told_however_it_ends() -> None:
    ends: list[str] = []
    failing = Agent(ScriptedModel([{"error": {"class": "auth", "message": "no"}}]))
    failing.on(RunEnded)(lambda at: ends.append(at.status))
    with pytest.raises(Exception, match="no"):
        await failing.run("Go.")
    fine, _ = agent()
    fine.on(RunEnded)(lambda at: ends.append(at.status))
    await fine.run("Go.")
    slow = Agent(ScriptedModel([{"deltas": ["x", "y"], "delay_ms": 60_000}]))
    slow.on(RunEnded)(lambda at: ends.append(at.status))
    async with slow.stream("Go.") as run:
        async for event in run.events():
            if isinstance(event, TextDelta):
                break
        await run.cancel()
    assert ends == ["failed", "succeeded", "cancelled"]


@pytest.mark.requirement("loop.turn.after")
async def test_after_model_call_hooks_see_message_or_error() -> None:
    seen: list[tuple[bool, bool]] = []
    one = Agent(
        ScriptedModel([{"error": {"class": "overloaded", "message": "busy"}}, "Fine."]), limits=Limits(max_retries=0)
    )
    one.on(AfterModel)(lambda at: seen.append((at.message is None, at.error is None)))
    with pytest.raises(Exception, match="busy"):
        await one.run("Go.")
    assert seen == [(True, False)]


async def test_pieces_of_the_answer_are_told_as_they_come() -> None:
    pieces: list[str] = []
    one = Agent(ScriptedModel([{"deltas": ["a", "b"]}]))
    one.on(TextStreamed)(lambda at: pieces.append(at.text))
    await one.run("Go.")
    assert pieces == ["a", "b"]


@pytest.mark.requirement("loop.call.counts")
async def test_counts_hold_what_was_called_before() -> None:
    shells = [calls("shell", command=str(number)) for number in range(1, 4)]
    one, _ = agent(shells[0], calls("ghost"), *shells[1:])
    counts: list[dict[str, int]] = []

    @one.on(ToolGate)
    def count(gate: ToolGate) -> None:
        counts.append(dict(gate.counts))
        if gate.args.get("command") == "2":
            gate.block()

    await one.run("Go.")
    assert counts == [{}, {"shell": 1}, {"shell": 1, "ghost": 1}, {"shell": 1, "ghost": 1}]


async def test_turns_and_results_are_told() -> None:
    one, _ = agent(calls("shell", command="1"))
    seen: list[str] = []
    for point in (ResultsStored, TurnEnded):
        one.on(point)(lambda at: seen.append(f"{at.name} {at.turn}"))
    await one.run("Go.")
    assert seen == ["results_stored 0", "turn_ended 0", "turn_ended 1"]


async def test_error_of_last_check_is_cause_of_failure() -> None:
    agent = Agent(ScriptedModel(["Seven."]))

    @agent.on(OutputReady)
    def check(answer: OutputReady[str]) -> None:  # pyright: ignore[reportUnusedFunction]
        raise KeyError("seven")

    with pytest.raises(RunFailed) as failed:
        await agent.run("Go.")
    assert isinstance(failed.value.__cause__, KeyError)
