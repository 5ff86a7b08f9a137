"""What the store keeps of the budget tree: the limits that were set, and what was spent, by account and day.

Use is a projection of the logs: each write of a run brings what its facts book, and both are one transaction.
"""

from __future__ import annotations

from msgspec import Struct

from weftline.kernel.budget import OnExceeded, Period, Unit


class Booking(Struct, frozen=True):
    """What is added to an account. What is held is added when a call begins, and taken away when it ends."""

    workspace: int
    account: str
    day: int
    nusd: int = 0
    tokens: int = 0
    active_us: int = 0
    calls: int = 0
    held_nusd: int = 0
    held_tokens: int = 0
    held_calls: int = 0

    @property
    def undone(self) -> Booking:
        return Booking(
            self.workspace,
            self.account,
            self.day,
            -self.nusd,
            -self.tokens,
            -self.active_us,
            -self.calls,
            -self.held_nusd,
            -self.held_tokens,
            -self.held_calls,
        )


class Limit(Struct, frozen=True):
    """The most that an account may have spent and reserved, in the unit's smallest part."""

    unit: Unit
    amount: int
    period: Period = "total"
    on_exceeded: OnExceeded = "final_turn"


class SetLimit(Limit, frozen=True):
    """A limit as somebody set it."""

    workspace: int = 0
    account: str = ""
    set_by: str = ""
    set_at: int = 0
