"""The groups of limits in a spec: policies, budgets, and the rules for questions to people.

Each is a struct whose fields have a rule for two values, one of which is above the other. A group that a request sends
is merged into that of its agent or session field by field, and its `rule` is what the log stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

from msgspec import Meta, Raw, Struct, field, json

from weftline.kernel.policy import BudgetRule, OnExceeded, PolicyRule, Unit, amount_issue, greatest, smallest
from weftline.kernel.policy import TagClause as ClauseRule
from weftline.spec.declare import (
    Group,
    Rule,
    Span,
    Wait,
    both,
    check,
    encode_spec,
    fields_of,
    microseconds,
    stored,
    tighten,
    trust_seconds,
)
from weftline.spec.tools import Name, Tags
from weftline.wire.limits import MAX_POLICY_ENTRIES

G = TypeVar("G", bound=Group)


def least(own: Any, above: Any) -> Any:
    return min(own, above)


def either(own: bool, above: bool) -> bool:
    return own or above


def strictest(*words: str) -> Callable[[str, str], str]:
    """Returns the rule for words in the order of their strictness."""

    def merge(own: str, above: str) -> str:
        return max(own, above, key=words.index)

    return merge


def own_value(own: Any, above: Any) -> Any:
    return own


# Budgets


def _amount(unit: Unit) -> Meta:
    return check(partial(amount_issue, unit), schema={"minimum": 0, "maximum": greatest(unit)})


_Usd: TypeAlias = Annotated[float, _amount("usd")]
_Tokens: TypeAlias = Annotated[int, _amount("tokens")]
_Seconds: TypeAlias = Annotated[float, _amount("seconds")]
_Calls: TypeAlias = Annotated[int, _amount("calls")]


class Budget(Group, frozen=True, kw_only=True):
    """The most that each run may spend, together with its subagents' runs: 0 permits nothing, None is unlimited.

    The worst case of a call has to fit before it begins. `calls` are those of tools; `seconds` is the time that model
    and tool calls take. When something does not fit, the run answers in one more turn without tools, for which enough
    is kept (`final_turn`), fails (`stop`), or waits for a person (`ask`). Money needs a model whose price is known.
    """

    usd: Annotated[_Usd | None, tighten(least)] = None
    tokens: Annotated[_Tokens | None, tighten(least)] = None
    seconds: Annotated[_Seconds | None, tighten(least)] = None
    calls: Annotated[_Calls | None, tighten(least)] = None
    on_exceeded: Annotated[OnExceeded | None, tighten(own_value)] = None
    """By default its agent's, or `final_turn`."""

    @property
    def rule(self) -> BudgetRule:
        return BudgetRule(
            None if self.usd is None else smallest("usd", self.usd),
            None if self.tokens is None else smallest("tokens", self.tokens),
            None if self.seconds is None else smallest("seconds", self.seconds),
            None if self.calls is None else smallest("calls", self.calls),
            self.on_exceeded or "final_turn",
        )

    @property
    def limits(self) -> bool:
        """True if it limits anything."""
        return not self.usd is self.tokens is self.seconds is self.calls is None


# Questions to people


class Awaits(Group, frozen=True, kw_only=True):
    """Rules for questions to people."""

    timeout_s: Annotated[Wait | None, tighten(least)] = field(default=None, name="timeoutMs")
    """The time that a person has to answer; without it, forever."""
    on_expired: Annotated[Literal["deny", "end"] | None, tighten(strictest("deny", "end"))] = None
    grant_ttl_s: Annotated[Wait | None, tighten(least)] = field(default=None, name="grantTtlMs")
    """The time for which an approval is valid."""
    four_eyes: Annotated[bool | None, tighten(either)] = None
    """True if the person who requested the run may not approve its calls."""


# Policies


