"""Spending limits of an agent's runs."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from weftline.kernel.policy import PARTS, BudgetRule, OnExceeded, amount_issue, smallest


class Budget(Struct, frozen=True, kw_only=True):
    """The most that each run may spend, together with its subagents' runs: 0 permits nothing, None is unlimited.

    The worst case of a call has to fit before it begins. `calls` are those of tools; `seconds` is the time that model
    and tool calls take. When something does not fit, the run answers in one more turn without tools, for which enough
    is kept (`final_turn`), fails (`stop`), or waits for a person (`ask`). Money needs a model whose price is known.
    """

    usd: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    calls: int | None = None
    on_exceeded: OnExceeded | None = None
    """By default its agent's, or `final_turn`."""

    def __post_init__(self) -> None:
        for name in PARTS:
            amount = getattr(self, name)
            if amount is not None and (issue := amount_issue(name, amount)):
                raise ValueError(f"{name} {issue}, not {amount!r}")
        if self.on_exceeded not in (None, "stop", "final_turn", "ask"):
            raise ValueError(f"on_exceeded must be stop, final_turn or ask, not {self.on_exceeded!r}")

    @property
    def rule(self) -> BudgetRule:
        return BudgetRule(
            None if self.usd is None else smallest("usd", self.usd),
            None if self.tokens is None else smallest("tokens", self.tokens),
            None if self.seconds is None else smallest("seconds", self.seconds),
            None if self.calls is None else smallest("calls", self.calls),
            self.on_exceeded or "final_turn",
        )


def rule_of(own: Budget | None, above: Budget | None) -> BudgetRule | None:
    """Returns a run's own budget, within its agent's."""
    if own is None:
        return None if above is None else above.rule
    if above is None:
        return own.rule
    return replace(own, on_exceeded=own.on_exceeded or above.on_exceeded).rule.within(above.rule)
