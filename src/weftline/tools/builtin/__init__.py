"""Tools that come with Weftline."""

from __future__ import annotations

from weftline.tools.builtin.calculator import calculator
from weftline.tools.builtin.current_time import current_time
from weftline.tools.function import FunctionTool

__all__ = ["builtin_tools", "calculator", "current_time"]


def builtin_tools() -> dict[str, FunctionTool]:
    """All of them, by name."""
    tools: tuple[FunctionTool, ...] = (calculator, current_time)
    return {tool.name: tool for tool in tools}
