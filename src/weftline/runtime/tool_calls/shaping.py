"""Lets toolsets process the calls of their tools, where a run creates and closes them."""

from __future__ import annotations

from msgspec.structs import replace

from weftline.runtime.live import WorkingSet
from weftline.runtime.tool_calls.storable import storable_data, storable_telemetry
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.tools.base import ToolOutput
from weftline.tools.shaping import Shaping, ToolsetCall, shaping_of


def shaped_call(
    shaping: Shaping, work: WorkingSet, *, turn: int, id: str, tool: str, args: str, parent: str
) -> ToolsetCall:
    return ToolsetCall(
        run_id=work.run_id,
        thread_id=work.session_id,
        turn_id=work.plan.turn_id or f"{work.run_id}.{turn}",
        call_id=id,
        parent_call=parent or None,
        tool=tool,
        toolset=shaping.toolset,
        args=args,
    )


def shaped_result(
    output: ToolOutput, work: WorkingSet, *, turn: int, index: int, id: str, name: str, active_us: int = 0
) -> ToolOutput:
    """The result of a call as it is stored. The result of a tool without a toolset is unchanged."""
    tool = (work.toolbox or EMPTY).get(name)
    shaping = shaping_of(tool)
    if tool is None or shaping is None:
        return output
    latest = work.conversation.turn
    args, parent = latest.args[index].decode(), latest.parent_of(index)
    call = shaped_call(shaping, work, turn=turn, id=id, tool=name, args=args, parent=parent)
    shaped = shaping.measured(call, shaping.materialized(tool, call, output), duration_ms=active_us // 1000)
    about = {"run_id": work.run_id, "tool": name}
    return replace(
        shaped,
        server_data=storable_data(shaped.server_data, **about),
        telemetry=storable_telemetry(shaped.telemetry, **about),
    )
