"""The `policy` of a run's spec, as it was sent. It was checked on arrival, and is trusted here."""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct, json

from weftline.kernel.policy import PolicyRule, TagClause
from weftline.wire.json_text import encode

_NO_RULE = PolicyRule()


class WireClause(Struct, rename="camel", omit_defaults=True):
    allowed_any: tuple[str, ...] | None = None
    denied_any: tuple[str, ...] | None = None


class WirePolicy(Struct, rename="camel", omit_defaults=True):
    """A policy. A count or a time of 0 means no limit."""

    max_tool_calls: int | None = None
    per_turn_max_tool_calls: int | None = None
    max_consecutive_failed_tool_calls: int | None = None
    failure_counting: Literal["turn", "call"] | None = None
    time_budget_ms: int | None = None
    plan_timeout_ms: int | None = None
    tool_timeout_ms: int | None = None
    per_tool_timeout_ms: dict[str, int] | None = None
    finalizer_grace_ms: int | None = None
    restrict_to_tool: str | None = None
    allowed_tags: tuple[str, ...] | None = None
    denied_tags: tuple[str, ...] | None = None
    tag_clauses: tuple[WireClause, ...] | None = None
    on_missing_fields: Literal["resume", "finalize", "await_clarification"] | None = None
    interrupts_allowed: bool | None = None

    @property
    def rule(self) -> PolicyRule | None:
        """The rule; None if it limits nothing."""
        rule = PolicyRule(
            max_tool_calls=self.max_tool_calls or None,
            per_turn_max_tool_calls=self.per_turn_max_tool_calls or None,
            max_consecutive_failed_tool_calls=self.max_consecutive_failed_tool_calls or None,
            failure_counting=self.failure_counting or "turn",
            time_budget_us=_us(self.time_budget_ms),
            plan_timeout_us=_us(self.plan_timeout_ms),
            tool_timeout_us=_us(self.tool_timeout_ms),
            per_tool_timeout_us={tool: ms * 1000 for tool, ms in (self.per_tool_timeout_ms or {}).items() if ms},
            finalizer_grace_us=_us(self.finalizer_grace_ms),
            restrict_to_tool=self.restrict_to_tool,
            allowed_tags=self.allowed_tags,
            denied_tags=self.denied_tags or (),
            tag_clauses=tuple([TagClause(one.allowed_any, one.denied_any or ()) for one in self.tag_clauses or ()]),
            on_missing_fields=None if self.on_missing_fields == "resume" else self.on_missing_fields,
        )
        return None if rule == _NO_RULE else rule


_decode = json.Decoder(WirePolicy).decode
_decode_values = json.Decoder(dict[str, Raw]).decode
_NO_VALUE = (Raw(b"null"), Raw(b"0"))


def policy_within(own: Raw, above: Raw) -> Raw:
    """Returns the tighter of two policies: the run's own, and that of its agent or session."""
    one, other = _decode(own), _decode(above)
    rule = (one.rule or _NO_RULE).within(other.rule)
    interrupts = None if False not in (one.interrupts_allowed, other.interrupts_allowed) else False
    tight = WirePolicy(
        max_tool_calls=rule.max_tool_calls,
        per_turn_max_tool_calls=rule.per_turn_max_tool_calls,
        max_consecutive_failed_tool_calls=rule.max_consecutive_failed_tool_calls,
        failure_counting=rule.failure_counting,
        time_budget_ms=_ms(rule.time_budget_us),
        plan_timeout_ms=_ms(rule.plan_timeout_us),
        tool_timeout_ms=_ms(rule.tool_timeout_us),
        per_tool_timeout_ms={tool: us // 1000 for tool, us in rule.per_tool_timeout_us.items()} or None,
        finalizer_grace_ms=_ms(rule.finalizer_grace_us),
        restrict_to_tool=rule.restrict_to_tool,
        allowed_tags=rule.allowed_tags,
        denied_tags=rule.denied_tags or None,
        tag_clauses=tuple([WireClause(one.allowed_any, one.denied_any or None) for one in rule.tag_clauses]) or None,
        on_missing_fields=rule.on_missing_fields,
        interrupts_allowed=interrupts,
    )
    return Raw(encode(tight))


def policy_over(own: Raw, above: Raw) -> Raw:
    """Overrides one policy with another, value by value: null, and a count or time of 0, keep what is `above`."""
    given = {name: value for name, value in _decode_values(own).items() if value not in _NO_VALUE}
    if not any((_decode(own).per_tool_timeout_ms or {}).values()):
        given.pop("perToolTimeoutMs", None)
    return Raw(encode({**_decode_values(above), **given}))


def _us(ms: int | None) -> int | None:
    return ms * 1000 if ms else None


def _ms(us: int | None) -> int | None:
    return None if us is None else us // 1000
