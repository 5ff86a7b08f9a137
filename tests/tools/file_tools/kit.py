"""Calls of the built-in tools as the runtime makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from weftline.messages import joined_text
from weftline.tools.base import Reconciled, Tool, ToolContext
from weftline.tools.builtin.files import files
from weftline.tools.contexts.base import ExecutionContext


class Result(str):
    """What the model reads."""

    is_error: bool


class Kit:
    """The tools of one run, and what they remember."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = {tool.spec.name: tool for tool in tools}
        self.state: dict[str, Any] = {}

    def context(self, name: str) -> ToolContext:
        return ToolContext[object]("run", "0.0", "key", name, "default", state=self.state)

    async def final(self, name: str, args: object) -> bytes:
        return await self.tools[name].prepare(msgspec.json.encode(args).decode())

    async def call(self, tool: str, /, **args: object) -> Result:
        return await self.invoke(tool, await self.final(tool, args))

    async def invoke(self, name: str, args: bytes) -> Result:
        output = await self.tools[name].invoke(args, self.context(name))
        # What is remembered is stored as JSON.
        self.state = msgspec.json.decode(msgspec.json.encode(self.state))
        result = Result(joined_text(output.parts))
        result.is_error = output.is_error
        return result

    async def ok(self, tool: str, /, **args: object) -> str:
        result = await self.call(tool, **args)
        assert not result.is_error, result
        return result

    async def refused(self, tool: str, /, **args: object) -> str:
        result = await self.call(tool, **args)
        assert result.is_error, result
        return result

    async def reconcile(self, tool: str, /, **args: object) -> Reconciled:
        return await self.tools[tool].reconcile(await self.final(tool, args), self.context(tool))


def file_kit(root: Path, *, context: ExecutionContext | None = None, **options: Any) -> Kit:
    return Kit(files(root, context=context, **options).tools)
