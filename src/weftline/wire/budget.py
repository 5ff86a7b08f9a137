"""The `budget` of a run's spec, as it was sent. It was checked on arrival, and is trusted here."""

from __future__ import annotations

from msgspec import Raw, Struct, json

from weftline.kernel.policy import PARTS, BudgetRule, OnExceeded, smallest
from weftline.wire.json_text import encode


class WireBudget(Struct, rename="camel", omit_defaults=True):
    usd: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    calls: int | None = None
    on_exceeded: OnExceeded | None = None

    @property
    def rule(self) -> BudgetRule | None:
        """The rule; None if it limits nothing."""
        rule = BudgetRule(
            None if self.usd is None else smallest("usd", self.usd),
            self.tokens,
            None if self.seconds is None else smallest("seconds", self.seconds),
            self.calls,
            self.on_exceeded or "final_turn",
        )
        unlimited = rule.nusd is None and rule.tokens is None and rule.active_us is None and rule.calls is None
        return None if unlimited else rule


_decode = json.Decoder(WireBudget).decode


def budget_within(own: Raw, above: Raw) -> Raw:
    """Returns the tighter of two budgets: the run's own, and that of its agent or session."""
    one, other = _decode(own), _decode(above)
    rule = (one.rule or BudgetRule()).within(other.rule)
    tight = WireBudget(
        None if rule.nusd is None else rule.nusd / PARTS["usd"],
        rule.tokens,
        None if rule.active_us is None else rule.active_us / PARTS["seconds"],
        rule.calls,
        one.on_exceeded or other.on_exceeded,
    )
    return Raw(encode(tight))
