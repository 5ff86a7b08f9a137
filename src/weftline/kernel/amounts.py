"""Amounts of a budget: which values are valid, and the smallest unit in which they are counted."""

from __future__ import annotations

from weftline.kernel.budget import Unit

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
