"""An agent's code that changes nothing, for tests that replace a part of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any

from weftline.kernel.entries import Fact, RunEnded
from weftline.messages import Assistant, Message
from weftline.plan import RunPlan
from weftline.providers.base import ModelRequest, ProviderError
from weftline.runtime.agent_code.code import (
    ChildEnd,
    ChildLimits,
    CodeAnswer,
    Gated,
    Inside,
    Judged,
    PendingAwait,
    PendingCall,
    PendingTurn,
)
from weftline.runtime.agent_code.seats import Seats
from weftline.runtime.tool_calls.children import as_result
from weftline.tools.arguments import InvalidArguments
from weftline.tools.base import Tool, ToolContext, ToolFailed, ToolOutput


class IdleCode:
    """Implements `weftline.runtime.agent_code.code.RunCode`."""

    context: object = None
    has_gates = sequential = watches = False
    may_be_overtaken = True
    seats = Seats(())

    async def plan_child(self, call: PendingCall, context: ToolContext, *, limits: ChildLimits) -> RunPlan:
        raise ToolFailed("there are no subagents")

    async def finish_child(self, call: PendingCall, context: ToolContext, end: ChildEnd) -> ToolOutput:
        return as_result(call.name, end)

    def enter(self, inside: Inside) -> None: ...

    async def render(
        self,
        system: str | None,
        *,
        memory: MutableMapping[str, Any],
        messages: Sequence[Message],
        rebuild: bool = False,
    ) -> str | None:
        return None

    def prepare_context(self, context: ToolContext) -> None: ...

    async def shape(self, request: ModelRequest, *, turn: int, attempt: int, memory: Mapping[str, Any]) -> ModelRequest:
        return request

    def pop_notes(self) -> tuple[tuple[str, list[bytes]], ...]:
        return ()

    def keeps(self, messages: Sequence[Message], *, memory: Mapping[str, Any]) -> Collection[str]:
        return ()

    def received(self, message: Assistant) -> Assistant:
        return message

    async def renewed(self, turn: int, provider: str) -> None: ...

    def streamed(self, kind: str, text: str, *, turn: int) -> None: ...

    async def answered(self, turn: int, message: Assistant | None, error: ProviderError | None) -> None: ...

    async def prepare(self, tool: Tool, args: str) -> bytes:
        return await tool.prepare(args)

    def describe_invalid(self, tool: Tool, error: InvalidArguments) -> str:
        return str(error)

    async def ask_gates(self, call: PendingCall, context: ToolContext) -> Gated:
        return Gated("ok", call.args)

    async def judge(self, turn: PendingTurn) -> Judged:
        return Judged()

    async def answer_await(self, asked: PendingAwait) -> CodeAnswer | None:
        return None

    async def execute(
        self, call: PendingCall, context: ToolContext, invoke: Callable[[], Awaitable[ToolOutput]]
    ) -> ToolOutput:
        return await invoke()

    async def check_output(self, text: str) -> str:
        return ""

    def about_to_drive(self, turn: int, *, calls: int, unclosed: int) -> None: ...

    async def on_facts(self, facts: Sequence[Fact], *, messages: Sequence[Message]) -> None: ...

    def ended(self, fact: RunEnded, body: bytes, memory: Mapping[str, Any]) -> None: ...

    def leave(self) -> None: ...
