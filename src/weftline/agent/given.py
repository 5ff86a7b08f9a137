"""What an agent can be given as a tool."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import isroutine
from types import CodeType, MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

from weftline.tools.base import Tool, Toolset

if TYPE_CHECKING:
    from typing_extensions import TypeIs

DepsT = TypeVar("DepsT")


class Function(Protocol):
    """A function that was defined with `def`: a tool can be called as well, and must not pass for one."""

    @property
    def __code__(self) -> CodeType: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


AgentTool: TypeAlias = Tool[DepsT] | Toolset | Function | MethodType
"""What the list of tools of an agent with such deps can hold: a tool, a set of them, or a function to make one of."""


def name_of(one: AgentTool[Any]) -> str | None:
    """The name of a tool, of a function to be one, or of a set that has one. Most sets have none."""
    return getattr(one, "name", None) or getattr(one, "__name__", None)


def merged(below: Sequence[AgentTool[Any]], above: Sequence[AgentTool[Any]]) -> tuple[AgentTool[Any], ...]:
    """Both, with one of `above` in the place of one of `below` that has the same name."""
    keys = {_key(one): one for one in above}
    kept = [keys.pop(_key(one), one) for one in below]
    return (*kept, *[one for one in above if _key(one) in keys])


def to_tool(one: AgentTool[Any]) -> Tool[Any] | Toolset:
    """A tool or a set of tools as it is; of a function a tool is made. Raises `TypeError` for anything else."""
    if (hasattr(one, "spec") and hasattr(one, "prepare")) or is_toolset(one):
        return cast("Tool[Any] | Toolset", one)
    if isroutine(one):
        from weftline.tools.function import tool  # an agent without functions does not need what that imports

        made: Tool[Any] = tool(cast("Any", one))
        return made
    raise TypeError(f"{one!r} is neither a tool nor a function")


def is_toolset(one: AgentTool[Any]) -> TypeIs[Toolset]:
    return hasattr(one, "open") and hasattr(one, "close") and not hasattr(one, "spec")


def _key(one: AgentTool[Any]) -> object:
    name = name_of(one)
    if name is not None:
        return name
    # An agent has one set of skills: the last that was given.
    return "skills" if hasattr(one, "on_catalog") else id(one)
