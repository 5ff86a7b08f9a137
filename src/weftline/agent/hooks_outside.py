"""Points of what a run uses: MCP servers. They are in the same table as those of the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weftline.agent.hooks import POINTS, Point, ToolGate
from weftline.messages import UserPart

__all__ = ["POINTS"]
"""Whoever takes the table from here has all of it."""


# MCP servers. Those of connecting come before the run's deps are made.


@dataclass(eq=False)
class McpBootstrapStart(Point, name="mcp_bootstrap_start"):
    """A server is about to be connected, for all runs of the engine: only the first that needs it tells its hooks."""

    server: str


@dataclass(eq=False)
class McpConnect(Point, name="mcp_connect"):
    server: str


@dataclass(eq=False)
class McpError(Point, name="mcp_error"):
    """A server could not be connected. The run goes on without its tools; the next run tries again."""

    server: str
    error: BaseException


@dataclass(eq=False)
class McpBootstrapEnd(Point, name="mcp_bootstrap_end"):
    """A server was connected, or could not be: then `error` says why."""

    server: str
    duration_ms: int
    tool_count: int = 0
    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(eq=False)
class McpToolGate(ToolGate, name="mcp_tool_gate", kind="gate"):
    """A call of an MCP tool, after `tool_before`. What it is called with is settled by then."""

    server: str = ""


@dataclass(eq=False)
class McpToolBefore(Point, name="mcp_tool_before"):
    turn: int
    call_id: str
    tool: str
    server: str
    args: Mapping[str, Any]
    display_name: str = ""


@dataclass(eq=False)
class McpToolTransform(Point, name="mcp_tool_transform", kind="shaper", settable=("result", "is_error")):
    """What the server answered. `output_bytes` is its size before any change."""

    turn: int
    call_id: str
    tool: str
    server: str
    result: tuple[UserPart, ...]
    is_error: bool
    output_bytes: int
    display_name: str = ""


@dataclass(eq=False)
class McpToolAfter(Point, name="mcp_tool_after"):
    turn: int
    call_id: str
    tool: str
    server: str
    result: tuple[UserPart, ...]
    is_error: bool
    output_bytes: int
    display_name: str = ""
