"""Policies and budgets: how far a run may go, which tools it may use, and code that decides about each turn.

    Agent(…, policy=Policy(max_tool_calls=20, time_budget_s=60, denied_tags=["costly"]))

A run's own policy overrides its agent's, value by value. A policy engine is code of the agent: it is asked once about
the calls of each turn, before any of them begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from weftline.agent.context import RunInfo
from weftline.failure import Hint
from weftline.kernel.policy import BudgetRule, PolicyRule
from weftline.spec import groups
from weftline.spec.declare import fields_of
from weftline.spec.walk import in_python, require_group


class Policy(groups.Policy, frozen=True, kw_only=True):
    """The limits of a run, and the tools that it may use; see docs/policies.md for each rule.

    None, or a count or time of 0, means no limit. `per_tool_timeout_s` has time-outs by the name of a tool, or by the
    beginning of one with a `*` behind it.
    """

    def __post_init__(self) -> None:
        require_group(self, groups.Policy)
        plain = {one.wire: getattr(self, one.name) for one in fields_of(groups.Policy)}
        if problem := groups.policy_problem(plain):
            raise ValueError(in_python(groups.Policy, problem))


class Budget(groups.Budget, frozen=True, kw_only=True):
    __doc__ = groups.Budget.__doc__

    def __post_init__(self) -> None:
        require_group(self, groups.Budget)


def budget_of(own: groups.Budget | None, above: groups.Budget | None) -> BudgetRule | None:
    """Returns a run's own budget, within its agent's."""
    budget = own if above is None else above if own is None else groups.tighter(groups.Budget, own, above)
    return None if budget is None else budget.rule


def rule_of(own: groups.Policy | None, agents: groups.Policy | None, *, engine: bool) -> tuple[PolicyRule | None, bool]:
    """Returns the rule of a run, whose own policy overrides its agent's, and whether the run may be interrupted."""
    check_policy(own)
    policy = own if agents is None else agents if own is None else own.over(agents)
    rule = None if policy is None else policy.rule
    if engine:
        rule = PolicyRule(engine=True).within(rule)
    return rule, policy is None or policy.interrupts_allowed is not False


def check_policy(given: object) -> None:
    """Raises `TypeError` for anything but a policy: an empty dict would be one without limits."""
    if not isinstance(given, groups.Policy | None):
        raise TypeError(f"policy must be a Policy, such as Policy(max_tool_calls=20), not {given!r}")


# Engines


@dataclass(frozen=True)
class Caps:
    """The rest of a run's caps; None where there is no cap. In a decision: an upper bound for the rest."""

    tool_calls: int | None = None
    consecutive_failures: int | None = None


@dataclass(frozen=True)
class RequestedCall:
    id: str
    tool: str
    args: Mapping[str, Any]


@dataclass(frozen=True)
class OfferedTool:
    name: str
    description: str
    tags: frozenset[str]
    title: str = ""
    """The name that people read."""


@dataclass(frozen=True, kw_only=True)
class PolicyTurn:
    """The calls of a turn, which a policy engine decides about before any of them begins."""

    run: RunInfo
    turn: int
    calls: Sequence[RequestedCall]
    tools: Sequence[OfferedTool]
    """All tools that the run may use."""
    left: Caps
    labels: Mapping[str, str]
    """The run's labels, and those that earlier decisions added."""
    unavailable: Sequence[str] = ()
    """Tools called in the previous turn that did not exist or were not allowed."""
    hint: Hint | None = None
    """The hint of the latest failed call that had one."""


@dataclass(frozen=True, kw_only=True)
class PolicyDecision:
    """A policy engine's decision about a turn. It can only restrict.

    With `disable_tools` none of the calls is made, and the run is brought to an end.
    """

    allowed_tools: Sequence[str] | None = None
    """The tools that may be called in this turn: None for all, an empty list for none."""
    caps: Caps = field(default_factory=Caps)
    disable_tools: bool = False
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to the run's labels, for later turns and tools."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON, for readers of the log."""


PolicyEngine: TypeAlias = Callable[[PolicyTurn], PolicyDecision | Awaitable[PolicyDecision]]
"""Code that decides about each turn. An exception blocks the calls of that turn."""


@dataclass(frozen=True, kw_only=True)
class BasicPolicy:
    """An engine based on lists. Blocked tools take precedence; with a list of allowed tools, all others are blocked.

    A tool that was unavailable when called is withheld for one turn.
    """

    blocked_tools: Sequence[str] = ()
    blocked_tags: Sequence[str] = ()
    allowed_tools: Sequence[str] | None = None
    allowed_tags: Sequence[str] | None = None
    label: str = "basic"

    def __call__(self, turn: PolicyTurn) -> PolicyDecision:
        labels = {"policy_engine": self.label}
        if turn.unavailable:
            labels["policy_hint"] = "tool_unavailable"
        return PolicyDecision(
            allowed_tools=[tool.name for tool in turn.tools if self._allows(tool, turn.unavailable)], labels=labels
        )

    def _allows(self, tool: OfferedTool, unavailable: Sequence[str]) -> bool:
        if tool.name in self.blocked_tools or tool.name in unavailable or not tool.tags.isdisjoint(self.blocked_tags):
            return False
        if self.allowed_tools is None and self.allowed_tags is None:
            return True
        return tool.name in (self.allowed_tools or ()) or not tool.tags.isdisjoint(self.allowed_tags or ())
