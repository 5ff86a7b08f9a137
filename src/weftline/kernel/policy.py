"""The log's vocabulary for what a run may do and spend: policies, budgets, and the amounts that count."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Cap: TypeAlias = Literal["time_budget", "tool_cap", "failure_cap", "policy"]
"""Which cap of a policy brought a run to its end."""
FinalReason: TypeAlias = Literal[
    "loop_detected",
    "max_tool_turns",
    "max_turns",
    "max_cost",
    "time_budget",
    "tool_cap",
    "failure_cap",
    "policy",
    "budget",
    "tool_failure",
    "max_session_turns",
]
"""Why a turn is the final one, without tools."""
GRACE_US = 10_000_000


def tighter(one: int | None, other: int | None) -> int | None:
    """The smaller of two limits; None means unlimited."""
    return one if other is None else other if one is None else min(one, other)


MissingFields: TypeAlias = Literal["finalize", "await_clarification"]


def _stricter(one: MissingFields | None, other: MissingFields | None) -> MissingFields | None:
    """Of two rules for a result with missing fields, the one that leaves less to the model."""
    return "finalize" if "finalize" in (one, other) else one or other


class TagClause(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Matches a tool with at least one of `allowed_any`, unless that is None, and none of `denied_any`."""

    allowed_any: tuple[str, ...] | None = None
    denied_any: tuple[str, ...] = ()


