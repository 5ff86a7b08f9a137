"""Texts for a model about calls that are carried out by subagents."""

from __future__ import annotations


def too_deep(max_depth: int) -> str:
    return (
        f"Not executed: subagents may be nested {max_depth} deep, and this one would be deeper. Do this part yourself."
    )


NO_CHILDREN = "Not executed: this run may not have subagents. Do this part yourself."


def too_many_children(max_children: int) -> str:
    """For runs with the first rules; today a further subagent waits until another one is done."""
    return (
        f"Not executed: at most {max_children} subagents may be at work at once. "
        "Call it again when the others are done, or do this part yourself."
    )


def child_not_started(tool: str, reason: str) -> str:
    return f"The subagent {tool!r} could not be started: {reason}"


def child_failed(tool: str, error: str) -> str:
    return f"The subagent {tool!r} failed: {error}"


def child_answer_invalid(tool: str, problem: str) -> str:
    return f"The subagent {tool!r} returned a result of the wrong type: {problem}"


def child_cancelled(tool: str) -> str:
    return f"The subagent {tool!r} was cancelled before it had an answer."


def child_answer(text: str, *, turns: int, elapsed_ms: int, tokens: int) -> str:
    return f"[turns: {turns}, ms: {elapsed_ms}, tokens: {tokens}]\n{text}"
