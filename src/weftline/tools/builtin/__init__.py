"""Tools that come with Weftline."""

from __future__ import annotations

from weftline.tools.builtin.calculator import calculator
from weftline.tools.builtin.current_time import current_time
from weftline.tools.builtin.people import ask_user, present_plan
from weftline.tools.function import FunctionTool

__all__ = ["ask_user", "builtin_tools", "calculator", "current_time", "present_plan"]


def builtin_tools() -> dict[str, FunctionTool]:
    """Returns all built-in tools, by name."""
    tools: tuple[FunctionTool, ...] = (ask_user, calculator, current_time, present_plan)
    return {tool.name: tool for tool in tools}
