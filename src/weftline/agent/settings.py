"""Settings of an agent's runs: how its model answers, how far a run may go, and which tools it may use.

Policies and budgets are among them, and code that decides about each turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import force_setattr

from weftline.agent import argument_checks
from weftline.agent.behavior import Behavior, blocking_budgets
from weftline.agent.context import RunInfo
from weftline.failure import Hint
from weftline.kernel import entries
from weftline.kernel.control import OnDeploy
from weftline.kernel.policy import BudgetRule, PolicyRule
from weftline.messages import Sampling
from weftline.spec import groups
from weftline.spec.declare import fields_of
from weftline.spec.walk import in_python, require_group
from weftline.wire.limits import REASONING_LEVELS

ReasoningLevel: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "xhigh"]
LEVELS: Final = REASONING_LEVELS


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of the model. None leaves a setting to the model.

    `reasoning` is a level or 0–100; the answer ends before any of the `stop` strings.
    """

    reasoning: ReasoningLevel | int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: Sequence[str] = ()
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        level = self.reasoning
        if isinstance(level, str):
            if level not in LEVELS:
                raise ValueError(
                    f"reasoning must be one of {', '.join(LEVELS)}, or a number from 0 to 100, not {level!r}"
                )
        elif level is not None:
            argument_checks.number("reasoning", level, maximum=100, whole=True)
        if self.temperature is not None:
            argument_checks.number("temperature", self.temperature)
        if self.top_p is not None:
            argument_checks.number("top_p", self.top_p, maximum=1)
        if self.max_output_tokens is not None:
            argument_checks.number("max_output_tokens", self.max_output_tokens, above=True, whole=True)
        if self.stop != ():
            force_setattr(self, "stop", argument_checks.texts("stop", self.stop, such_as="['END']"))

    @property
    def level(self) -> int | None:
        return LEVELS[self.reasoning] if isinstance(self.reasoning, str) else self.reasoning

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, tuple(self.stop), self.max_output_tokens)

    @property
    def fields(self) -> dict[str, Any]:
        """The settings by the names of a spec's fields."""
        return {
            "reasoning_level": self.reasoning,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stop_sequences": tuple(self.stop),
            "max_output_tokens": self.max_output_tokens,
        }

    def over(self, below: Settings) -> Settings:
        """Returns these settings, with those of `below` where these are not set."""
        return Settings(
            reasoning=below.reasoning if self.reasoning is None else self.reasoning,
            temperature=below.temperature if self.temperature is None else self.temperature,
            top_p=below.top_p if self.top_p is None else self.top_p,
            stop=self.stop or below.stop,
            max_output_tokens=below.max_output_tokens if self.max_output_tokens is None else self.max_output_tokens,
        )


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of a run. A limit that is reached makes the next turn the last one, without tools.

    Loop detection nudges the model when it repeats itself `loop_soft` times and brings the run to its end at
    `loop_hard`; a `loop_soft` of 0 switches it off. `tool_budgets` is how often each tool may be called in a run.
    `max_children` is how many subagents of a run may run at once; further ones wait until one has ended, and 0 means
    none at all. `max_depth` is how deep they may be nested; a call beyond that is refused. `max_cost_usd` includes what
    subagents spend.

    A person has `await_timeout_s` to answer a question; None means no limit. `on_await_expired` says what happens
    then: the call is denied, or the run fails. An approval is valid for `grant_ttl_s` seconds: a call that has not
    started by then is asked about again. With `four_eyes` whoever requested the run may not approve its calls.
    `in_doubt` says who deals with a call that a crash cut off: the model (`report`), or a person (`ask`).
    `on_deploy` says what happens to a durable run if its prompt, tools or code have changed when it continues: it uses
    the new ones (`adopt`), waits for a process with those it started with (`pin`), or asks a person (`ask`).
    A call of an `external` tool may take `external_timeout_s`; after that the run ends as failed, or the model is told
    (`report`).
    """

    max_turns: int | None = None
    max_cost_usd: float | None = None
    loop_soft: int = 3
    loop_hard: int = 6
    tool_budgets: dict[str, int] = {}
    max_retries: int = 3
    output_retries: int = 1
    max_children: int = 3
    max_depth: int = 3
    await_timeout_s: float | None = None
    on_await_expired: Literal["deny", "end"] = "deny"
    grant_ttl_s: float = 900.0
    four_eyes: bool = False
    in_doubt: Literal["report", "ask"] = "report"
    on_deploy: OnDeploy = "adopt"
    external_timeout_s: float = 300.0
    on_external_timeout: Literal["end", "report"] = "end"

    def __post_init__(self) -> None:
        if self.max_turns is not None:
            argument_checks.number("max_turns", self.max_turns, above=True, whole=True)
        if self.max_cost_usd is not None:
            argument_checks.number("max_cost_usd", self.max_cost_usd, above=True)
        for name in ("loop_soft", "loop_hard", "max_retries", "output_retries", "max_children", "max_depth"):
            argument_checks.number(name, getattr(self, name), whole=True)
        for name in ("await_timeout_s", "grant_ttl_s"):
            if name == "grant_ttl_s" or self.await_timeout_s is not None:
                argument_checks.number(name, getattr(self, name), above=True)
        argument_checks.number("external_timeout_s", self.external_timeout_s, above=True)
        argument_checks.choice("on_external_timeout", self.on_external_timeout, ("end", "report"))
        argument_checks.choice("on_await_expired", self.on_await_expired, ("deny", "end"))
        argument_checks.choice("in_doubt", self.in_doubt, ("report", "ask"))
        argument_checks.choice("on_deploy", self.on_deploy, get_args(OnDeploy))
        argument_checks.flag("four_eyes", self.four_eyes)
        argument_checks.expect("tool_budgets", self.tool_budgets, Mapping, "numbers by tool, such as {'search': 5}")
        for tool, count in self.tool_budgets.items():
            argument_checks.number(f"the budget of {tool!r}", count, whole=True)

    def stored(
        self, behavior: Behavior, *, fallbacks: int, check_output: bool, await_gate: bool = False
    ) -> entries.Limits:
        """Returns the limits as the run's log stores them."""
        return entries.Limits(
            max_tool_turns=_UNLIMITED,
            on_max_tool_turns="finalize",
            loop_soft=self.loop_soft,
            loop_hard=max(self.loop_hard, self.loop_soft),
            tool_budgets=_budgets(self.tool_budgets, behavior),
            local_timeout_us=round(self.external_timeout_s * 1_000_000),
            on_local_timeout=self.on_external_timeout,
            max_retries=self.max_retries,
            fallbacks=fallbacks,
            max_turns=self.max_turns,
            max_cost_nusd=None if self.max_cost_usd is None else round(self.max_cost_usd * 1_000_000_000),
            output_retries=self.output_retries,
            check_output=check_output,
            max_children=self.max_children,
            max_depth=self.max_depth,
            tool_output_budget_bytes=behavior.tool_output_budget_bytes,
            await_timeout_us=None if self.await_timeout_s is None else round(self.await_timeout_s * 1_000_000),
            on_await_expired=self.on_await_expired,
            grant_ttl_us=round(self.grant_ttl_s * 1_000_000),
            await_gate=await_gate,
            four_eyes=self.four_eyes,
            in_doubt=self.in_doubt,
            on_deploy=self.on_deploy,
            compaction=None if behavior.compaction is None else behavior.compaction.rule,
        )


def _budgets(limits: Mapping[str, int], behavior: Behavior) -> dict[str, int]:
    """Returns the budgets that block. A behavior's budget for a tool takes precedence over a limit."""
    kept = {tool: count for tool, count in limits.items() if tool not in (behavior.tool_budgets or {})}
    return {**kept, **blocking_budgets(behavior.tool_budgets)}


_UNLIMITED = 2**31 - 1


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
