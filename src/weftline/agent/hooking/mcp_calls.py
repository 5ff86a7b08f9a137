"""The points around a call of an MCP server, between `tool_before` and `tool_transform`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.json import decode
from msgspec.structs import replace

from weftline import prompts
from weftline.agent.hooking.ancestors import Ancestors
from weftline.agent.hooking.calling import HookFailed, Hooks
from weftline.agent.hooks_outside import McpToolAfter, McpToolBefore, McpToolGate, McpToolTransform
from weftline.messages import Text
from weftline.runtime.agent_code.code import PendingCall
from weftline.tools.base import ToolOutput
from weftline.tools.results import output_bytes, output_of

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
