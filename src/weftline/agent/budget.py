"""Spending limits of an agent's runs."""

from __future__ import annotations

from weftline.kernel.policy import BudgetRule
from weftline.spec import groups
from weftline.spec.walk import require_group


class Budget(groups.Budget, frozen=True, kw_only=True):
    __doc__ = groups.Budget.__doc__

    def __post_init__(self) -> None:
        require_group(self, groups.Budget)


def rule_of(own: groups.Budget | None, above: groups.Budget | None) -> BudgetRule | None:
    """Returns a run's own budget, within its agent's."""
    budget = own if above is None else above if own is None else groups.tighter(groups.Budget, own, above)
    return None if budget is None else budget.rule
