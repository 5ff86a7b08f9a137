"""Loop detection, tool budgets and turn limits, as the stream shows them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from .kit import Api, local_tool, of_type, types

ECHO = {"kind": "mantyx_plugin", "name": "echo"}
EXECUTED = ["assistant_message", "tool_call", "tool_result"]
SKIPPED = ["assistant_message", "tool_result"]


@pytest.mark.requirement("wire.event.loop_detected", "wire.spec.loop_detection_defaults", "run.loop.hard_cutoff")
async def test_repeating_model_is_nudged_at_three_and_stopped_at_six(api: Api) -> None:
    frames = await api.play("echo_loop", tools=[ECHO])
    assert types(frames) == [
        "started",
        *EXECUTED * 2,
        *SKIPPED,
        "loop_detected",
        *SKIPPED * 3,
        "loop_detected",
        "final_forced",
        "assistant_message",
        "result",
    ]
    soft, hard = of_type(frames, "loop_detected")
    assert soft.payload == {"consecutiveCount": 3, "hardCutoff": False, "tools": ["echo"]}
    assert hard.payload == {"consecutiveCount": 6, "hardCutoff": True, "tools": ["echo"]}
    end = frames[-1]
    assert end["subtype"] == "success" and end["text"] == "I give up after 6" and end["turns"] == 7
    assert end["terminationReason"] == "loop_detected"
    # What the guard says to the model is in no event but the results of the skipped calls.
    for frame in frames:
        if frame.type != "tool_result":
            assert b"already made" not in frame.raw and b"same tool calls" not in frame.raw
    for result in of_type(frames, "tool_result")[2:]:
        assert result["ok"] is False and "already made" in result["result"]


@pytest.mark.requirement("wire.event.loop_detected")
async def test_skipped_client_calls_are_not_offered(api: Api) -> None:
    run = await api.start("looper", tools=[local_tool()], loopDetection={"consecutiveThreshold": 2})
    async with api.stream(run) as stream:
        call = await stream.until("local_tool_call")
        await api.answer(run, call["toolUseId"], result="one")
        frames = await stream.rest()
    assert len(of_type(frames, "local_tool_call")) == 1
    assert [frame["consecutiveCount"] for frame in of_type(frames, "loop_detected")] == [2, 6]


async def test_another_call_ends_streak_and_repeated_one_runs_again(api: Api) -> None:
    frames = await api.play("restreak", tools=[ECHO])
    ran = [frame["args"]["text"] for frame in of_type(frames, "tool_call")]
    assert ran == ["said", "said", "other", "said"]
    assert len(of_type(frames, "loop_detected")) == 1 and frames[-1]["text"] == "ok"


@pytest.mark.requirement("wire.spec.loop_detection_defaults")
@pytest.mark.parametrize(
    ("detection", "turns", "counts"),
    [
        ({"consecutiveThreshold": 8}, 10, [8, 9]),
        ({"hardCutoffThreshold": 3}, 4, [2, 3]),
        ({"consecutiveThreshold": 2, "hardCutoffThreshold": 4}, 5, [2, 4]),
        ({}, 7, [3, 6]),
    ],
)
async def test_the_threshold_that_was_not_given_makes_way(
    api: Api, detection: dict[str, int], turns: int, counts: list[int]
) -> None:
    frames = await api.play("echo_loop", tools=[ECHO], loopDetection=detection)
    assert frames[-1]["turns"] == turns
    assert [frame["consecutiveCount"] for frame in of_type(frames, "loop_detected")] == counts


@pytest.mark.requirement("wire.spec.loop_detection_defaults", "wire.spec.max_tool_turns")
async def test_without_loop_detection_the_limit_of_tool_turns_still_holds(api: Api) -> None:
    frames = await api.play("echo_loop", tools=[ECHO], loopDetection=False)
    assert len(of_type(frames, "tool_call")) == 100 and not of_type(frames, "loop_detected")
    assert frames[-1]["subtype"] == "error_max_tool_turns"


@pytest.mark.requirement("wire.event.tool_budget_exceeded", "run.budget.intercept")
async def test_calls_over_a_tool_budget_are_answered_one_by_one(api: Api) -> None:
    frames = await api.play("greedy", tools=[ECHO], toolBudgets={"echo": {"maxCalls": 2}})
    blocked = [
        (result, event)
        for result, event in pairwise(frames)
        if event.type == "tool_budget_exceeded" and result.type == "tool_result"
    ]
    assert [event.payload for _, event in blocked] == [
        {"tool": "echo", "maxCalls": 2, "callIndex": 3},
        {"tool": "echo", "maxCalls": 2, "callIndex": 4},
    ]
    for result, _ in blocked:
        assert result["ok"] is False and "echo" in result["result"] and "2" in result["result"]
    assert len(of_type(frames, "tool_call")) == 2
    assert frames[-1]["subtype"] == "success" and frames[-1]["text"].startswith("echo 1 || echo 2 || ")


@pytest.mark.requirement("wire.event.tool_budget_exceeded")
async def test_a_budget_of_zero_lets_no_client_call_through(api: Api) -> None:
    frames = await api.play("greedy_local", tools=[local_tool()], toolBudgets={"lookup": {"maxCalls": 0}})
    assert not of_type(frames, "local_tool_call")
    assert [frame["callIndex"] for frame in of_type(frames, "tool_budget_exceeded")] == [1, 2]


@pytest.mark.requirement("wire.spec.tool_budgets_defaults")
@pytest.mark.parametrize(
    ("budgets", "ran"),
    [(None, 4), ({}, 6), ({"recall": {"maxCalls": 5}}, 5), ({"other": {"maxCalls": 1}}, 4)],
)
async def test_default_budgets_hold_unless_they_are_replaced_or_emptied(
    api: Api, budgets: dict[str, dict[str, int]] | None, ran: int
) -> None:
    frames = await api.play("recaller", tools=[{"kind": "mantyx_plugin", "name": "recall"}], toolBudgets=budgets)
    assert len(of_type(frames, "tool_call")) == ran
    assert len(of_type(frames, "tool_budget_exceeded")) == 6 - ran


@pytest.mark.requirement("wire.spec.max_tool_turns_exceeded", "wire.spec.max_tool_turns")
async def test_too_many_tool_turns_end_or_finalize_the_run(api: Api) -> None:
    ended = await api.play("busy", tools=[ECHO], budgets={"maxToolTurns": 2})
    assert len(of_type(ended, "tool_call")) == 2
    end = ended[-1]
    assert end.type == "result" and end["subtype"] == "error_max_tool_turns" and end["ok"] is False
    assert "2" in end["error"] and end["terminationReason"] == "max_tool_turns" and end["turns"] == 3
    finalized = await api.play("busy", tools=[ECHO], budgets={"maxToolTurns": 2, "maxToolTurnsExceeded": "finalize"})
    end = finalized[-1]
    assert end["subtype"] == "success" and end["text"] == "stopped after 3"
    assert end["terminationReason"] == "max_tool_turns" and end["turns"] == 4


@pytest.mark.requirement("wire.spec.max_tool_turns")
async def test_zero_tool_turns_are_allowed_and_skipped_ones_count(api: Api) -> None:
    none = await api.play("busy", tools=[ECHO], budgets={"maxToolTurns": 0})
    assert not of_type(none, "tool_call") and none[-1]["subtype"] == "error_max_tool_turns"
    looped = await api.play("echo_loop", tools=[ECHO], budgets={"maxToolTurns": 4})
    assert looped[-1]["subtype"] == "error_max_tool_turns" and looped[-1]["turns"] == 5
