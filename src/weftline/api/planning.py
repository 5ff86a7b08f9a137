"""Makes the plan of a client's run, whether its agent is stored, a code agent, or absent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from weftline.api.principal import Principal
from weftline.errors import InvalidRequest, WeftlineError
from weftline.plan import RunPlan
from weftline.runtime.engine import Engine
from weftline.spec.plan import read_spec, to_plan
from weftline.wire.errors import as_sent
from weftline.wire.responses import RequestWarning, Warnings, request_warnings
from weftline.wire.unknown_fields import UnknownField
from weftline.workspace.agents import no_such_agent
from weftline.workspace.code_agents import STORED_ID
from weftline.workspace.context import Workspaces


def plan_of(at: Workspaces, spec: bytes, *, requested_by: str = "") -> RunPlan:
    """Returns the plan of a run; `requested_by` is who requests it.

    Raises `NotFound` for a session whose code agent this server no longer has. A stored agent is part of the spec, and
    may have been deleted since.
    """
    asked = read_spec(spec)
    agent = at.code.by_id(asked.agent_id)
    if agent is not None:
        return replace(agent.plan(asked), requested_by=requested_by)
    if asked.agent_id is not None and not STORED_ID.fullmatch(asked.agent_id):
        raise no_such_agent(asked.agent_id)
    return to_plan(asked, requested_by=requested_by)


async def check_plan(
    engine: Engine, plan: RunPlan, *, workspace: int, runs_now: bool = True, unknown: Sequence[UnknownField] = ()
) -> None:
    """Raises `WeftlineError` for whatever a run of the plan could not use, by the names of the client's fields."""
    try:
        await engine.check(plan, workspace=workspace, runs_now=runs_now)
    except InvalidRequest as error:
        raise as_sent(error, unknown) from None


async def plan_warnings(
    logs: Engine, plan: RunPlan, unknown: Sequence[UnknownField], *, workspace: int, runs_now: bool = True
) -> Warnings:
    """Returns warnings about unknown fields, and about what a run of the plan would fail with now.

    Commands only warn, as an operator may store an agent before setting up its model.
    """
    warnings = request_warnings(unknown)
    try:
        await check_plan(logs, plan, workspace=workspace, runs_now=runs_now)
    except WeftlineError as error:
        missing = RequestWarning(error.code, "spec", f"cannot run as things are: {error.message}")
        return [*(warnings or ()), missing]
    return warnings


async def runnable(
    engine: Engine,
    by: Principal,
    plan: RunPlan,
    unknown: Sequence[UnknownField],
    *,
    warn: Callable[[Sequence[UnknownField]], Warnings],
    runs_now: bool = True,
) -> Warnings:
    """Returns the warnings about what is stored to be run later; raises the error that a run of it would get.

    The operator is only warned. `warn` returns the warnings about unknown fields.
    """
    if by.operator:
        return await plan_warnings(engine, plan, unknown, workspace=by.workspace, runs_now=runs_now)
    warnings = warn(unknown)
    engine.require_accepting()
    await check_plan(engine, plan, workspace=by.workspace, runs_now=runs_now)
    return warnings
