"""Amounts of a budget: what may be given, whoever gives it, and the smallest parts that are counted."""

from __future__ import annotations

from weftline.kernel.budget import Unit

PARTS: dict[Unit, int] = {"usd": 1_000_000_000, "tokens": 1, "seconds": 1_000_000, "calls": 1}
"""How many of its smallest parts a unit has."""
MAX_AMOUNT = 10**15
"""Of smallest parts: a million dollars, thirty years. Sums of such amounts fit every store."""


def smallest(unit: Unit, amount: float) -> int:
    """An amount without issues, in the smallest parts of its unit."""
    return round(amount * PARTS[unit])


def greatest(unit: Unit) -> int:
    return MAX_AMOUNT // PARTS[unit]


def amount_issue(unit: Unit, amount: object) -> str:
    """What is wrong with an amount; "" if nothing."""
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
