"""The points of a run at which it hears of its child runs, at any depth.

    @agent.on(ChildToolGate)
    def nothing_outside(heard: ChildToolGate) -> None:
        if heard.point.tool == "fetch":
            heard.point.block("Subagents stay offline.")

`point` is what the child's own hooks were called with, after they were: a gate in it can be used as theirs can.
"""

from __future__ import annotations

from dataclasses import dataclass

from weftline.agent import hooks as points
from weftline.agent.hooks import Point
from weftline.messages import Usage

# The calls that child runs carry out


@dataclass(eq=False)
class SpawnBefore(Point, name="spawn_before"):
    """A child run is about to be made."""

    turn: int
    call_id: str
    tool: str
    task: str


@dataclass(eq=False)
class SpawnComplete(Point, name="spawn_complete"):
    """A child run has succeeded. `usage` is its own and that of its children."""

    turn: int
    call_id: str
    tool: str
    child_id: str
    text: str
    turns: int
    elapsed_ms: int
    usage: Usage


@dataclass(eq=False)
class SpawnError(Point, name="spawn_error"):
    """A child run has failed or was cancelled."""

    turn: int
    call_id: str
    tool: str
    child_id: str
    error: str
    code: str
    turns: int
    elapsed_ms: int
    usage: Usage


# What happens in them


@dataclass(eq=False)
class ChildPoint(Point):
    child_id: str
    depth: int
    """How many runs there are above the child."""


@dataclass(eq=False)
class ChildTextStreamed(ChildPoint, name="child_text_streamed"):
    """Hooks of this point and the next are plain functions: nobody waits for them."""

    point: points.TextStreamed


@dataclass(eq=False)
class ChildThinkingStreamed(ChildPoint, name="child_thinking_streamed"):
    point: points.ThinkingStreamed


@dataclass(eq=False)
class ChildAfterModel(ChildPoint, name="child_after_model"):
    point: points.AfterModel


@dataclass(eq=False)
class ChildToolGate(ChildPoint, name="child_tool_gate", kind="gate"):
    """A call of a child, after the child's own gates. Blocking it beats any answer of theirs."""

    point: points.ToolGate


@dataclass(eq=False)
class ChildToolBefore(ChildPoint, name="child_tool_before"):
    point: points.ToolBefore


@dataclass(eq=False)
class ChildToolError(ChildPoint, name="child_tool_error"):
    point: points.ToolError


@dataclass(eq=False)
class ChildToolAfter(ChildPoint, name="child_tool_after"):
    point: points.ToolAfter


@dataclass(eq=False)
class ChildTurnEnded(ChildPoint, name="child_turn_ended"):
    point: points.TurnEnded


HEARD: dict[type[Point], type[ChildPoint]] = {
    points.TextStreamed: ChildTextStreamed,
    points.ThinkingStreamed: ChildThinkingStreamed,
    points.AfterModel: ChildAfterModel,
    points.ToolGate: ChildToolGate,
    points.ToolBefore: ChildToolBefore,
    points.ToolError: ChildToolError,
    points.ToolAfter: ChildToolAfter,
    points.TurnEnded: ChildTurnEnded,
}
"""By the child's own point: what those above it hear of that."""


def heard(point: Point, *, child_id: str, depth: int) -> ChildPoint | None:
    """What the runs above a child hear of a point of its; None if nothing."""
    kind = HEARD.get(type(point))
    return None if kind is None else kind(child_id, depth, point)  # type: ignore[call-arg]
