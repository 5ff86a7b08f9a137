"""Points of what a run uses: skills, MCP servers, child runs. They are in the same table as those of the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from weftline.agent.hooks import (
    POINTS,
    AfterModel,
    Point,
    StreamEnded,
    TextStreamed,
    ThinkingStreamed,
    ToolAfter,
    ToolBefore,
    ToolError,
    ToolGate,
)
from weftline.messages import Usage, UserPart

if TYPE_CHECKING:
    from weftline.agent.skills.discovery import Diagnostic
    from weftline.agent.skills.format import Skill

__all__ = ["POINTS"]
"""Whoever takes the table from here has all of it."""

# Skills


@dataclass(eq=False)
class SkillsResolve(Point, name="skills_resolve"):
    """Skills were searched for, once per agent."""

    skills: tuple[Skill, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(eq=False)
class SkillsCatalog(Point, name="skills_catalog", kind="shaper", settable=("catalog",)):
    """The skills that are about to be offered, once per agent. What hooks leave is what the model is told of."""

    catalog: list[Skill]


@dataclass(eq=False)
class SkillsActivate(Point, name="skills_activate"):
    skill: Skill
    via: Literal["model", "explicit", "resume"]


@dataclass(eq=False)
class SkillsDeactivate(Point, name="skills_deactivate"):
    skill: Skill
    reason: Literal["run_end", "explicit", "reset"]


# MCP servers


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


# Child runs


@dataclass(eq=False)
class SpawnBefore(Point, name="spawn_before"):
    """A child run is about to be made. `depth` is how many runs there will be above it."""

    call_id: str
    tool: str
    task: str
    depth: int = 1


@dataclass(eq=False)
class SpawnComplete(Point, name="spawn_complete"):
    """A child run has succeeded. `usage` is its own and that of its children."""

    child_id: str
    call_id: str
    tool: str
    text: str
    turns: int
    elapsed_ms: int
    usage: Usage = field(default_factory=Usage)
    depth: int = 1


@dataclass(eq=False)
class SpawnError(Point, name="spawn_error"):
    """A child run has failed or was cancelled; `code` says which, and why."""

    child_id: str
    call_id: str
    tool: str
    error: str
    code: str
    turns: int
    elapsed_ms: int
    usage: Usage = field(default_factory=Usage)
    depth: int = 1


@dataclass(eq=False)
class ChildStreamText(TextStreamed, name="child_stream_text"):
    child_id: str = ""
    depth: int = 1


@dataclass(eq=False)
class ChildStreamThinking(ThinkingStreamed, name="child_stream_thinking"):
    child_id: str = ""
    depth: int = 1


@dataclass(eq=False)
class ChildStreamEnd(StreamEnded, name="child_stream_end"):
    child_id: str = ""
    depth: int = 1


@dataclass(eq=False)
class ChildToolGate(ToolGate, name="child_tool_gate", kind="gate", settable=("args",)):
    """A call of a child run: what this decides holds as if a gate of the child had."""

    child_id: str = ""
    depth: int = 1


@dataclass(eq=False)
class ChildMcpToolGate(McpToolGate, name="child_mcp_tool_gate", kind="gate"):
    child_id: str = ""
    depth: int = 1


@dataclass(eq=False)
class ChildToolBefore(ToolBefore, name="child_tool_before"):
    child_id: str = ""
    depth: int = 1


@dataclass(eq=False)
class ChildToolAfter(ToolAfter, name="child_tool_after"):
    child_id: str = ""
    depth: int = 1


@dataclass(eq=False)
class ChildToolError(ToolError, name="child_tool_error", kind="shaper", settable=("result",)):
    child_id: str = ""
    depth: int = 1


@dataclass(eq=False)
class ChildTurnAfter(AfterModel, name="child_turn_after"):
    child_id: str = ""
    depth: int = 1
