"""B1 and B2: what accounts have is what the logs say, and never more than their limits.

Looked at after commits, whatever has died in between.
"""

from __future__ import annotations

from random import Random

from weftline.kernel.budget import BudgetRule
from weftline.kernel.entries import RunEnded
from weftline.store.budgets import Limit, Sums, workspace_account
from weftline.store.records import budgets
from weftline.testing.budgets import Booked, booked, still_held
from weftline.testing.simulation.disk import Disk
from weftline.testing.simulation.orders import Order
from weftline.testing.simulation.trace import require

_COLUMNS = ("nusd", "tokens", "active_us", "calls", "held_nusd", "held_tokens", "held_calls")
_EVERY = 8
"""Commits between two looks at all logs."""


class BudgetWatch:
    """Sets limits, and sees that they hold."""

    def __init__(self, disk: Disk, orders: dict[str, Order], rng: Random) -> None:
        self._disk = disk
        self._commits = 0
        outcome = rng.choice(("stop", "final_turn"))
        self._limits = [
            Limit("calls", rng.choice((3, 6, 12)), "total", outcome),
            Limit("tokens", rng.choice((40_000, 80_000, 10**6)), "day", "stop"),
        ]
        account = self._account = workspace_account(disk.workspace)
        disk.write(budgets.set_limits(account, self._limits, workspace=disk.workspace, by="the history", now=1))
        for order in orders.values():
            if not order.poison and rng.random() < 0.5:
                calls = rng.choice((None, 0, 1, 4))
                order.budget = BudgetRule(tokens=rng.choice((30_000, 10**6)), calls=calls, on_exceeded=outcome)

    def committed(self) -> None:
        """After each commit, and when the history is over."""
        sums = Sums()
        for one in self._disk.read(budgets.use(self._account)):
            sums.add(one)
        for limit in self._limits:
            spent, reserved = sums.of(limit.unit)
            what = f"{self._account} has {spent} {limit.unit} spent and {reserved} reserved of {limit.amount}"
            require("B2", spent + reserved <= limit.amount and min(spent, reserved) >= 0, what)
        self._commits += 1
        if self._commits % _EVERY == 0:
            self.compare()

    def compare(self) -> None:
        """B1: the accounts are the sums of the logs, and what has ended holds nothing."""
        stored, logged = Booked(), Booked()
        accounts = {self._account}
        for key in sorted(self._disk.memory.runs):
            facts = [entry.head for entry in self._disk.facts(key)]
            found = booked(facts)
            accounts |= {account for account, _, _ in found}
            logged.update(found)
            if facts and isinstance(facts[-1], RunEnded) and facts[-1].code != "worker_error":
                require("B1", not still_held(facts), f"run {key} has ended and still holds something")
        for account in accounts:
            for one in self._disk.read(budgets.use(account)):
                for column in _COLUMNS:
                    stored[account, one.day, column] += getattr(one, column)
        for place in {*stored, *logged}:
            require("B1", stored[place] == logged[place], f"{place} is {stored[place]}, the logs say {logged[place]}")
