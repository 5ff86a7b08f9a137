"""Texts for a model, or a person instead of it, about calls that failed and results that are not whole."""

from __future__ import annotations

from collections.abc import Sequence

from weftline.failure import Bounds, Hint
from weftline.text.canonical import canonical_value

_OPEN, _CLOSE = "<system-reminder>", "</system-reminder>"
_UNSPOKEN = "This is for you alone: do not mention it."


def ask_for_values(tool: str, fields: Sequence[str]) -> str:
    """Asks for arguments; each field may have a note in brackets."""
    return f"Which values should {tool} be called with? It needs {_listed(fields)}."


def ask_what_to_call(tool: str) -> str:
    return f"Which arguments should {tool} be called with?"


# Reminders: read with one request, and not kept


def reminder(text: str) -> str:
    """Tags a text that is meant for the model alone. A text that is tagged already stays as it is."""
    return text if text.lstrip().startswith(_OPEN) else f"{_OPEN}\n{text}\n{_CLOSE}"


def after_result(tool: str, text: str) -> str:
    """Returns what a tool wants the model to remember when it reads the result."""
    return f"About the result of {tool}: {text} {_UNSPOKEN}"


def after_failure(hint: Hint) -> str:
    lines = [f"A call to {hint.tool} failed ({hint.reason}): {hint.message}".rstrip(": ")]
    if hint.clarifying_question:
        lines.append(f"Open question: {hint.clarifying_question}")
    if hint.example_input is not None:
        lines.append(f"An example of its arguments: {_json(hint.example_input)}")
    if hint.prior_input is not None:
        lines.append(f"You sent: {_json(hint.prior_input)}")
    if hint.restrict_to_tool:
        lines.append(f"If you try again, call {hint.tool}, not another tool.")
    return _untagged("\n".join([*lines, _UNSPOKEN]))


def _untagged(text: str) -> str:
    """Removes tags, so that texts of tools and clients cannot end the reminder that contains them."""
    return text.replace("<", "‹") if "system-reminder" in text.lower() else text


def after_truncated(tool: str, bounds: Bounds, *, cursor: str) -> str:
    total = "unknown" if bounds.total is None else str(bounds.total)
    lines = [f"The result of {tool} is incomplete: {bounds.returned} returned, {total} in total."]
    if bounds.next_cursor and cursor:
        lines.append(f"For the rest, call it again with {cursor} set to {_json(bounds.next_cursor)}.")
    elif bounds.refinement_hint:
        lines.append(f"To narrow it down: {bounds.refinement_hint}")
    return _untagged("\n".join([*lines, _UNSPOKEN]))


# Instead of a result

EMPTY_BRIEFING = "These arguments leave the subagent without a task."


def left_out(fields: Sequence[str]) -> str:
    return f"{_listed(fields)} must be given: the subagent's task depends on it."


def broken_bounds(tool: str, problem: str) -> str:
    return (
        f"{tool} has run, but its result cannot be shown: {problem}. This is a fault of the tool. Continue without it."
    )


def _json(value: object) -> str:
    return canonical_value(value).decode()


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
