"""`toolset(…)`: tools that belong together, with functions that process the arguments and results of their calls."""

from __future__ import annotations

import copy
from typing import Any

from weftline.agent.agent_tools import is_toolset, to_tool
from weftline.tools.base import Tool
from weftline.tools.shaping import Adapter, Materializer, Measure, Shaping


def toolset(
    name: str,
    *tools: Any,
    adapt: Adapter | None = None,
    materialize: Materializer | None = None,
    telemetry: Measure | None = None,
) -> tuple[Tool[Any], ...]:
    """Tools and functions as a set with a name, for an agent: `Agent(…, tools=[*toolset("billing", invoice, refund)])`.

    Args:
        name: What the tools see as `context.toolset`.
        adapt: Gets each call before its arguments are read. What it returns replaces them, as an object or as JSON;
            None or an empty value keeps them. What it raises is the result of the call.
        materialize: Gets each result before it is stored, from the tool or from a person, as a `ToolOutput`. What it
            returns replaces the result, and may be anything that a tool may return; None keeps it. It may add to
            `call.server_data`.
        telemetry: Returns what a call used, if its tool did not report it: gets the call and the milliseconds.

    Raises:
        ValueError: without a name.
        TypeError: for anything that is neither a tool nor a function.
    """
    if not name or not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError("a set of tools needs a name")
    for what, function in (("adapt", adapt), ("materialize", materialize), ("telemetry", telemetry)):
        if function is not None and not callable(function):
            raise TypeError(f"toolset {name!r}: {what} must be a function, not {type(function).__name__}")
    shaping, found = Shaping(name, adapt, materialize, telemetry), list[Tool[Any]]()
    for one in tools:
        if is_toolset(one):
            raise TypeError(f"toolset {name!r}: {type(one).__name__} is a set of tools itself")
        shaped: Any = copy.copy(to_tool(one))  # a copy, since it may be in other toolsets or in none
        shaped.shaping = shaping
        found.append(shaped)
    return tuple(found)
