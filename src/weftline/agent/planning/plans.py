"""Makes the plan of an agent's run: what is stored of the agent when a run begins, in this process or for a client.

A run may have instructions or tools that replace its agent's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, TypeVar

from msgspec.json import decode
from msgspec.structs import replace

from weftline.agent.agent_tools import AgentTool, is_toolset, name_of
from weftline.agent.behavior import resolved
from weftline.agent.definition import Definition
from weftline.agent.hooks import AwaitGate, OutputReady
from weftline.agent.options import LocalSpec, RunOptions
from weftline.agent.settings import Settings, budget_of, rule_of
from weftline.agent.subagents import Subagent
from weftline.errors import InvalidRequest
from weftline.kernel.bodies import encode
from weftline.kernel.entries import Limits as StoredLimits
from weftline.kernel.policy import PolicyRule, tighter
from weftline.messages import User
from weftline.plan import RunPlan, ServerRef, StoredRef
from weftline.runtime.agent_code.code import ChildLimits
from weftline.runtime.agent_code.seats import rules_of
from weftline.runtime.engine import Engine
from weftline.spec.fields import RunSpec
from weftline.spec.groups import either, least, own_value, strictest
from weftline.spec.merge import copies_within
from weftline.spec.plan import COPIED_LIMITS, IN_LIMITS, copied, level_of, limits_asked, to_plan
from weftline.tools.base import Tool, Toolset
from weftline.trace_context import new_trace
from weftline.wire.limits import MAX_TOOL_TURNS


def plan_of(
    agent: Definition[Any, Any],
    asked: LocalSpec,
    *,
    code: str,
    model: str | None,
    name: str | None = None,
    durable: bool = True,
) -> RunPlan:
    """Returns the plan of a run. What is asked for overrides the agent's own.

    `code` is the name that the agent is registered under, `name` a different one that people know it by.
    """
    settings = Settings(
        reasoning=level_of(asked.reasoning_level),
        temperature=asked.temperature,
        top_p=asked.top_p,
        stop=asked.stop_sequences or (),
        max_output_tokens=asked.max_output_tokens,
    ).over(agent.settings)
    limits, behavior = asked.limits or agent.limits, asked.behavior
    fallbacks = asked.model_fallbacks or agent.fallbacks
    output = agent.output_type
    points = {one.point for one in (*agent.hooks, *asked.hooks)}
    checks = output is not None or OutputReady in points
    rule, interrupts = rule_of(asked.policy, agent.policy, engine=agent.policy_engine is not None)
    wanted = resolved(behavior, agent.behavior)
    stored = limits.stored(
        wanted,
        fallbacks=len(fallbacks),
        check_output=checks,
        await_gate=AwaitGate in points,
    )
    models: tuple[str | None, ...] = ()
    if agent.seats:
        first, *others = agent.seats
        first = replace(first, model=model, fallbacks=tuple(fallbacks))
        models = tuple([one for seat in (first, *others) for one in (seat.model, *seat.fallbacks)])
        stored = replace(stored, seats=rules_of((first, *others)), max_side_turns=agent.max_side_turns)
        if any(one.side == "b" for one in others):
            stored = replace(stored, compaction=None)  # a summary would have to be one for each side
    return RunPlan(
        messages=tuple(asked.conversation),
        name=code if name is None else name,
        model=model,
        fallbacks=fallbacks,
        models=models,
        system=agent.instructions if isinstance(agent.instructions, str) else None,
        reasoning=settings.level,
        sampling=settings.sampling,
        output_schema=None if output is None else output.schema,
        limits=replace(
            stored,
            policy=rule,
            interrupts_allowed=interrupts,
            budget=budget_of(asked.budget, agent.budget),
            **copied(asked, COPIED_LIMITS),
        ),
        behavior=behavior.stored() if behavior is not None and durable else {},
        metadata=dict(asked.metadata or {}),
        given=asked.given,
        code=code,
        only=None if asked.only is None else tuple(asked.only),
        requested_by=asked.requested_by,
        engine=asked.engine,
        reminders=asked.reminders,
        model_result_limit_bytes=wanted.model_result_limit_bytes,
        own_policy=None if asked.policy is None else asked.policy.rule,
        trace=new_trace() if any(one.traces for one in agent.observers) else None,
        on_thread=agent.on_thread is not None,
        **copied(asked),
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
    given = {one: getattr(asked, one) for one in RunSpec.__struct_fields__ if one not in IN_LIMITS}
    if asked.budget is not None and asked.budget.limits:
        given["budget"] = asked.budget
    given["model_fallbacks"] = asked.model_fallbacks
    own_spec = LocalSpec(**given, conversation=sent.messages, engine=sent.engine)
    plan = plan_of(agent, own_spec, code=code, model=sent.model or model)
    own, schema = plan.output_schema, sent.output_schema
    if own is not None and schema is not None and decode(schema.schema) != decode(own.schema):
        raise InvalidRequest(f"The agent {code!r} has its own output type: leave out the schema.")
    return replace(
        plan,
        name=sent.name,
        agent_id=sent.agent_id,
        tools=sent.tools,
        output_schema=plan.output_schema or sent.output_schema,
        limits=_within(plan.limits, asked, limits_asked(asked, sent.tools)),
        own_policy=sent.limits.policy,
    )


def _within(own: StoredLimits, asked: RunSpec, limits: dict[str, Any]) -> StoredLimits:
    """Returns an agent's limits with those that a client asks for, each merged by its rule."""
    if limits.get("max_tool_turns", MAX_TOOL_TURNS) < MAX_TOOL_TURNS:
        limits.setdefault("on_max_tool_turns", "error")
    else:  # any client has as many, which do not limit the agent
        limits = {name: value for name, value in limits.items() if name not in _TURNS}
    merged = {name: WITHIN[name](value, getattr(own, name)) for name, value in limits.items() if name in WITHIN}
    return replace(own, **merged, **copies_within(asked, own, COPIED_LIMITS))


