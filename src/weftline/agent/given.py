"""What an agent can be given as a tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import isroutine
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from weftline.tools.base import Tool, Toolset

if TYPE_CHECKING:
    from typing_extensions import TypeIs

AgentTool: TypeAlias = Tool | Toolset | Callable[..., Any]
"""What an agent's list of tools can hold: a tool, a set of them, or a function to make one of."""


def name_of(one: AgentTool) -> str | None:
    """The name of a tool, of a function to be one, or of a set that has one. Most sets have none."""
    return getattr(one, "name", None) or getattr(one, "__name__", None)


def merged(below: Sequence[AgentTool], above: Sequence[AgentTool]) -> tuple[AgentTool, ...]:
    """Both, with one of `above` in the place of one of `below` that has the same name."""
    keys = {_key(one): one for one in above}
    kept = [keys.pop(_key(one), one) for one in below]
    return (*kept, *[one for one in above if _key(one) in keys])


def made(one: AgentTool) -> Tool | Toolset:
    """A tool or a set of tools as it is; of a function a tool is made. Raises `TypeError` for anything else."""
    if (hasattr(one, "spec") and hasattr(one, "prepare")) or is_toolset(one):
        return cast("Tool | Toolset", one)
    if isroutine(one):
        from weftline.tools.function import tool  # an agent without functions does not need what that imports

        return tool(one)
    raise TypeError(f"{one!r} is neither a tool nor a function")


def is_toolset(one: AgentTool) -> TypeIs[Toolset]:
    return hasattr(one, "open") and hasattr(one, "close") and not hasattr(one, "spec")


def _key(one: AgentTool) -> object:
    name = name_of(one)
    if name is not None:
        return name
    # An agent has one set of skills: the last that was given.
    return "skills" if hasattr(one, "on_catalog") else id(one)
