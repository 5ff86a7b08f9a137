"""A run with instructions or tools of its own, in place of its agent's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from weftline.agent.definition import Definition
from weftline.agent.given import AgentTool, is_toolset, name_of
from weftline.agent.options import RunOptions
from weftline.errors import InvalidRequest
from weftline.tools.base import Tool, Toolset

A = TypeVar("A", bound=Definition[Any, Any])


def varied(agent: A, options: RunOptions[Any]) -> A:
    """The agent as one run has it. Raises `ValueError` or `TypeError` for tools that no agent could have."""
    instructions, tools = options.get("instructions"), options.get("tools")
    if instructions is None and tools is None:
        return agent
    return agent.varied(instructions=instructions, tools=tools)


def brought(agent: Definition[Any, Any], other: Definition[Any, Any]) -> tuple[Toolset, ...]:
    """The sets of tools that `other` has and the agent has not."""
    own = {id(one) for one in agent.tools}
    return tuple([one for one in other.tools if is_toolset(one) and id(one) not in own])


def given_names(options: RunOptions[Any]) -> bytes:
    """The names of the tools that a run is given, as a part of its input; nothing if it has its agent's."""
    tools = options.get("tools")
    return b"" if tools is None else repr([name_of(one) for one in tools]).encode()


def own_tools(agent: Definition[Any, Any], given: Sequence[AgentTool[Any]]) -> list[Tool | Toolset]:
    """The agent's own tools that a durable run is given.

    Raises `InvalidRequest` for another one: the process that carries the run on would not have it.
    """
    found: list[Tool | Toolset] = []
    for one in given:
        same = [own for own in agent.tools if own is one or getattr(own, "__wrapped__", None) is one]
        if not same:
            raise InvalidRequest(
                f"A durable run cannot be given the tool {name_of(one) or one!r}: it is not one of its agent's, and the"
                " next process would not have it."
            )
        found += same
    return found


def require_text(instructions: object) -> None:
    """Raises `InvalidRequest` for instructions that a durable run cannot be given."""
    if not isinstance(instructions, str | None):
        raise InvalidRequest(
            "The instructions of a durable run are a text: the next process would not have a function."
        )
