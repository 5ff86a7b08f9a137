"""Policies: how far a run may go, which tools it may use, and code that decides about each turn.

    Agent(…, policy=Policy(max_tool_calls=20, time_budget_s=60, denied_tags=["costly"]))

A run's own policy overrides its agent's, value by value. A policy engine is code of the agent: it is asked once about
the calls of each turn, before any of them begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias, cast

from weftline.agent.context import RunInfo
from weftline.failure import Hint
from weftline.kernel.policy import PolicyRule, TagClause

_COUNTS: Final = ("max_tool_calls", "per_turn_max_tool_calls", "max_consecutive_failed_tool_calls")
_SECONDS: Final = ("time_budget_s", "plan_timeout_s", "tool_timeout_s", "finalizer_grace_s")
_NUMBERS: Final = frozenset({*_COUNTS, *_SECONDS, "per_tool_timeout_s"})
_TAGS: Final = ("allowed_tags", "denied_tags")
# The bounds of a spec over HTTP: see `weftline.wire.policy_model`.
_MAX_COUNT: Final = 2**31 - 1
_MIN_S: Final = 0.001
_MAX_S: Final = 7 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Policy:
    """None, or a count or time of 0, means no limit. See docs/policies.md for each rule.

    `per_tool_timeout_s` has time-outs by the name of a tool, or by the beginning of one with a `*` behind it.
    """

    max_tool_calls: int | None = None
    """How many tool calls a run may make. A turn that does not fit is refused as a whole."""
    per_turn_max_tool_calls: int | None = None
    """How many calls of one turn are executed; the others are refused."""
    max_consecutive_failed_tool_calls: int | None = None
    """After this many turns in a row whose calls all failed, the next turn is the last one."""
    failure_counting: Literal["turn", "call"] | None = None
    """With `call`, each failed call counts separately."""
    time_budget_s: float | None = None
    """Seconds of active time: waiting for people, clients or a resume does not count."""
    plan_timeout_s: float | None = None
    """Seconds for one attempt of a model call."""
    tool_timeout_s: float | None = None
    per_tool_timeout_s: Mapping[str, float] | None = None
    finalizer_grace_s: float | None = None
    """Seconds that the final turn has after the time budget; 10 if not given."""
    restrict_to_tool: str | None = None
    allowed_tags: Sequence[str] | None = None
    """A tool needs at least one of these; with an empty list no tool is left."""
    denied_tags: Sequence[str] | None = None
    tag_clauses: Sequence[TagClause] | None = None
    """All of these must hold for a tool."""
    on_missing_fields: Literal["resume", "finalize", "await_clarification"] | None = None
    """What follows the first result of a turn that lacks fields: the next turn, the final one, or a question."""
    interrupts_allowed: bool | None = None
    """Whether the run may be paused and may ask people."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 0 <= value <= _MAX_COUNT):
                raise ValueError(f"{name} must be a whole number from 0 to {_MAX_COUNT}, not {value!r}")
        for name in _SECONDS:
            _check_seconds(name, getattr(self, name))
        for tool, seconds in (self.per_tool_timeout_s or {}).items():
            _check_seconds(f"per_tool_timeout_s of {tool!r}", seconds)
        for name in _TAGS:
            _check_tags(name, getattr(self, name))
        for clause in self.tag_clauses or ():
            if not isinstance(cast(object, clause), TagClause):
                raise ValueError(f"tag_clauses must be a list of TagClause, not one with {clause!r}")
            _check_tags("tag_clauses", clause.allowed_any)
            _check_tags("tag_clauses", clause.denied_any)
        if self.failure_counting not in (None, "turn", "call"):
            raise ValueError(f'failure_counting must be "turn" or "call", not {self.failure_counting!r}')
        if not isinstance(cast(object, self.interrupts_allowed), bool | None):
            raise ValueError(f"interrupts_allowed must be True or False, not {self.interrupts_allowed!r}")
        if self.on_missing_fields not in (None, "resume", "finalize", "await_clarification"):
            words = '"resume", "finalize" or "await_clarification"'
            raise ValueError(f"on_missing_fields must be {words}, not {self.on_missing_fields!r}")
        if self.on_missing_fields == "await_clarification" and self.interrupts_allowed is False:
            raise ValueError(
                'on_missing_fields="await_clarification" asks people, which interrupts_allowed=False forbids'
            )

    @property
    def rule(self) -> PolicyRule | None:
        """The policy as the run's log stores it; None if it limits nothing."""
        per_tool = {tool: _us(seconds) for tool, seconds in (self.per_tool_timeout_s or {}).items()}
        rule = PolicyRule(
            max_tool_calls=self.max_tool_calls or None,
            per_turn_max_tool_calls=self.per_turn_max_tool_calls or None,
            max_consecutive_failed_tool_calls=self.max_consecutive_failed_tool_calls or None,
            failure_counting=self.failure_counting or "turn",
            time_budget_us=_us(self.time_budget_s),
            plan_timeout_us=_us(self.plan_timeout_s),
            tool_timeout_us=_us(self.tool_timeout_s),
            per_tool_timeout_us={tool: limit for tool, limit in per_tool.items() if limit is not None},
            finalizer_grace_us=_us(self.finalizer_grace_s),
            restrict_to_tool=self.restrict_to_tool,
            allowed_tags=None if self.allowed_tags is None else tuple(self.allowed_tags),
            denied_tags=tuple(self.denied_tags or ()),
            tag_clauses=tuple(self.tag_clauses or ()),
            on_missing_fields=None if self.on_missing_fields == "resume" else self.on_missing_fields,
        )
        return None if rule == _NO_RULE else rule


