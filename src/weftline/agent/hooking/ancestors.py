"""Hooks of the runs above a child. They are called at points of their own, after the child's hooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, TypeAlias

from weftline.agent import hooks as points
from weftline.agent import hooks_outside as outside
from weftline.agent.hooking.calling import Hooks
from weftline.agent.hooks import Point, ToolError, ToolGate

Listener: TypeAlias = tuple[Hooks, object]
"""The hooks of a run, and the context that they are called with."""

CHILD_POINTS: Final[dict[type[Point], type[Point]]] = {
    points.TextStreamed: outside.ChildStreamText,
    points.ThinkingStreamed: outside.ChildStreamThinking,
    points.StreamEnded: outside.ChildStreamEnd,
    points.AfterModel: outside.ChildTurnAfter,
    points.ToolGate: outside.ChildToolGate,
    outside.McpToolGate: outside.ChildMcpToolGate,
    points.ToolBefore: outside.ChildToolBefore,
    points.ToolError: outside.ChildToolError,
    points.ToolAfter: outside.ChildToolAfter,
}
"""Maps a child's point to the point at which the runs above are notified."""
_DECISION = ("_blocked", "_answer", "_answered", "_ask")


class Ancestors:
    """The runs above a child, the nearest first. A run without a parent has none."""

    def __init__(self, listeners: Sequence[Listener] = (), *, child_id: str = "", depth: int = 0) -> None:
        self.listeners = tuple(listeners)
        self._where: dict[str, Any] = {"child_id": child_id, "depth": depth}

    def wants(self, point: type[Point]) -> bool:
        kind = CHILD_POINTS.get(point)
        return kind is not None and any(kind in hooks for hooks, _ in self.listeners)

    def notify(self, point: Point) -> None:
        """Calls the synchronous hooks of the runs above, without waiting."""
        if self.wants(type(point)):
            child_point = self._child_point(point)
            for hooks, context in self.listeners:
                hooks.notify(child_point, context)

    async def watch(self, point: Point) -> None:
        """Calls the watchers of the runs above. Raises `HookFailed` if one with `fail_closed` fails."""
        if not self.wants(type(point)):
            return
        child_point = self._child_point(point)
        for hooks, context in self.listeners:
            await hooks.watch(child_point, context)

    async def gate(self, gate: ToolGate) -> BaseException | None:
        """Asks the gates of the runs above, after the child's own gates. Copies their decision into `gate`.

        Returns the first error, if a gate fails.
        """
        if not self.wants(type(gate)):
            return None
        child_point = self._child_point(gate)
        assert isinstance(child_point, ToolGate)
        for hooks, context in self.listeners:
            error = await hooks.gate(child_point, context)
            if error is not None:
                return error
        for name in _DECISION:
            object.__setattr__(gate, name, getattr(child_point, name))
        if "args" in gate.settable:
            gate.args = child_point.args
        return None

    async def shape(self, error: ToolError) -> None:
        """Lets the hooks of the runs above edit the text of a child's failed call."""
        if not self.wants(type(error)):
            return
        child_point = self._child_point(error)
        assert isinstance(child_point, ToolError)
        for hooks, context in self.listeners:
            await hooks.shape(child_point, context)
        error.result = child_point.result

    def _child_point(self, point: Point) -> Point:
        own = {one.name: getattr(point, one.name) for one in fields(point)}  # type: ignore[arg-type]  # pyright: ignore
        return CHILD_POINTS[type(point)](**own, **self._where)
