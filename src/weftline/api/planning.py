"""The plan of a run that a client asked for, whether its agent is stored, code of this server, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from weftline.errors import WeftlineError
from weftline.plan import RunPlan
from weftline.wire.plan import plan_from_spec
from weftline.wire.responses import RequestWarning, Warnings, request_warnings
from weftline.wire.unknown_fields import UnknownField
from weftline.workspace.agents import no_such_agent
from weftline.workspace.code_agents import STORED_ID
from weftline.workspace.context import Workspaces


def plan_of(at: Workspaces, spec: bytes, *, requested_by: str = "") -> RunPlan:
    """`requested_by` is who asks for the run.

    Raises `NotFound` for a session whose agent was code that this server does not have any more. A stored agent is in
    the spec, and may have been deleted since.
    """
    plan = plan_from_spec(spec, requested_by=requested_by)
    if plan.agent_id is None:
        return plan
    agent = at.code.by_id(plan.agent_id)
    if agent is not None:
        return replace(agent.plan(plan), requested_by=requested_by)
    if not STORED_ID.fullmatch(plan.agent_id):
        raise no_such_agent(plan.agent_id)
    return plan


class Checking(Protocol):
    async def check(self, plan: RunPlan, *, workspace: int, runs_now: bool = True) -> None:
        """Raises `WeftlineError` for models and tools that are not there, as far as that is known."""
        ...


async def plan_warnings(
    logs: Checking, plan: RunPlan, unknown: Sequence[UnknownField], *, workspace: int, runs_now: bool = True
) -> Warnings:
    """Unknown fields, and what a run of the plan would fail at now.

    For commands, which do not refuse it: an operator may well store an agent first and set up its model after.
    """
    warnings = request_warnings(unknown)
    try:
        await logs.check(plan, workspace=workspace, runs_now=runs_now)
    except WeftlineError as error:
        missing = RequestWarning(error.code, "spec", f"cannot run as things are: {error.message}")
        return [*(warnings or ()), missing]
    return warnings
