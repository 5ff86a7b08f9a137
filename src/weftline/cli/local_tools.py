"""The tools of a file that run here, for a server elsewhere."""

from __future__ import annotations

import json
from typing import Any

from weftline.client.context import ToolContext as ClientContext
from weftline.client.errors import ToolError
from weftline.client.events import OfferedCall
from weftline.client.tools import Handler
from weftline.messages import Text
from weftline.tools.base import ToolContext
from weftline.tools.function import FunctionTool
from weftline.tools.loader import load_tools
from weftline.work.threads import Threads


def tools_of_file(given: str) -> list[HandedOver]:
    return [HandedOver(tool) for tool in load_tools(given).values()]


class HandedOver:
    """A server tool that a client runs, once for each offered call."""

    def __init__(self, tool: FunctionTool) -> None:
        self._tool = tool

    async def acquire(self) -> dict[str, Any]:
        spec = self._tool.spec
        return {"kind": "local", "name": spec.name, "description": spec.description, "parameters": spec.parameters}

    async def release(self) -> None:
        pass

    def handler(self, call: OfferedCall) -> Handler | None:
        return _Call(self._tool) if call.kind == "local" and call.name == self._tool.name else None


class _Call:
    def __init__(self, tool: FunctionTool) -> None:
        self._tool = tool
        self.timeout_s = tool.timeout_s

    async def __call__(self, args: dict[str, Any], context: ClientContext, workers: Threads) -> str:
        here = ToolContext(
            run_id=context.run_id,
            call_id=context.tool_use_id,
            idempotency_key=f"{context.run_id}/{context.tool_use_id}",
            tool_name=context.name,
            workspace="",
            thread_id=context.session_id,
        )
        output = await self._tool.invoke(await self._tool.prepare(json.dumps(args)), here)
        text = "\n".join(part.text for part in output.parts if isinstance(part, Text))
        if output.is_error:
            raise ToolError(text)
        return text