class PolicyRule(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The policy of one run. Stored in full, like `Limits`."""

    max_tool_calls: int | None = None
    per_turn_max_tool_calls: int | None = None
    max_consecutive_failed_tool_calls: int | None = None
    failure_counting: Literal["turn", "call"] = "turn"
    """Whether a turn whose calls all failed counts as one failure, or each failed call counts."""
    time_budget_us: int | None = None
    """Limits active time: waiting for people, clients or a resume does not count."""
    plan_timeout_us: int | None = None
    """The time-out of one attempt of a model call, if the server's own is not shorter."""
    tool_timeout_us: int | None = None
    per_tool_timeout_us: dict[str, int] = {}
    """By tool name, or by a prefix followed by `*`."""
    finalizer_grace_us: int | None = None
    restrict_to_tool: str | None = None
    allowed_tags: tuple[str, ...] | None = None
    """A tool needs at least one of these; an empty tuple allows no tool."""
    denied_tags: tuple[str, ...] = ()
    tag_clauses: tuple[TagClause, ...] = ()
    on_missing_fields: MissingFields | None = None
    """What follows a result with missing fields: the final turn, a question to a person, or just the next turn."""
    engine: bool = False
    """Whether the agent's code is asked about each turn with calls."""

    def allows(self, tool: str, tags: frozenset[str]) -> bool:
        """Returns True if the filters leave a tool with this name and these tags."""
        if self.restrict_to_tool is not None and tool != self.restrict_to_tool:
            return False
        clauses = (TagClause(self.allowed_tags, self.denied_tags), *self.tag_clauses)
        return all(
            (one.allowed_any is None or not tags.isdisjoint(one.allowed_any)) and tags.isdisjoint(one.denied_any)
            for one in clauses
        )

    def within(self, above: PolicyRule | None) -> PolicyRule:
        """The tighter of each rule: the policy of a run that asks for this one under the policy `above`."""
        if above is None:
            return self
        clauses = [*above.tag_clauses, *self.tag_clauses]
        if above.allowed_tags is not None and self.allowed_tags is not None:
            clauses.append(TagClause(above.allowed_tags))
        tool = above.restrict_to_tool if self.restrict_to_tool is None else self.restrict_to_tool
        if above.restrict_to_tool not in (None, tool):
            clauses.append(TagClause(()))
        # A more specific rule overrides a general one, so each must be within what the other policy says for that tool.
        patterns = [*above.per_tool_timeout_us, *self.per_tool_timeout_us]
        limits = {name: tighter(above._tool_timeout_us(name), self._tool_timeout_us(name)) for name in patterns}
        rules = {name: limit for name, limit in limits.items() if limit is not None}
        return PolicyRule(
            max_tool_calls=tighter(above.max_tool_calls, self.max_tool_calls),
            per_turn_max_tool_calls=tighter(above.per_turn_max_tool_calls, self.per_turn_max_tool_calls),
            max_consecutive_failed_tool_calls=tighter(
                above.max_consecutive_failed_tool_calls, self.max_consecutive_failed_tool_calls
            ),
            failure_counting="call" if "call" in (above.failure_counting, self.failure_counting) else "turn",
            time_budget_us=tighter(above.time_budget_us, self.time_budget_us),
            plan_timeout_us=tighter(above.plan_timeout_us, self.plan_timeout_us),
            tool_timeout_us=tighter(above.tool_timeout_us, self.tool_timeout_us),
            per_tool_timeout_us=rules,
            finalizer_grace_us=tighter(above.finalizer_grace_us, self.finalizer_grace_us),
            restrict_to_tool=tool,
            allowed_tags=above.allowed_tags if self.allowed_tags is None else self.allowed_tags,
            denied_tags=tuple(dict.fromkeys((*above.denied_tags, *self.denied_tags))),
            tag_clauses=tuple(clauses),
            on_missing_fields=_stricter(above.on_missing_fields, self.on_missing_fields),
            engine=above.engine or self.engine,
        )

    @property
    def filters(self) -> bool:
        """True if there is anything that `allows` could reject."""
        given = self.restrict_to_tool is not None or self.allowed_tags is not None
        return given or bool(self.denied_tags or self.tag_clauses)

    def tool_timeout_s(self, tool: str, own_s: float | None) -> float | None:
        """The time-out of a call, given the tool's own time-out, if any; None if there is none at all.

        The rule with the tool's name applies, else the one with the longest matching prefix, else the shorter of the
        tool's own time-out and the one for all tools.
        """
        found = self._rule_us(tool)
        if found is not None:
            return found / 1_000_000
        limits = [own_s] if own_s else []
        if self.tool_timeout_us:
            limits.append(self.tool_timeout_us / 1_000_000)
        return min(limits) if limits else None

    def _tool_timeout_us(self, pattern: str) -> int | None:
        """The time-out of all tools that match a pattern and have no more specific rule."""
        found = self._rule_us(pattern)
        return self.tool_timeout_us or None if found is None else found

    def _rule_us(self, tool: str) -> int | None:
        rules = {name: limit for name, limit in self.per_tool_timeout_us.items() if limit > 0}
        if tool in rules:
            return rules[tool]
        prefixes = [name for name in rules if name.endswith("*") and tool.startswith(name[:-1])]
        return rules[max(prefixes, key=len)] if prefixes else None


class _Head(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Like `entries.Head`."""


class CapReached(_Head, frozen=True, tag="cap.reached"):
    """The run has reached a cap of its policy: once its calls are closed, the final turn follows."""

    reason: Cap
    limit: int = 0
    """Calls, failures, or microseconds of active time."""
    used: int = 0


class RunUnattended(_Head, frozen=True, tag="run.unattended"):
    """No process was running since the previous entry although the run's clock was: that time does not count as active.

    A process that takes over from another appends this first.
    """


class PolicyDecided(_Head, frozen=True, tag="policy.decided"):
    """The policy engine's decision about the calls of a turn. Body: `PolicyBody`.

    `failed` means that the engine raised, or returned something malformed: no call of the turn may run.
    """

    turn: int
    allowed: tuple[str, ...] | None = None
    """The tools that may be called in this turn; None for all that the run has."""
    calls_left: int | None = None
    failures_left: int | None = None
    disable_tools: bool = False
    failed: bool = False


Unit: TypeAlias = Literal["usd", "tokens", "seconds", "calls"]
"""What a limit counts. Seconds are the duration of model and tool calls; calls are tool calls."""
Level: TypeAlias = Literal["workspace", "agent", "thread", "run", "child"]
"""Where a limit was set, starting at the root of the tree. A child is a run that executes a call of another run."""
Period: TypeAlias = Literal["total", "day", "month"]
"""The period of a limit: all time, or each UTC day or month."""
OnExceeded: TypeAlias = Literal["stop", "final_turn", "ask"]
"""What happens to a run whose next call does not fit: it fails, answers in one more turn without tools, or waits until
a person raises the limit or asks it to answer.
"""


class BudgetRule(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The most that one run may spend, including everything below it. Stored in full, like `Limits`. None is
    unlimited; 0 allows nothing.
    """

    nusd: int | None = None
    tokens: int | None = None
    active_us: int | None = None
    calls: int | None = None
    on_exceeded: OnExceeded = "final_turn"

    def within(self, above: BudgetRule | None) -> BudgetRule:
        """The tighter of each limit."""
        if above is None:
            return self
        return BudgetRule(
            tighter(self.nusd, above.nusd),
            tighter(self.tokens, above.tokens),
            tighter(self.active_us, above.active_us),
            tighter(self.calls, above.calls),
            self.on_exceeded,
        )


class Held(_Head, frozen=True):
    """The worst case of a call, reserved while it runs."""

    day: int
    """The UTC day it is charged to, in days since the epoch. What was used in the end is charged to the same day."""
    on: tuple[str, ...]
    """The accounts: `workspace:…`, `agent:…`, `thread:…`, `run:…`."""
    nusd: int = 0
    tokens: int = 0
    calls: int = 0
    output: int = 0
    """The longest answer that the request allows, in tokens."""


class BudgetRefused(_Head, frozen=True, tag="budget.refused"):
    """A call does not fit into what is left, and does not begin. Amounts are in the smallest part of the unit."""

    level: Level
    unit: Unit
    limit: int
    spent: int
    reserved: int
    asked: int
    on: str
    """The account."""
    period: Period = "total"
    outcome: OnExceeded = "final_turn"
    final: bool = False
    """Not even the final turn fits."""
    model: str = ""
    """The model whose price is unknown, so that no money can be reserved for it."""


PARTS: dict[Unit, int] = {"usd": 1_000_000_000, "tokens": 1, "seconds": 1_000_000, "calls": 1}
"""How many of the smallest parts make up one unit."""
MAX_AMOUNT = 10**15
"""In smallest parts: a million dollars, or thirty years. Sums of such amounts fit into every store's integers."""


def smallest(unit: Unit, amount: float) -> int:
    """Converts a valid amount to the smallest parts of its unit."""
    return round(amount * PARTS[unit])


def greatest(unit: Unit) -> int:
    return MAX_AMOUNT // PARTS[unit]


def amount_issue(unit: Unit, amount: object) -> str:
    """Returns the problem with an amount, or "" if it is valid."""
    if isinstance(amount, bool) or not isinstance(amount, int | float) or amount != amount:
        return "must be a number"
    if amount < 0:
        return "must be 0 or more"
    if amount > greatest(unit):
        return f"must be at most {greatest(unit):,}"
    parts = PARTS[unit]
    if parts == 1:
        return "" if amount == int(amount) else "must be a whole number"
    if 0 < amount < 1 / parts:
        return f"must be 0, or at least {1 / parts:.{len(str(parts)) - 1}f}"
    return ""
