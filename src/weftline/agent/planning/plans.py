"""Makes the plan of an agent's run: what is stored of the agent when a run begins, in this process or for a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.json import decode
from msgspec.structs import replace

from weftline.agent import budget as budgeting
from weftline.agent.behavior import Behavior, resolved
from weftline.agent.budget import Budget
from weftline.agent.definition import Definition
from weftline.agent.hooking.calling import Hook
from weftline.agent.hooks import AwaitGate, OutputReady
from weftline.agent.policy import Policy, rule_of
from weftline.agent.settings import Limits, Settings
from weftline.engine_options import EngineOptions
from weftline.errors import InvalidRequest
from weftline.kernel.control import stricter
from weftline.kernel.entries import Limits as StoredLimits
from weftline.kernel.policy import BudgetRule, PolicyRule
from weftline.messages import Message, User
from weftline.plan import RunPlan, ServerRef, StoredRef
from weftline.reminders import Reminder
from weftline.runtime.agent_code.code import ChildLimits
from weftline.spec.fields import RunSpec
from weftline.spec.plan import to_plan
from weftline.trace_context import new_trace

_NO_SETTINGS = Settings()
_NO_LIMITS = StoredLimits()


def plan_of(
    agent: Definition[Any, Any],
    *,
    code: str,
    name: str | None = None,
    model: str | None,
    messages: Sequence[Message],
    given: int = 0,
    settings: Settings = _NO_SETTINGS,
    limits: Limits | None = None,
    policy: Policy | None = None,
    budget: Budget | None = None,
    hooks: Sequence[Hook[Any]] = (),
    behavior: Behavior | None = None,
    only: Sequence[str] | None = None,
    fallbacks: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    requested_by: str = "",
    stream_arguments: bool = False,
    turn_id: str = "",
    engine: EngineOptions | None = None,
    reminders: tuple[Reminder, ...] = (),
    durable: bool = True,
) -> RunPlan:
    """Returns the plan of a run. Values given here override the agent's own.

    `code` is the name that the agent is registered under, `name` a different one that people know it by.
    """
    settings = settings.over(agent.settings)
    limits = limits or agent.limits
    fallbacks = tuple(fallbacks) or agent.fallbacks
    output = agent.output_type
    points = {one.point for one in (*agent.hooks, *hooks)}
    checks = output is not None or OutputReady in points
    rule, interrupts = rule_of(policy, agent.policy, engine=agent.policy_engine is not None)
    wanted = resolved(behavior, agent.behavior)
    stored = limits.stored(
        wanted,
        fallbacks=len(fallbacks),
        check_output=checks,
        await_gate=AwaitGate in points,
    )
    return RunPlan(
        messages=tuple(messages),
        name=code if name is None else name,
        model=model,
        fallbacks=fallbacks,
        system=agent.instructions if isinstance(agent.instructions, str) else None,
        reasoning=settings.level,
        sampling=settings.sampling,
        output_schema=None if output is None else output.schema,
        limits=replace(
            stored, policy=rule, interrupts_allowed=interrupts, budget=budgeting.rule_of(budget, agent.budget)
        ),
        behavior=behavior.stored() if behavior is not None and durable else {},
        metadata=dict(metadata or {}),
        labels=dict(labels or {}),
        given=given,
        code=code,
        only=None if only is None else tuple(only),
        requested_by=requested_by,
        stream_arguments=stream_arguments,
        turn_id=turn_id,
        engine=engine,
        reminders=reminders,
        model_result_limit_bytes=wanted.model_result_limit_bytes,
        own_policy=None if policy is None else policy.rule,
        trace=new_trace() if any(one.traces for one in agent.observers) else None,
    )


def copy_of(parent: RunPlan, task: str, *, system: str | None) -> RunPlan:
    """Returns the plan of a child that copies its parent, with another task and optionally other instructions."""
    return replace(
        parent,
        messages=(User.of(task),),
        system=system or parent.system,
        # Client tools are offered to the followers of the parent, and the child has none.
        tools=tuple([ref for ref in parent.tools if isinstance(ref, ServerRef | StoredRef)]),
        output_schema=None,
        limits=replace(parent.limits, check_output=False, budget=None),  # its parent pays for it
        given=0,
        reminders=(),
        engine=None,
    )


def child_of(
    parent: RunPlan, plan: RunPlan, *, name: str, limits: ChildLimits, inherit_policy: bool = False
) -> RunPlan:
    """Returns the plan for a child, within the limits that its parent leaves.

    With `inherit_policy`, it is also within the parent's own policy.
    """
    own = plan.limits
    given = parent.own_policy if inherit_policy else None
    costs = [cost for cost in (own.max_cost_nusd, limits.max_cost_nusd) if cost is not None]
    above = parent.limits
    capped = replace(
        own,
        max_depth=min(own.max_depth, limits.max_depth),
        max_cost_nusd=min(costs) if costs else None,
        # Its questions go to the hooks above it first, and are answered under the rules of the whole run.
        await_gate=own.await_gate or above.await_gate,
        nobody_to_ask=above.nobody_to_ask,
        four_eyes=own.four_eyes or above.four_eyes,
        interrupts_allowed=own.interrupts_allowed and above.interrupts_allowed,
        policy=_within_time(own.policy if given is None else given.within(own.policy), limits.time_left_us),
    )
    return replace(
        plan,
        name=name,
        limits=capped,
        path=(*parent.path, name),
        metadata={},
        labels=parent.labels,
        requested_by=parent.requested_by,
        turn_id=parent.turn_id,
        own_policy=plan.own_policy if given is None else given,  # a copy has its parent's
    )


def _within_time(rule: PolicyRule | None, left_us: int | None) -> PolicyRule | None:
    """Limits a child to the time that its parent has left, so that it finishes by itself."""
    return rule if left_us is None else PolicyRule(time_budget_us=left_us).within(rule)


def client_plan(agent: Definition[Any, Any], asked: RunSpec, *, code: str, model: str | None) -> RunPlan:
    """The plan of a run that a client asked for, from the spec of its request.

    As with a stored agent, the client may name another model and settings, and bring its own tools. The instructions,
    the output type and the limits are the agent's; a client may tighten limits, and give an output schema if the agent
    has none.

    Raises:
        InvalidRequest: if the output schema is not the agent's.
    """
    sent = to_plan(asked)
    sampling = sent.sampling
    settings = Settings(
        reasoning=sent.reasoning,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        stop=sampling.stop,
        max_output_tokens=sampling.max_output_tokens,
    )
    plan = plan_of(
        agent,
        code=code,
        model=sent.model or model,
        messages=sent.messages,
        given=sent.given,
        settings=settings,
        fallbacks=sent.fallbacks,
        metadata=sent.metadata,
        labels=sent.labels,
        requested_by=sent.requested_by,
        stream_arguments=sent.stream_arguments,
        turn_id=sent.turn_id,
        engine=sent.engine,
    )
    own, schema = plan.output_schema, sent.output_schema
    if own is not None and schema is not None and decode(schema.schema) != decode(own.schema):
        raise InvalidRequest(f"The agent {code!r} has its own output type: leave out the schema.")
    tighter = sent.limits.max_tool_turns < _NO_LIMITS.max_tool_turns
    limits = replace(
        plan.limits,
        max_tool_turns=sent.limits.max_tool_turns if tighter else plan.limits.max_tool_turns,
        on_max_tool_turns=sent.limits.on_max_tool_turns if tighter else plan.limits.on_max_tool_turns,
        tool_budgets=_tightest(sent.limits.tool_budgets, plan.limits.tool_budgets),
        local_timeout_us=_shorter(_local_timeout_us(asked), plan.limits.local_timeout_us),
        policy=plan.limits.policy if sent.limits.policy is None else sent.limits.policy.within(plan.limits.policy),
        interrupts_allowed=plan.limits.interrupts_allowed and sent.limits.interrupts_allowed,
        budget=_spendable(sent.limits.budget, plan.limits.budget, asked),
        on_local_timeout="report"
        if "report" in (sent.limits.on_local_timeout, plan.limits.on_local_timeout)
        else "end",
        leases=sent.limits.leases,
        in_doubt="ask" if "ask" in (sent.limits.in_doubt, plan.limits.in_doubt) else "report",
        await_timeout_us=_smaller(sent.limits.await_timeout_us, plan.limits.await_timeout_us),
        on_await_expired="end" if "end" in (sent.limits.on_await_expired, plan.limits.on_await_expired) else "deny",
        grant_ttl_us=plan.limits.grant_ttl_us
        if asked.awaits is None or asked.awaits.grant_ttl_s is None
        else min(sent.limits.grant_ttl_us, plan.limits.grant_ttl_us),
        four_eyes=sent.limits.four_eyes or plan.limits.four_eyes,
        on_deploy=stricter(sent.limits.on_deploy, plan.limits.on_deploy),
    )
    return replace(
        plan,
        name=sent.name,
        agent_id=sent.agent_id,
        tools=sent.tools,
        output_schema=plan.output_schema or sent.output_schema,
        limits=limits,
        own_policy=sent.limits.policy,
    )


def _smaller(one: int | None, other: int | None) -> int | None:
    given = [us for us in (one, other) if us is not None]
    return min(given) if given else None


def _local_timeout_us(asked: RunSpec) -> int | None:
    timeout_ms = None if asked.budgets is None else asked.budgets.local_tool_timeout_ms
    return None if timeout_ms is None else timeout_ms * 1000


def _spendable(sent: BudgetRule | None, own: BudgetRule | None, asked: RunSpec) -> BudgetRule | None:
    """Returns the tighter of two budgets. What happens at its end is the agent's, unless the request says."""
    if sent is None or own is None:
        return own if sent is None else sent
    on_exceeded = None if asked.budget is None else asked.budget.on_exceeded
    return replace(sent.within(own), on_exceeded=on_exceeded or own.on_exceeded)


def _shorter(sent_us: int | None, own_us: int) -> int:
    """Returns the shorter time for calls that are executed outside; an agent's default does not limit the request."""
    if sent_us is None or own_us == _NO_LIMITS.local_timeout_us:
        return own_us if sent_us is None else sent_us
    return min(sent_us, own_us)


def _tightest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Returns how often each tool may be called under both budgets."""
    return {tool: min(budgets[tool] for budgets in (one, other) if tool in budgets) for tool in {**one, **other}}
