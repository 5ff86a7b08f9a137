"""What the runs above a child hear of it: at points of their own, after the child's hooks were called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, TypeAlias

from weftline.agent import hooks as points
from weftline.agent import hooks_outside as outside
from weftline.agent.calling import Hooks
from weftline.agent.hooks import Point, ToolError, ToolGate

Listener: TypeAlias = tuple[Hooks, object]
"""The hooks of a run, and the context that they are called with."""

HEARD: Final[dict[type[Point], type[Point]]] = {
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
"""By the child's own point: the one at which those above it hear of that."""
_DECISION = ("_blocked", "_answer", "_answered", "_ask")


class Above:
    """The runs above a child, the nearest first. A run that is nobody's child has none."""

    def __init__(self, listeners: Sequence[Listener] = (), *, child_id: str = "", depth: int = 0) -> None:
        self.listeners = tuple(listeners)
        self._where: dict[str, Any] = {"child_id": child_id, "depth": depth}

    def wants(self, point: type[Point]) -> bool:
        kind = HEARD.get(point)
        return kind is not None and any(kind in hooks for hooks, _ in self.listeners)

    def tell(self, point: Point) -> None:
        """Calls plain functions that nobody waits for."""
        if self.wants(type(point)):
            told = self._heard(point)
            for hooks, context in self.listeners:
                hooks.tell(told, context)

    async def watch(self, point: Point) -> None:
        """Raises `HookFailed` if a hook above fails that must not."""
        if not self.wants(type(point)):
            return
        told = self._heard(point)
        for hooks, context in self.listeners:
            await hooks.watch(told, context)

    async def gate(self, gate: ToolGate) -> BaseException | None:
        """Asks the gates above about a call that the child's own have decided on. What they decide is in `gate`."""
        if not self.wants(type(gate)):
            return None
        told = self._heard(gate)
        assert isinstance(told, ToolGate)
        for hooks, context in self.listeners:
            error = await hooks.gate(told, context)
            if error is not None:
                return error
        for name in _DECISION:
            object.__setattr__(gate, name, getattr(told, name))
        if "args" in gate.settable:
            gate.args = told.args
        return None

    async def shape(self, error: ToolError) -> None:
        """Lets the hooks above edit the text of a failed call of the child."""
        if not self.wants(type(error)):
            return
        told = self._heard(error)
        assert isinstance(told, ToolError)
        for hooks, context in self.listeners:
            await hooks.shape(told, context)
        error.result = told.result

    def _heard(self, point: Point) -> Point:
        own = {one.name: getattr(point, one.name) for one in fields(point)}  # type: ignore[arg-type]  # pyright: ignore
        return HEARD[type(point)](**own, **self._where)
