"""Agents as tools in the simulation: the code of a run's agent that lets child runs execute its calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from random import Random
from typing import Any

from msgspec.structs import replace

from weftline.kernel.budget import BudgetRule
from weftline.kernel.entries import Fact, RunEnded
from weftline.kernel.policy import PolicyRule
from weftline.messages import Assistant, Message, User
from weftline.plan import LocalRef, RunPlan, ServerRef
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
from weftline.runtime.tool_calls.children import as_result
from weftline.runtime.tool_calls.toolbox import RunName, ServerTools, Toolbox
from weftline.testing.simulation.tools import CODE, SUBAGENTS, sim_tools
from weftline.testing.simulation.world import BELOW, Life
from weftline.tools.arguments import InvalidArguments
from weftline.tools.base import Tool, ToolContext, ToolFailed, ToolOutput


def tools_of(life: Life) -> SimTools:
    return SimTools(life)


class SimTools(ServerTools):
    """The tools of one life. A run with subagents gets an agent to plan for them."""

    def __init__(self, life: Life) -> None:
        super().__init__(sim_tools(life))
        self._life = life

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        toolbox = await super().open(plan, run=run, secrets=secrets)
        if not any(name in toolbox.tools for name in SUBAGENTS):
            return toolbox
        return Toolbox(toolbox.tools, code=SimAgent(self._life, plan))


class SimAgent:
    """Plans the runs below a run, and leaves everything else unchanged."""

    context: object = None
    gates = sequential = False

    def __init__(self, life: Life, plan: RunPlan) -> None:
        self._life = life
        self._plan = plan

    async def plan_child(self, call: PendingCall, context: ToolContext, *, limits: ChildLimits) -> RunPlan:
        """However often it is planned, the same call gets the same plan, except for the time that is left."""
        await self._life.pass_time(0.2)
        if self._life.rng.random() < 0.05:
            raise ToolFailed("nobody is free")
        above, tag = self._plan, f"{self._plan.name}{BELOW}{call.turn}.{call.index}"
        script = Random(tag)
        names = [ref.name for ref in above.tools if isinstance(ref, ServerRef)]
        names = script.sample(names, script.randrange(min(len(names), 3) + 1))
        asks_client = script.random() < 0.6 and any(isinstance(ref, LocalRef) for ref in above.tools)
        local = [ref for ref in above.tools if isinstance(ref, LocalRef) and asks_client]
        metadata: dict[str, Any] = {"tag": tag}
        if CODE in names:
            callable = [name for name in names if name != CODE] + [ref.name for ref in local]
            names = names if callable else []
            metadata["callable"] = ",".join(callable)
        time_left = limits.time_left_us
        policy = above.limits.policy
        return replace(
            above,
            name=tag,
            system=tag,
            messages=(User.of(f"prompt of {tag}"),),
            tools=(*[ServerRef(name) for name in names], *local),
            metadata=metadata,
            limits=replace(
                above.limits,
                max_depth=min(above.limits.max_depth, limits.max_depth),
                policy=policy if time_left is None else PolicyRule(time_budget_us=time_left).within(policy),
                budget=_part_of(above.limits.budget, script),
            ),
        )

    async def finish_child(self, call: PendingCall, context: ToolContext, end: ChildEnd) -> ToolOutput:
        await self._life.pass_time(0.1)
        return as_result(call.name, end)

    # What it leaves unchanged

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

    async def gate(self, call: PendingCall, context: ToolContext) -> Gated:
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


def _part_of(above: BudgetRule | None, script: Random) -> BudgetRule | None:
    """What a child may spend in addition to the limits of the runs above it."""
    if above is None or script.random() < 0.5:
        return None
    return BudgetRule(
        tokens=script.choice((20_000, 60_000)), calls=script.choice((None, 0, 2)), on_exceeded=above.on_exceeded
    )