_TURNS = ("max_tool_turns", "on_max_tool_turns")
_DEFAULT_TIMEOUT_US = StoredLimits().local_timeout_us


def _shorter(sent_us: int, own_us: int) -> int:
    """Returns the shorter time for calls that are executed outside; an agent's default does not limit the request."""
    return sent_us if own_us == _DEFAULT_TIMEOUT_US else min(sent_us, own_us)


def _tightest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Returns how often each tool may be called under both budgets."""
    return {tool: min(budgets[tool] for budgets in (one, other) if tool in budgets) for tool in {**one, **other}}


WITHIN: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "max_tool_turns": least,
    "on_max_tool_turns": own_value,
    "tool_budgets": _tightest,
    "local_timeout_us": _shorter,
    "on_local_timeout": strictest("end", "report"),
    "policy": PolicyRule.within,
    "interrupts_allowed": least,  # False forbids them
    "leases": own_value,
    "in_doubt": strictest("report", "ask"),
    "await_timeout_us": tighter,
    "on_await_expired": strictest("deny", "end"),
    "grant_ttl_us": least,
    "four_eyes": either,
}
"""How a limit that a client asks for merges with that of an agent in code. What is stored as it was sent merges by the
rule of its field in `RunSpec` instead."""
AGENTS: Final = frozenset(
    {"loop_soft", "loop_hard", "max_retries", "in_doubt_followup", "max_concurrent_calls", "max_turns", "max_cost_nusd"}
    | {"output_retries", "check_output", "max_children", "max_depth", "tool_output_budget_bytes", "await_gate"}
    | {"nobody_to_ask", "compaction", "seats", "max_side_turns"}
)
"""Limits of an agent in code that no client changes."""
PLANNED: Final = frozenset({"fallbacks", "budget"})
"""Those that `plan_of` merges, for clients as for code."""


class ChildPlans:
    """Makes the plan of a child: its agent's own or a copy of its parent's, within the limits that the parent leaves.

    `model_id` returns the model of an agent that runs under a code name; `engine` checks the plans.
    """

    def __init__(
        self, *, model_id: Callable[[Definition[Any, Any], str], Awaitable[str | None]], engine: Engine
    ) -> None:
        self._model_id = model_id
        self._engine = engine

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
        await self._engine.check(plan, workspace=workspace)
        return plan


def subagents_of(agent: Definition[Any, Any]) -> dict[str, Definition[Any, Any]]:
    """Returns the direct subagents of an agent, by the name of the tool that calls each."""
    return {tool.name: tool.agent for tool in agent.tools if isinstance(tool, Subagent) and tool.agent is not None}


A = TypeVar("A", bound=Definition[Any, Any])


def with_overrides(agent: A, options: RunOptions[Any]) -> A:
    """Returns the agent as one run uses it. Raises `ValueError` or `TypeError` for invalid tools."""
    instructions, tools = options.get("instructions"), options.get("tools")
    if instructions is None and tools is None:
        return agent
    return agent.with_overrides(instructions=instructions, tools=tools)


def added_toolsets(agent: Definition[Any, Any], other: Definition[Any, Any]) -> tuple[Toolset, ...]:
    """Returns the toolsets that `other` has and the agent does not."""
    own = {id(one) for one in agent.tools}
    return tuple([one for one in other.tools if is_toolset(one) and id(one) not in own])


def digest_of_call(agent: Definition[Any, Any], plan: RunPlan, options: RunOptions[Any], *, durable: bool) -> bytes:
    """Returns a digest of a call's input and options, to compare calls under the same key.

    The agent's own definition is not part of it: the next deployment may change its prompt, policy or limits, and a
    call repeated after that still means the same run.
    """
    nobody = Definition[Any, Any](name=agent.name)
    asked = LocalSpec(
        conversation=plan.messages,
        given=plan.given,
        limits=options.get("limits"),
        policy=options.get("policy"),
        behavior=options.get("behavior"),
        metadata=plan.metadata,
        labels=plan.labels,
        requested_by=plan.requested_by,
        **options.get("settings", Settings()).fields,
    )
    without = plan_of(
        with_overrides(nobody, {"instructions": options["instructions"]}) if "instructions" in options else nobody,
        asked,
        code=agent.name or "",
        model=plan.model if "model" in options else None,
        durable=durable,
    )
    tools = options.get("tools")
    names = None if tools is None else [name_of(one) for one in tools]
    rest = (options.get("thread"), names, *([options["run_id"]] if "run_id" in options else ()))
    return sha256(encode(without) + repr(rest).encode()).digest()


def own_tools(agent: Definition[Any, Any], given: Sequence[AgentTool[Any]]) -> list[Tool | Toolset]:
    """Returns the agent's own tools that a durable run is given.

    Raises `InvalidRequest` for any other tool: the process that continues the run would not have it.
    """
    found: list[Tool | Toolset] = []
    for one in given:
        same = [own for own in agent.tools if own is one or getattr(own, "__wrapped__", None) is one]
        if not same:
            raise InvalidRequest(
                f"A durable run cannot be given the tool {name_of(one) or one!r}: it is not one of its agent's, and the"
                " next process would not have it."
            )
        found += same
    return found


def require_text(instructions: object) -> None:
    """Raises `InvalidRequest` for instructions that a durable run cannot have."""
    if not isinstance(instructions, str | None):
        raise InvalidRequest(
            "The instructions of a durable run must be a string: the next process would not have a function."
        )
