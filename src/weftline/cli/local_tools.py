"""The tools of a file that are executed here, for a run on a server elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from weftline import prompts
from weftline.client.arguments import ToolContext as ClientContext
from weftline.client.errors import InvalidSpec, ToolError
from weftline.client.events import OfferedCall
from weftline.client.tools import Handler
from weftline.messages import Text
from weftline.tools.arguments import InvalidArguments
from weftline.tools.asking import ask_of
from weftline.tools.base import ToolContext
from weftline.tools.function import FunctionTool
from weftline.tools.loader import load_tools
from weftline.work.threads import Threads

AskPerson: TypeAlias = Callable[[OfferedCall, str, str], Awaitable[str]]
"""Asks the person here, given the run's id and the question; returns what the model reads of a refusal, empty if the
call may begin."""


def tools_of_file(given: str, *, ask: AskPerson) -> list[HandedOver]:
    return [HandedOver(tool, ask) for tool in load_tools(given).values()]


class HandedOver:
    """A server tool that a client runs, once for each offered call."""

    def __init__(self, tool: FunctionTool, ask: AskPerson) -> None:
        if tool.client is not None:
            raise InvalidSpec(f"The tool {tool.name} is executed outside (external=True), never here.")
        if len(tool.traits.asks) > 1:
            raise InvalidSpec(
                f"The tool {tool.name} names its approvers, whom only a server knows: give the tool to the server"
                " (`weftline serve --tools …`), or take approvers away."
            )
        self._tool = tool
        self._ask = ask

    async def acquire(self) -> dict[str, Any]:
        spec = self._tool.spec
        return {"kind": "local", "name": spec.name, "description": spec.description, "parameters": spec.parameters}

    async def release(self) -> None:
        pass

    def handler(self, call: OfferedCall) -> Handler | None:
        if call.kind != "local" or call.name != self._tool.name:
            return None
        return _Call(self._tool, call, self._ask)


class _Call:
    timeout_s: float | None = None
    """The tool's limit begins once a person has approved the call."""

    def __init__(self, tool: FunctionTool, call: OfferedCall, ask: AskPerson) -> None:
        self._tool = tool
        self._call = call
        self._ask = ask

    async def __call__(self, args: dict[str, Any], context: ClientContext, workers: Threads) -> str:
        tool = self._tool
        try:
            prepared = await tool.prepare(json.dumps(args))
        except InvalidArguments as error:
            raise ToolError(error.message) from None
        if refusal := await self._refusal(prepared, context.run_id):
            return refusal
        here = ToolContext[Any](
            run_id=context.run_id,
            call_id=context.tool_use_id,
            idempotency_key=f"{context.run_id}/{context.tool_use_id}",
            tool_name=context.name,
            workspace="",
            thread_id=context.session_id,
        )
        limit = asyncio.timeout(tool.timeout_s)
        try:
            async with limit:
                output = await tool.invoke(prepared, here)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ToolError(f"The tool {tool.name} timed out after {tool.timeout_s:g} s.") from None
        text = "\n".join(part.text for part in output.parts if isinstance(part, Text))
        if any(not isinstance(part, Text) for part in output.parts):
            raise ToolError(f"{tool.name} returned images or files, which are lost: this client only sends texts.")
        if output.asks is not None:
            raise ToolError(f"{text}\n{prompts.people.NO_ANSWER}")
        if output.is_error:
            raise ToolError(text)
        return text

    async def _refusal(self, args: bytes, run_id: str) -> str:
        """Asks a person if the tool does; returns what the model reads if the call may not begin."""
        try:
            question = ask_of(self._tool, args)
        except Exception as error:
            text = prompts.people.not_askable(self._tool.name, f"{type(error).__name__}: {error}")
            raise ToolError(text) from error
        if question is None:
            return ""
        try:
            async with asyncio.timeout(question.timeout_s):
                return await self._ask(self._call, run_id, question.prompt)
        except TimeoutError:
            return prompts.people.EXPIRED