_NO_RULE: Final = PolicyRule()


def rule_of(own: Policy | None, agents: Policy | None, *, engine: bool) -> tuple[PolicyRule | None, bool]:
    """Returns the rule of a run, whose own policy overrides its agent's, and whether the run may be interrupted."""
    check_policy(own)
    policy = own if agents is None else agents if own is None else _over(own, agents)
    rule = None if policy is None else policy.rule
    if engine:
        rule = PolicyRule(engine=True).within(rule)
    return rule, policy is None or policy.interrupts_allowed is not False


def _over(own: Policy, agents: Policy) -> Policy:
    """Overrides the agent's values. None, and a count or time of 0, keep the agent's."""
    merged = copy(agents)
    for one in fields(Policy):
        value = getattr(own, one.name)
        if one.name == "per_tool_timeout_s" and own.per_tool_timeout_s is not None:
            value = {tool: seconds for tool, seconds in own.per_tool_timeout_s.items() if seconds}
        if value is not None and (value or one.name not in _NUMBERS):
            object.__setattr__(merged, one.name, value)
    return merged


def _check_seconds(name: str, value: object) -> None:
    if value is None:
        return
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
    if number and not _MIN_S <= number <= _MAX_S:
        raise ValueError(f"{name} must be a number of seconds: 0, or {_MIN_S} to {_MAX_S} (a week), not {value!r}")


def _check_tags(name: str, tags: object) -> None:
    if tags is None:
        return
    listed = list(cast("Sequence[object]", tags)) if isinstance(tags, Sequence | Set) else None
    if isinstance(tags, str) or listed is None or not all(isinstance(tag, str) and tag for tag in listed):
        raise ValueError(f"{name} must be a list of tags, which are strings, not {tags!r}")


def check_policy(given: object) -> None:
    """Raises `TypeError` for anything but a policy: an empty dict would be one without limits."""
    if not isinstance(given, Policy | None):
        raise TypeError(f"policy must be a Policy, such as Policy(max_tool_calls=20), not {given!r}")


def _us(seconds: float | None) -> int | None:
    return max(round(seconds * 1_000_000), 1) if seconds else None


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
