"""Partial results: what a tool reports about them, and how the model reads it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weftline import prompts
from weftline.failure import Bounds, Failure
from weftline.messages import Text, joined_text
from weftline.text.canonical import canonical_value
from weftline.tools.base import Paging, Tool, ToolOutput

_OWN = ("returned", "total", "truncated", "refinement_hint")
"""The fields that the runtime writes into the JSON of a bounded result, overriding the tool's."""


class Bounded(Struct, frozen=True, kw_only=True):
    """The result of a tool declared `bounded`: an object, and how much of the whole it holds."""

    value: Any
    returned: int
    total: int | None = None
    truncated: bool = False
    next_cursor: str | None = None
    refinement_hint: str = ""

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.returned, self.total, self.truncated, self.next_cursor, self.refinement_hint)


def with_bounds(tool: Tool, output: ToolOutput) -> ToolOutput:
    """Returns the output as the model reads it, with its bounds; an error if these are not as declared."""
    declared, bounds, name = tool.traits.bounded, output.bounds, tool.spec.name
    if bounds is None and (output.is_error or not declared):
        return output
    problem = bounds_problem(tool, output)
    if problem:
        text = prompts.failure.broken_bounds(name, problem)
        failure = Failure(text, "malformed_result", "replan")
        return ToolOutput.of(text, is_error=True, in_doubt=output.in_doubt, failure=failure)
    assert bounds is not None
    cursor = declared.next_cursor if isinstance(declared, Paging) else "next_cursor"
    fields: dict[str, Any] = msgspec.json.decode(joined_text(output.parts))
    kept = {key: value for key, value in fields.items() if key not in (*_OWN, cursor)}
    kept |= {"returned": bounds.returned, "truncated": bounds.truncated}
    if bounds.total is not None:
        kept["total"] = bounds.total
    if bounds.refinement_hint:
        kept["refinement_hint"] = bounds.refinement_hint
    if bounds.next_cursor:
        kept[cursor] = bounds.next_cursor
    return replace(output, parts=(Text(canonical_value(kept).decode()),))


def bounds_problem(tool: Tool, output: ToolOutput) -> str:
    """Returns what is wrong with the bounds of an output that has or needs some; empty if nothing is."""
    declared, bounds = tool.traits.bounded, output.bounds
    if bounds is None:
        return "it says nothing about how much it returned"
    if output.is_error:
        return "it has bounds although it failed"
    if not declared:
        return "it has bounds although the tool is not declared bounded"
    if bounds.returned < 0 or (bounds.total is not None and bounds.total < bounds.returned):
        return "its counts make no sense"
    if bounds.truncated and not (bounds.next_cursor or bounds.refinement_hint):
        return "it is truncated and says neither how to continue nor how to ask for less"
    if bounds.next_cursor and not isinstance(declared, Paging):
        return "it has a cursor although the tool has no paging"
    return "" if joined_text(output.parts).startswith("{") else "it is not a JSON object"
