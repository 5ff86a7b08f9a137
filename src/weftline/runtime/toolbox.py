"""The tools of one run: its plan's references resolved to tools, by the name that the model uses."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET

from weftline.agent.plan import (
    A2ALocalRef,
    A2ARef,
    LocalRef,
    McpLocalRef,
    McpRef,
    PluginRef,
    RunPlan,
    StoredRef,
    ToolRef,
)
from weftline.errors import InvalidRequest
from weftline.providers.base import ToolSpec
from weftline.tools.base import Tool
from weftline.tools.client_side import A2ALocalTool, LocalTool, McpLocalTool


class Toolbox:
    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = dict(tools)
        self.specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in tools.values())

    def get(self, name: str) -> Tool | None:
        return self.tools.get(name)


EMPTY = Toolbox({})


def check_refs(plan: RunPlan, server_tools: Mapping[str, Tool]) -> None:
    """Refuses a plan whose tools this server does not have, before a run exists."""
    for index, ref in enumerate(plan.tools):
        if isinstance(ref, PluginRef) and ref.name not in server_tools:
            raise InvalidRequest(f"tools[{index}].name: this server has no tool {ref.name!r}.", code="invalid_plugin")
        if isinstance(ref, StoredRef | A2ARef | McpRef):
            raise InvalidRequest(f"tools[{index}].kind: this server cannot run tools of this kind yet.")


def build_toolbox(plan: RunPlan, server_tools: Mapping[str, Tool]) -> Toolbox:
    if not plan.tools:
        return EMPTY
    tools: dict[str, Tool] = {}
    for ref in plan.tools:
        for tool in _resolve(ref, server_tools):
            tools[tool.spec.name] = tool
    return Toolbox(tools)


def _resolve(ref: ToolRef, server_tools: Mapping[str, Tool]) -> list[Tool]:
    match ref:
        case LocalRef():
            return [
                LocalTool(
                    ref.name,
                    description=ref.description,
                    parameters=None if ref.parameters is UNSET else ref.parameters,
                    output_schema=None if ref.output_schema is UNSET else ref.output_schema,
                    long_running=ref.long_running,
                )
            ]
        case A2ALocalRef():
            return [A2ALocalTool(ref.name, card=ref.card, description=ref.description)]
        case McpLocalRef():
            info = None if ref.info is UNSET else ref.info
            return [
                McpLocalTool(entry.name, entry=entry.raw, server=ref.server, server_info=info) for entry in ref.tools
            ]
        case PluginRef():
            tool = server_tools.get(ref.name)
            return [tool] if tool is not None else []
        case StoredRef() | A2ARef() | McpRef():
            return []
