"""The spec of a client's run, and its plan, whether its agent is stored, a code agent, or absent.

Agents are stored as clients' JSON, which is merged with the request's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from weftline.api.principal import Principal
from weftline.errors import Conflict, Forbidden, InvalidRequest, WeftlineError
from weftline.plan import RunPlan
from weftline.runtime.engine import Engine
from weftline.spec.merge import agent_spec, with_agent
from weftline.spec.plan import read_spec, to_plan
from weftline.spec.tools import names_of_tools
from weftline.store.records.agents import AgentRow
from weftline.store.sealing import Headers
from weftline.wire.errors import as_sent, client_names
from weftline.wire.responses import RequestWarning, Warnings, request_warnings
from weftline.wire.unknown_fields import UnknownField
from weftline.work.heavy import off_loop
from weftline.workspace import agents
from weftline.workspace.code_agents import STORED_ID, CodeAgent
from weftline.workspace.context import Caller, Workspaces


class SpecAndHeaders(Struct, frozen=True):
    """What a run is created from."""

    spec: bytes
    headers: Headers
    """Secret headers of the tools that the server connects to."""


def code_spec(agent: CodeAgent) -> bytes:
    """Returns what clients see of an agent that is defined in code, in the form of a run's spec."""
    return agent_spec(model=agent.model, instructions=agent.instructions, output=agent.output)


def require_named(caller: Caller, agent_id: str | None) -> None:
    """Raises `Forbidden` for a caller restricted to some agents whose request names none of them."""
    try:
        agents.require_named(caller, agent_id)
    except Forbidden as error:
        raise as_sent(error) from None


async def effective(
    at: Workspaces, caller: Caller, agent_id: str | None, own: SpecAndHeaders, *, replaces: bool = False
) -> SpecAndHeaders:
    """Returns the spec to run: the agent's, overridden by the request's own.

    A caller restricted to some agents must name one of them. `replaces` means that the caller may change the agent, and
    so replace its policy for a run; the policies of others stay within the agent's.
    """
    require_named(caller, agent_id)
    if agent_id is None:
        return own
    with client_names():
        agent = await agents.use(at, caller, agent_id)
    return await off_loop(partial(merged, at, agent, own, replaces=replaces), size=len(agent.spec) + len(own.spec))


def merged(at: Workspaces, agent: AgentRow, own: SpecAndHeaders, *, replaces: bool = False) -> SpecAndHeaders:
    """Merges a request's spec into an agent's. A tool that the request replaces has its own headers, or none."""
    if agent.id in at.code:
        # A code agent itself defines what its runs start from, as a session's copy would be out of date.
        return SpecAndHeaders(with_agent(b"{}", own.spec, id=agent.id, name=agent.name), own.headers)
    headers = at.vault.open_headers(agent.secrets, workspace=agent.workspace)
    if headers:
        replaced = names_of_tools(own.spec)
        headers = {name: values for name, values in headers.items() if name not in replaced}
    spec = with_agent(agent.spec, own.spec, id=agent.id, name=agent.name, replaces=replaces)
    return SpecAndHeaders(spec, {**headers, **own.headers})


def plan_of(at: Workspaces, spec: bytes, *, requested_by: str = "") -> RunPlan:
    """Returns the plan of a run; `requested_by` is who requests it.

    Raises `Conflict` (`agent_unavailable`) for a session whose code agent this server does not have. A stored agent is
    part of the spec, and may have been deleted since.
    """
    asked = read_spec(spec)
    agent = at.code.by_id(asked.agent_id)
    if agent is not None:
        return replace(agent.plan(asked), requested_by=requested_by)
    if asked.agent_id is not None and not STORED_ID.fullmatch(asked.agent_id):
        raise Conflict(f"This server does not have the agent {asked.agent_id!r}.", code="agent_unavailable")
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
