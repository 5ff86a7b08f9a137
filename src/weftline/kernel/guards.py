"""Loop detection and the words of guards: what a model reads when a guard steps in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Literal

from msgspec.structs import replace

from weftline.kernel.entries import EXECUTED, FinalReason, Limits
from weftline.kernel.state import Call, Streak

PERIODS = (1, 2, 3, 4)


def signature(calls: Iterable[tuple[str, str]]) -> str:
    """One value for a turn's calls (name, argument digest), whatever their order."""
    joined = "\n".join(sorted(f"{name} {digest}" for name, digest in calls))
    return blake2b(joined.encode(), digest_size=12).hexdigest()


def after_turn(streak: Streak, sign: str, limits: Limits) -> Streak:
    """The streak with one more turn of calls. A turn that continues no repetition ends the reported one."""
    recent = streak.recent
    matches = tuple(streak.matches[p - 1] + 1 if len(recent) >= p and recent[-p] == sign else 0 for p in PERIODS)
    assert len(matches) == 4
    new = replace(streak, recent=(*recent, sign)[-4:], matches=matches)
    return replace(new, reported=False) if streak.reported and repetitions(new)[0] < limits.loop_soft else new


def repetitions(streak: Streak) -> tuple[int, Literal["calls", "cycle"]]:
    """How often the newest sequence of turns was played in a row, the first time included."""
    same = streak.matches[0] + 1
    cycle = max(streak.matches[p - 1] // p + 1 for p in PERIODS[1:])
    return (same, "calls") if same >= cycle else (cycle, "cycle")


def after_batch(streak: Streak, calls: Sequence[Call]) -> Streak:
    """Counts turns that call the same tools with other arguments and read equal results."""
    if not all(call.effect == "read" and call.how in EXECUTED for call in calls):
        return replace(streak, results="", same_results=0)
    results = signature((call.name, call.result) for call in calls)
    repeated_calls = streak.matches[0] > 0
    same = streak.same_results + 1 if results == streak.results and not repeated_calls else 1
    return replace(streak, results=results, same_results=same)


def loop_result(tool: str) -> str:
    return (
        f"Not executed: this exact call of {tool} was already made and its result is above. "
        "Use that result, try something different, or give your final answer."
    )


def loop_nudge(count: int) -> str:
    return (
        f"You have asked for the same tool calls {count} times in a row without getting any further. "
        "Give your final answer now with what you know, or change your approach."
    )


def same_results_nudge(count: int) -> str:
    return (
        f"The last {count} tool calls brought the same results although their arguments differed. "
        "Give your final answer now with what you know, or change your approach."
    )


def budget_result(tool: str, max_calls: int) -> str:
    return (
        f"Not executed: the budget for {tool} is {max_calls} calls in this run and it is spent. "
        "Change course without this tool, or give your final answer."
    )


def unknown_result(tool: str) -> str:
    return f"There is no tool named {tool} in this run. Use one of the tools that are offered, or answer without it."


def doubt_result(tool: str) -> str:
    return (
        f"It is not known whether this call of {tool} took effect: the server stopped while it was under way. "
        "It was not repeated and must not be repeated blindly; find out by other means, or say so in your answer."
    )


def repeat_of_doubt_result(tool: str) -> str:
    return (
        f"Not executed: an earlier call of {tool} with the same arguments is in doubt (it may have taken effect), "
        "and making it again could do it twice. Find out by other means, or say so in your answer."
    )


SKIPPED = "Skipped: a new message arrived before this call began."
CANCELLED = "The run was cancelled before this call finished."
NOT_RUN = "Not executed: the run ended first."
FINAL_TURN = "Not executed: tools are no longer available in this run."
LOCAL_TIMEOUT = "Timed out waiting for local tool result"
OVER_MAX_TURNS = "Not executed: the run has used up its tool turns."

_FINAL: dict[FinalReason, str] = {
    "loop_detected": "You keep repeating the same tool calls. Tools are no longer available. "
    "Give your best final answer now from what you already know.",
    "max_tool_turns": "The limit of tool turns for this run is reached. Tools are no longer available. "
    "Give your best final answer now from what you already know.",
}


def final_instruction(reason: FinalReason) -> str:
    return _FINAL[reason]
