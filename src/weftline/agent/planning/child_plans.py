"""Makes the plans of subagents' runs, for the library and the server alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from msgspec.structs import replace

from weftline.agent.definition import Definition
from weftline.agent.options import LocalSpec
from weftline.agent.planning.plans import child_of, copy_of, plan_of
from weftline.agent.subagents import Subagent
from weftline.messages import User
from weftline.plan import RunPlan
from weftline.runtime.agent_code.code import ChildLimits


class Checks(Protocol):
    """Raises `WeftlineError` for a plan that cannot run in a workspace."""

    async def __call__(self, plan: RunPlan, /, *, workspace: int) -> None: ...


class ChildPlans:
    """Makes the plan of a child: its agent's own or a copy of its parent's, within the limits that the parent leaves.

    `model_id` returns the model of an agent that runs under a code name; `check` is the engine's.
    """

    def __init__(
        self, *, model_id: Callable[[Definition[Any, Any], str], Awaitable[str | None]], check: Checks
    ) -> None:
        self._model_id = model_id
        self._check = check

    async def __call__(
        self,
        parent: RunPlan,
        subagent: Subagent,
        task: str,
        /,
        *,
        system: str | None,
        limits: ChildLimits,
        workspace: int,
    ) -> RunPlan:
        assert parent.code is not None
        if subagent.agent is None:
            plan = copy_of(parent, task, system=system)
        else:
            model = await self._model_id(subagent.agent, parent.code)
            plan = plan_of(subagent.agent, LocalSpec(conversation=(User.of(task),)), code=parent.code, model=model)
            plan = plan if system is None else replace(plan, system=system)
        plan = child_of(parent, plan, name=subagent.name, limits=limits, inherit_policy=subagent.inherit_policy)
        await self._check(plan, workspace=workspace)
        return plan


def subagents_of(agent: Definition[Any, Any]) -> dict[str, Definition[Any, Any]]:
    """Returns the direct subagents of an agent, by the name of the tool that calls each."""
    return {tool.name: tool.agent for tool in agent.tools if isinstance(tool, Subagent) and tool.agent is not None}