class TagClause(Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Matches a tool with at least one of `allowed_any`, if given, and none of `denied_any`."""

    allowed_any: Tags | None = None
    denied_any: Tags | None = None


_Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]


def policy_problem(policy: Mapping[str, Any]) -> str:
    if policy.get("onMissingFields") == "await_clarification" and policy.get("interruptsAllowed") is False:
        return "onMissingFields: await_clarification asks people, which interruptsAllowed: false forbids"
    return ""


class Policy(Group, frozen=True, kw_only=True):
    """The limits of a run, and the tools that it may use. None, or a count or time of 0, means no limit.

    `per_tool_timeout_s` has time-outs by the name of a tool, or by the beginning of one with a `*` behind it.
    """

    max_tool_calls: _Count | None = None
    """The most tool calls that a run may make. A turn that does not fit is refused as a whole."""
    per_turn_max_tool_calls: _Count | None = None
    """The most calls of one turn that are executed; the others are refused."""
    max_consecutive_failed_tool_calls: _Count | None = None
    """After this many turns in a row whose calls all failed, the next turn is the last one."""
    failure_counting: Literal["turn", "call"] | None = None
    """With `call`, each failed call counts separately."""
    time_budget_s: Span | None = field(default=None, name="timeBudgetMs")
    """Seconds of active time: waiting for people, clients or a resume does not count."""
    plan_timeout_s: Span | None = field(default=None, name="planTimeoutMs")
    """Seconds for one attempt of a model call."""
    tool_timeout_s: Span | None = field(default=None, name="toolTimeoutMs")
    per_tool_timeout_s: Annotated[Mapping[Name, Span], Meta(max_length=MAX_POLICY_ENTRIES)] | None = field(
        default=None, name="perToolTimeoutMs"
    )
    finalizer_grace_s: Span | None = field(default=None, name="finalizerGraceMs")
    """Seconds that the final turn has after the time budget; 10 if not given."""
    restrict_to_tool: Name | None = None
    allowed_tags: Tags | None = None
    """A tool needs at least one of these; with an empty list no tool is left."""
    denied_tags: Tags | None = None
    tag_clauses: Annotated[Sequence[TagClause], Meta(max_length=MAX_POLICY_ENTRIES)] | None = None
    """All of these must hold for a tool."""
    on_missing_fields: Literal["resume", "finalize", "await_clarification"] | None = None
    """The consequence of the first result of a turn that lacks fields: the next turn, the final one, or a question."""
    interrupts_allowed: bool | None = None
    """False if the run may neither be paused nor ask people."""

    @property
    def rule(self) -> PolicyRule | None:
        """The policy as the run's log stores it; None if it limits nothing."""
        per_tool = {tool: microseconds(limit) for tool, limit in (self.per_tool_timeout_s or {}).items()}
        clauses = [ClauseRule(_words(one.allowed_any), _words(one.denied_any) or ()) for one in self.tag_clauses or ()]
        rule = PolicyRule(
            max_tool_calls=self.max_tool_calls or None,
            per_turn_max_tool_calls=self.per_turn_max_tool_calls or None,
            max_consecutive_failed_tool_calls=self.max_consecutive_failed_tool_calls or None,
            failure_counting=self.failure_counting or "turn",
            time_budget_us=microseconds(self.time_budget_s),
            plan_timeout_us=microseconds(self.plan_timeout_s),
            tool_timeout_us=microseconds(self.tool_timeout_s),
            per_tool_timeout_us={tool: limit for tool, limit in per_tool.items() if limit is not None},
            finalizer_grace_us=microseconds(self.finalizer_grace_s),
            restrict_to_tool=self.restrict_to_tool,
            allowed_tags=_words(self.allowed_tags),
            denied_tags=_words(self.denied_tags) or (),
            tag_clauses=tuple(clauses),
            on_missing_fields=None if self.on_missing_fields == "resume" else self.on_missing_fields,
        )
        return None if rule == NO_RULE else rule

    def within(self, above: Policy) -> Policy:
        """Returns the tighter of each limit."""
        rule = (self.rule or NO_RULE).within(above.rule)
        per_tool = {tool: _seconds(limit) for tool, limit in rule.per_tool_timeout_us.items()}
        clauses = [TagClause(one.allowed_any, one.denied_any or None) for one in rule.tag_clauses]
        return Policy(
            max_tool_calls=rule.max_tool_calls,
            per_turn_max_tool_calls=rule.per_turn_max_tool_calls,
            max_consecutive_failed_tool_calls=rule.max_consecutive_failed_tool_calls,
            failure_counting=rule.failure_counting,
            time_budget_s=_seconds(rule.time_budget_us),
            plan_timeout_s=_seconds(rule.plan_timeout_us),
            tool_timeout_s=_seconds(rule.tool_timeout_us),
            per_tool_timeout_s=cast("dict[str, float]", per_tool) or None,
            finalizer_grace_s=_seconds(rule.finalizer_grace_us),
            restrict_to_tool=rule.restrict_to_tool,
            allowed_tags=rule.allowed_tags,
            denied_tags=rule.denied_tags or None,
            tag_clauses=clauses or None,
            on_missing_fields=rule.on_missing_fields,
            interrupts_allowed=False if False in (self.interrupts_allowed, above.interrupts_allowed) else None,
        )

    def over(self, below: Policy) -> Policy:
        """Returns this policy with the values of `below` where it has none: None, and a count or time of 0."""
        kept = {one.name: getattr(below, one.name) for one in fields_of(Policy)}
        for name in kept:
            value = getattr(self, name)
            if name == "per_tool_timeout_s" and value is not None:
                value = {tool: limit for tool, limit in value.items() if limit} or None
            if value is not None and not (value == 0 and value is not False):
                kept[name] = value
        return Policy(**kept)


NO_RULE = PolicyRule()


def _words(given: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(given)


def _seconds(us: int | None) -> float | None:
    return None if us is None else Span(us / 1_000_000)


# Of two groups, one above the other


def _read(kind: type[G], raw: Raw) -> G:
    return cast("G", _decoder(kind).decode(raw))


@cache
def _decoder(kind: type[Group]) -> json.Decoder[Group]:
    return json.Decoder(stored(kind, {}), dec_hook=trust_seconds)


def tighter(kind: type[G], own: G, above: G) -> G:
    """Returns a group with each field of both, by the field's rule if both have it."""
    made: dict[str, Any] = {}
    for one in fields_of(kind):
        mine, theirs = getattr(own, one.name), getattr(above, one.name)
        assert one.tighten is not None
        made[one.name] = mine if theirs is None else theirs if mine is None else one.tighten(mine, theirs)
    return type(above)(**made)


def within(kind: type[Group]) -> Rule:
    """Returns the rule for two groups of limits of which the tighter ones hold."""

    def merge(own: Raw, above: Raw) -> Raw:
        one, other = _read(kind, own), _read(kind, above)
        return _written(tighter(kind, one, other), (one, own), (other, above))

    return both(merge)


@both
def policy_within(own: Raw, above: Raw) -> Raw:
    return Raw(encode_spec(_read(Policy, own).within(_read(Policy, above))))


@both
def policy_over(own: Raw, above: Raw) -> Raw:
    """Replaces a policy value by value, for those who may change it."""
    return Raw(encode_spec(_read(Policy, own).over(_read(Policy, above))))


def _written(made: Group, *known: tuple[Group, Raw]) -> Raw:
    """Encodes a group, unless it is one whose bytes are known."""
    return next((raw for group, raw in known if group == made), None) or Raw(encode_spec(made))


def strictest_word(*words: str) -> Rule:
    """Returns the rule for words in the order of their strictness, of which the stricter one holds."""
    order = [encode_spec(word) for word in words]

    def merge(own: Raw, above: Raw) -> Raw:
        return max(own, above, key=lambda raw: order.index(bytes(raw)))

    return both(merge)
