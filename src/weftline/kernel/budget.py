"""The part of the log's vocabulary that is about the budget tree: what a run may spend, and what it has reserved.

Workspace, agent, thread and run each may have limits; whatever is above a run in that tree is an *account* that its
calls are booked on. A call begins only if its worst case fits all of them: the fact that begins it says what is held,
for as long as the call is under way, and the one that ends it says what was used; see `weftline.kernel.budgeting`.
Money is in billionths of a US dollar, time in microseconds.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from weftline.kernel.policy import tighter

Unit: TypeAlias = Literal["usd", "tokens", "seconds", "calls"]
"""Of a limit. Seconds are those of model and tool calls, calls are those of tools."""
Level: TypeAlias = Literal["workspace", "agent", "thread", "run", "child"]
"""Where a limit was set, from the root of the tree. A child is a run that carries out a call of another."""
Period: TypeAlias = Literal["total", "day", "month"]
"""What a limit is for: all time, or each day or month of UTC."""
OnExceeded: TypeAlias = Literal["stop", "final_turn", "ask"]
"""What becomes of a run whose next call does not fit: it fails, answers in one more turn without tools, or waits until
a person has raised the limit or wants it to answer.
"""


class _Head(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """As `entries.Head`."""


class BudgetRule(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What one run, with all below it, may spend. Stored in full, as `Limits` are. None is unlimited, 0 is nothing."""

    nusd: int | None = None
    tokens: int | None = None
    active_us: int | None = None
    calls: int | None = None
    on_exceeded: OnExceeded = "final_turn"

    def within(self, above: BudgetRule | None) -> BudgetRule:
        """The tighter of each."""
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
    """The worst case of a call, reserved while it is under way."""

    day: int
    """The day of UTC that it is booked on, and so is what was used in the end: days since the epoch."""
    on: tuple[str, ...]
    """The accounts: `workspace:…`, `agent:…`, `thread:…`, `run:…`."""
    nusd: int = 0
    tokens: int = 0
    calls: int = 0
    output: int = 0
    """The longest answer that the request asks for, in tokens."""


class BudgetRefused(_Head, frozen=True, tag="budget.refused"):
    """A call does not fit what is left, and does not begin. The numbers are in the unit's smallest part."""

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
    """The model without a known price, which money cannot be reserved for."""
