"""The log's vocabulary for the budget tree: what a run may spend, and what it has reserved.

A workspace, an agent, a thread and a run may each have limits; everything above a run in that tree is an *account* that
its calls are charged to. A call begins only if its worst case fits all of them. The fact that begins it records what is
reserved while it runs, and the fact that ends it records what was used; see `weftline.kernel.budgeting`. Money is in
billionths of a US dollar, time in microseconds.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from weftline.kernel.policy import tighter

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


class _Head(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Like `entries.Head`."""


class BudgetRule(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The most that one run may spend, including everything below it. Stored in full, like `Limits`. None is unlimited;
    0 allows nothing.
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
