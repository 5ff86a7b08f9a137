"""Agents as tools in the simulation: the code of a run's agent that lets child runs execute its calls."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec.structs import replace

from campaigns.simulation.tools import CODE, SUBAGENTS, sim_tools
from campaigns.simulation.world import BELOW, Life
from weftline.kernel.policy import BudgetRule, PolicyRule
from weftline.messages import User
from weftline.plan import LocalRef, RunPlan, ServerRef
from weftline.runtime.agent_code.code import ChildEnd, ChildLimits, PendingCall
from weftline.runtime.tool_calls.children import as_result
from weftline.runtime.tool_calls.toolbox import RunName, ServerTools, Toolbox
from weftline.testing.code import IdleCode
from weftline.tools.base import ToolContext, ToolFailed, ToolOutput


def tools_of(life: Life) -> SimTools:
    return SimTools(life)


class SimTools(ServerTools):
    """The tools of one life. A run with subagents gets an agent to plan for them."""

    def __init__(self, life: Life) -> None:
        super().__init__(sim_tools(life))
        self.life = life

    async def open(self, plan: RunPlan, *, run: RunName, secrets: bytes | None = None) -> Toolbox:
        toolbox = await super().open(plan, run=run, secrets=secrets)
        if not any(name in toolbox.tools for name in SUBAGENTS):
            return toolbox
        return Toolbox(toolbox.tools, code=SimAgent(self.life, plan))


class SimAgent(IdleCode):
    """Plans the runs below a run, and leaves everything else unchanged."""

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


def _part_of(above: BudgetRule | None, script: Random) -> BudgetRule | None:
    """What a child may spend in addition to the limits of the runs above it."""
    if above is None or script.random() < 0.5:
        return None
    return BudgetRule(
        tokens=script.choice((20_000, 60_000)), calls=script.choice((None, 0, 2)), on_exceeded=above.on_exceeded
    )
