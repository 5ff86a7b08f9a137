"""Hooks around model and tool calls: the points of a run's own agent, and those of the agents above it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from typing import Any, Final, TypeAlias

from msgspec.json import decode
from msgspec.structs import replace

from weftline import prompts
from weftline.agent import hooks as points
from weftline.agent import hooks_outside as outside
from weftline.agent.context import RunContext
from weftline.agent.hooking.calling import HookFailed, Hooks
from weftline.agent.hooks import Point, ToolError, ToolGate
from weftline.agent.hooks_outside import McpToolAfter, McpToolBefore, McpToolGate, McpToolTransform
from weftline.agent.requests.shaping import LargeResults
from weftline.agent.running.frame import Frame
from weftline.agent.skills.activation import USE
from weftline.messages import Image, Text, UserPart, joined_text
from weftline.runtime.agent_code.code import Gated, PendingCall
from weftline.text.canonical import NotCanonical, canonical_value
from weftline.tools.arguments import InvalidArguments, object_args
from weftline.tools.base import ReplacesContent, Tool, ToolContext, ToolOutput
from weftline.tools.coercion import coerced, coercions
from weftline.tools.results import output_bytes, output_of

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


def object_of(args: bytes) -> dict[str, Any]:
    return decode(args, type=dict[str, Any]) if args else {}


def written_object(args: str) -> dict[str, Any]:
    """Returns the arguments as the model wrote them, or an empty dict if they are not an object."""
    try:
        return dict(object_args(args)[0])
    except InvalidArguments:
        return {}


def coerced_args(args: str, tool: Tool) -> str | None:
    """Returns coerced arguments if those that the model wrote have the wrong types; None if coercion does not help."""
    try:
        value, _ = object_args(args)
        changed = coerced(value, tool.spec.parameters)
        return None if changed is None else canonical_value(changed).decode()
    except (InvalidArguments, NotCanonical):
        return None


def parts_of(result: object, *, before: tuple[UserPart, ...], tool: str) -> tuple[UserPart, ...]:
    """Returns the parts of a result that a hook may have replaced by anything that a tool may return."""
    return before if result is before else output_of(result, tool_name=tool).parts


def in_words(parts: tuple[UserPart, ...]) -> tuple[UserPart, ...]:
    """Replaces images with text, for a model without vision."""
    return tuple(
        [Text(prompts.models.unseen_image(one.media_type)) if isinstance(one, Image) else one for one in parts]
    )


Invoke = Callable[[], Awaitable[ToolOutput]]


def server_of(call: PendingCall) -> str:
    """Returns the MCP server that executes the call; empty for any other tool."""
    return getattr(call.tool, "server", "")


async def around(
    call: PendingCall, invoke: Invoke, *, display_name: str, hooks: Hooks, context: object, above: Ancestors
) -> ToolOutput:
    """Calls the server, unless a gate has blocked or answered the call.

    `display_name` is the model's name for the tool.
    """
    server = server_of(call)
    where: dict[str, Any] = {
        "turn": call.turn,
        "call_id": call.id,
        "tool": call.name,
        "server": server,
        "display_name": display_name,
    }
    args: dict[str, Any] = decode(call.args, type=dict[str, Any]) if call.args else {}
    output: ToolOutput | None = None
    if McpToolGate in hooks or above.wants(McpToolGate):
        gate = McpToolGate(**where, args=args, raw_args=call.raw_args, counts=dict(call.counts))
        error = await hooks.gate(gate, context) or await above.gate(gate)
        blocked = prompts.calls.gate_failed(call.name) if error is not None else gate.blocked
        if blocked is not None:
            return ToolOutput.of(prompts.calls.blocked(blocked), is_error=True)
        if gate.answered is not None:
            output = output_of(gate.answered[0], tool_name=call.name)
    if output is None:
        if McpToolBefore in hooks:
            try:
                await hooks.watch(McpToolBefore(**where, args=args), context)
            except HookFailed:
                return ToolOutput.of(prompts.calls.blocked(prompts.calls.gate_failed(display_name)), is_error=True)
        output = await invoke()
    try:
        if McpToolTransform in hooks:
            point = McpToolTransform(**where, **_result_fields(output))
            await hooks.shape(point, context)
            parts = output_of(point.result, tool_name=call.name).parts
            output = replace(output, parts=parts, is_error=bool(point.is_error) or output.in_doubt)
        if McpToolAfter in hooks:
            await hooks.watch(McpToolAfter(**where, **_result_fields(output)), context)
    except HookFailed:
        return replace(output, parts=(Text(prompts.calls.result_withheld(display_name)),), is_error=True)
    return output


def _result_fields(output: ToolOutput) -> dict[str, Any]:
    return {"result": output.parts, "is_error": output.is_error, "output_bytes": output_bytes(output.parts)}


class AroundCalls:
    """The hooks around the tool calls of one run."""

    def __init__(self, hooks: Hooks, frame: Frame, context: RunContext[Any], *, above: Ancestors) -> None:
        self._hooks = hooks
        self._frame = frame
        self._context = context
        self._above = above
        self._large = LargeResults(frame.behavior, run_id=context.run.id, keep=frozenset({USE}))

    def wants(self, point: type[points.Point]) -> bool:
        """Returns True if any hook is registered for this point, including those of the runs above."""
        return point in self._hooks or self._above.wants(point)

    def display_name(self, call: PendingCall) -> str:
        """The name that the model knows the tool by."""
        return self._frame.aliases.wire(call.name)

    async def notify(self, point: points.Point) -> None:
        """Calls the watchers of this point. Raises `HookFailed` if one with `fail_closed` fails."""
        await self._hooks.watch(point, self._context)
        await self._above.watch(point)

    async def before(self, call: PendingCall, context: ToolContext) -> None:
        hooks = self._hooks
        if not self.wants(points.ToolBefore) and points.ArgumentsCoerced not in hooks:
            return
        display_name = self.display_name(call)
        changed = coercions(written_object(call.raw_args), object_of(call.prepared))
        if changed:
            await self.notify(points.ArgumentsCoerced(*_where(call), changed, display_name=display_name))
        if self.wants(points.ToolBefore):
            prior = await call.tool.prior_content(call.args) if isinstance(call.tool, ReplacesContent) else None
            args, counts = object_of(call.args), dict(call.counts)
            await self.notify(
                points.ToolBefore(
                    call.turn,
                    call.id,
                    call.name,
                    args,
                    context.attempt,
                    prior,
                    counts,
                    changed,
                    display_name=display_name,
                )
            )

    async def finished(self, call: PendingCall, output: ToolOutput, *, stored: bool = False) -> ToolOutput:
        """Passes a result through the last hooks before it is stored, whether a tool or a gate produced it.

        `stored` means that it was stored before, and so is small enough.
        """
        hooks, display_name = self._hooks, self.display_name(call)
        if points.ToolTransform in hooks:
            size = output_bytes(output.parts)
            point = points.ToolTransform(
                *_where(call), output.parts, output.is_error, size, object_of(call.args), display_name=display_name
            )
            await self._shape(point)
            parts = parts_of(point.result, before=output.parts, tool=call.name)
            output = replace(output, parts=parts, is_error=point.is_error)
        whole = output
        output = output if stored else await self._large.stored(call, output)
        if output is not whole and points.ToolResultStored in hooks:
            size, stub = output_bytes(whole.parts), joined_text(output.parts)
            await self.notify(points.ToolResultStored(*_where(call), size, stub, display_name=display_name))
        if self.wants(points.ToolAfter):
            seen = in_words(output.parts) if call.is_blind() else output.parts
            size, counts = output_bytes(seen), dict(call.counts)
            await self.notify(
                points.ToolAfter(
                    call.turn,
                    call.id,
                    call.name,
                    seen,
                    output.is_error,
                    size,
                    counts,
                    output.bounds,
                    output.server_data,
                    display_name=display_name,
                )
            )
        return output

    async def after(self, call: PendingCall, output: ToolOutput, raised: BaseException | None) -> ToolOutput:
        """Calls the hooks after a call. If one fails, the model is still told that the tool has run."""
        try:
            return await self._notify_after(call, output, raised)
        except HookFailed:
            return replace(output, parts=(Text(prompts.calls.result_withheld(self.display_name(call))),), is_error=True)

    async def _notify_after(self, call: PendingCall, output: ToolOutput, raised: BaseException | None) -> ToolOutput:
        display_name = self.display_name(call)
        if output.is_error and self.wants(points.ToolError):
            failed = points.ToolError(*_where(call), output.parts, raised, output.failure, display_name=display_name)
            await self._shape(failed)
            await self._above.shape(failed)
            output = replace(output, parts=parts_of(failed.result, before=output.parts, tool=call.name))
        point: points.ToolAfterFailure | points.ToolAfterSuccess | None = None
        if output.is_error and points.ToolAfterFailure in self._hooks:
            point = points.ToolAfterFailure(
                *_where(call), output.parts, output.failure, args=object_of(call.args), display_name=display_name
            )
        elif not output.is_error and points.ToolAfterSuccess in self._hooks:
            point = points.ToolAfterSuccess(
                *_where(call), output.parts, args=object_of(call.args), display_name=display_name
            )
        if point is not None:
            await self._shape(point)
            parts = parts_of(point.result, before=output.parts, tool=call.name)
            failure = output.failure if point.is_error else None
            output = replace(output, parts=parts, is_error=point.is_error, failure=failure)
        return await self.finished(call, output)

    async def unfit(self, call: PendingCall) -> Gated:
        """Rejects a call of an unknown tool, or one with invalid arguments."""
        display_name = self.display_name(call)
        if call.tool is not None:
            await self.notify(points.ArgumentsRejected(*_where(call), call.problem, display_name=display_name))
            return Gated("invalid", call.args, (Text(call.problem),), is_error=True)
        unknown = points.ToolUnknown(*_where(call), prompts.calls.unknown_tool(call.name), display_name=display_name)
        await self._shape(unknown)
        parts: tuple[UserPart, ...] = (Text(str(unknown.result)),)
        if not unknown.suppress_error and points.ToolError in self._hooks:
            failed = points.ToolError(*_where(call), parts, display_name=display_name)
            await self._shape(failed)
            parts = parts_of(failed.result, before=parts, tool=call.name)
        return Gated("unknown", call.args, parts, is_error=True)

    async def _shape(self, point: points.Point) -> None:
        await self._hooks.shape(point, self._context)


def _where(call: PendingCall) -> tuple[int, str, str]:
    return call.turn, call.id, call.name
