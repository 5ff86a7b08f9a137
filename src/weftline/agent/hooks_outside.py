"""Points of what a run uses: skills, MCP servers, child runs. They are in the same table as those of the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from weftline.agent.hooks import (
    POINTS,
    AfterModel,
    CallPoint,
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
"""Re-exports the whole table, so that importers get it complete."""

# Skills


@dataclass(eq=False)
class SkillsResolve(Point, name="skills_resolve"):
    """Skills were searched for, once per agent."""

    skills: tuple[Skill, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(eq=False)
class SkillsCatalog(Point, name="skills_catalog", kind="shaper", settable=("catalog",)):
    """The skills that are about to be offered, once per agent. Hooks may change the list; the model sees the result."""

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
    """A server is about to be connected, for all runs of the engine.

    Only the hooks of the first run that needs it are called.
    """

    server: str


@dataclass(eq=False)
class McpConnect(Point, name="mcp_connect"):
    server: str


@dataclass(eq=False)
class McpError(Point, name="mcp_error"):
    """A server could not be connected. The run continues without its tools; the next run tries again."""

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
    """A call of an MCP tool, after `tool_before`. Its arguments are final by then."""

    server: str = ""


@dataclass(eq=False)
class ServerCallPoint(CallPoint):
    """Common fields of the points of an MCP tool's call."""

    server: str


@dataclass(eq=False)
class McpToolBefore(ServerCallPoint, name="mcp_tool_before"):
    args: Mapping[str, Any]


@dataclass(eq=False)
class McpToolTransform(ServerCallPoint, name="mcp_tool_transform", kind="shaper", settable=("result", "is_error")):
    """A server's answer, which hooks may change. `output_bytes` is its size before any change."""

    result: tuple[UserPart, ...]
    is_error: bool
    output_bytes: int


@dataclass(eq=False)
class McpToolAfter(ServerCallPoint, name="mcp_tool_after"):
    result: tuple[UserPart, ...]
    is_error: bool
    output_bytes: int


# Child runs


@dataclass(eq=False)
class SpawnBefore(Point, name="spawn_before"):
    """A child run is about to be created. `depth` is how many runs there will be above it."""

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
class OfChild:
    """Which child run a point is about, and how many runs are above that child."""

    child_id: str = field(default="", kw_only=True)
    depth: int = field(default=1, kw_only=True)


@dataclass(eq=False)
class ChildStreamText(OfChild, TextStreamed, name="child_stream_text"):
    """A piece of a child's answer."""


@dataclass(eq=False)
class ChildStreamThinking(OfChild, ThinkingStreamed, name="child_stream_thinking"):
    """A piece of a child's reasoning."""


@dataclass(eq=False)
class ChildStreamEnd(OfChild, StreamEnded, name="child_stream_end"):
    """The text of a child's answer is complete."""


@dataclass(eq=False)
class ChildToolGate(OfChild, ToolGate, name="child_tool_gate", kind="gate", settable=("args",)):
    """A call of a child run. A decision made here holds as if a gate of the child had made it."""


@dataclass(eq=False)
class ChildMcpToolGate(OfChild, McpToolGate, name="child_mcp_tool_gate", kind="gate"):
    """A call of an MCP tool by a child run."""


@dataclass(eq=False)
class ChildToolBefore(OfChild, ToolBefore, name="child_tool_before"):
    """A call of a child run is about to begin."""


@dataclass(eq=False)
class ChildToolAfter(OfChild, ToolAfter, name="child_tool_after"):
    """The result of a call of a child run."""


@dataclass(eq=False)
class ChildToolError(OfChild, ToolError, name="child_tool_error", kind="shaper", settable=("result",)):
    """A call of a child run has failed. `result` is what the child's model reads."""


@dataclass(eq=False)
class ChildTurnAfter(OfChild, AfterModel, name="child_turn_after"):
    """A model call of a child run has ended."""
