"""B1 and B2: accounts match the logs, and never exceed their limits.

Checked after commits, whatever has died in between: the workspace's account, and those of runs, to which the calls of
the runs below them are charged too.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from campaigns.simulation.disk import Disk
from campaigns.simulation.orders import Order
from campaigns.simulation.trace import require
from weftline.kernel.entries import RunCreated, RunEnded
from weftline.kernel.policy import BudgetRule
from weftline.store.budgets import Limit, Sums, limits_of, workspace_account
from weftline.store.records import budgets
from weftline.store.rows import Write
from weftline.testing.budgets import Booked, booked, still_held

_COLUMNS = ("nusd", "tokens", "active_us", "calls", "held_nusd", "held_tokens", "held_calls")
_EVERY = 8
"""How many commits lie between two checks of all logs."""


class BudgetWatch:
    """Sets limits, and checks that they hold."""

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

    def committed(self, writes: Sequence[Write]) -> None:
        """After each commit."""
        self._within(self._account, self._limits)
        for account in {one.account for write in writes for one in write.bookings if one.account.startswith("run:")}:
            if (rule := self._rule(account)) is not None:
                self._within(account, limits_of(rule))
        self._commits += 1
        if self._commits % _EVERY == 0:
            self.compare()

    def _rule(self, account: str) -> BudgetRule | None:
        """What a run, including those below it, may spend."""
        facts = self._disk.facts(int(account.removeprefix("run:")))
        return facts[0].head.limits.budget if facts and isinstance(facts[0].head, RunCreated) else None

    def _within(self, account: str, limits: Sequence[Limit]) -> None:
        sums = Sums()
        for one in self._disk.read(budgets.use(account)):
            sums.add(one)
        for limit in limits:
            spent, reserved = sums.of(limit.unit)
            what = f"{account} has {spent} {limit.unit} spent and {reserved} reserved of {limit.amount}"
            require("B2", spent + reserved <= limit.amount and min(spent, reserved) >= 0, what)

    def compare(self) -> None:
        """B1: the accounts are the sums of the logs, and nothing stays reserved for what has ended."""
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
