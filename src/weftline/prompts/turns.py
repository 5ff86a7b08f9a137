"""Texts for a model between its turns: nudges, the last turn, and requests to answer again."""

from __future__ import annotations

from collections.abc import Sequence

_ANSWER_NOW = "Give your final answer now with what you know, or take a different approach."
_LAST_ANSWER = "Give your best final answer now, using what you already know."


def repeating_calls(count: int) -> str:
    return f"You have made the same tool calls {count} times in a row without getting any further. {_ANSWER_NOW}"


def repeating_results(count: int) -> str:
    return (
        f"Your last {count} rounds of tool calls returned the same results, although their arguments differed. "
        f"{_ANSWER_NOW}"
    )


def results_over_budget(size: int, budget: int) -> str:
    return (
        f"[Tool output budget exceeded: {size} bytes returned in this turn (cap: {budget}). "
        "Summarize the salient findings before calling more tools.]"
    )


FINAL_TURN = {
    "loop_detected": f"You keep making the same tool calls, so tools are no longer available. {_LAST_ANSWER}",
    "max_tool_turns": f"This run has reached its tool turn limit, so tools are no longer available. {_LAST_ANSWER}",
    "max_turns": f"This run has reached its turn limit, so tools are no longer available. {_LAST_ANSWER}",
    "max_cost": f"This run has reached its cost limit, so tools are no longer available. {_LAST_ANSWER}",
    "time_budget": f"This run has used up its time, so tools are no longer available. {_LAST_ANSWER}",
    "tool_cap": f"This run has reached its tool call limit, so tools are no longer available. {_LAST_ANSWER}",
    "failure_cap": f"Too many tool calls in a row have failed, so tools are no longer available. {_LAST_ANSWER}",
    "budget": f"The budget for this work is used up, so tools are no longer available. {_LAST_ANSWER}",
    "tool_failure": f"A tool has failed for good, so tools are no longer available. {_LAST_ANSWER}",
    "max_session_turns": f"This session has reached its turn limit, so tools are no longer available. {_LAST_ANSWER}",
    "policy": f"Tools have been disabled for this run. {_LAST_ANSWER}",
}
"""The instruction for a forced final turn, by its reason."""

ANSWER_REJECTED = "The answer was rejected. Give another one."
ANSWER_NOT_CHECKED = "The answer could not be checked. Give it again."
ANSWER_INVALID = "The answer does not fit the output schema."


def answer_not_json(reason: str) -> str:
    return f"The answer is not valid JSON: {reason}."


def answer_invalid(problems: Sequence[str]) -> str:
    return f"The answer does not fit the output schema: {'; '.join(problems)}."


def answer_again(problem: str) -> str:
    """Asks once more for a valid answer; `problem` is one of the three sentences above."""
    return f"{problem} Answer again with nothing but JSON that fits the schema: no other text and no code fence."
