"""In what is booked on budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from campaigns.simulation.store import SimulatedLog
from msgspec.structs import replace

from simulation.planted.bug import BUDGETS, Bug
from weftline.kernel.state import State
from weftline.runtime import step as stepping
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.step import Step
from weftline.store.budgets import Booking
from weftline.store.rows import Write, Written


def forgets_reservations(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """The ledger knows what was spent, and nothing of what is under way."""
    account = work.account
    if account is not None and "add" not in vars(account.ledger):
        add = account.ledger.add
        zero = {"held_nusd": 0, "held_tokens": 0, "held_calls": 0}
        account.ledger.add = lambda bookings: add([replace(one, **zero) for one in bookings])
    return stepping.step(state, work, facts, at=at)


class ChangesBookings(SimulatedLog):
    """What is booked is not what the facts say."""

    def change(self, bookings: Sequence[Booking]) -> Sequence[Booking]:
        raise NotImplementedError

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return super().flush([replace(write, bookings=tuple(self.change(write.bookings))) for write in writes])


class SettlesTwice(ChangesBookings):
    def change(self, bookings: Sequence[Booking]) -> Sequence[Booking]:
        return [*bookings, *[one for one in bookings if one.held_tokens < 0]]


class RefundsEarly(ChangesBookings):
    """What is reserved is free again at once."""

    def change(self, bookings: Sequence[Booking]) -> Sequence[Booking]:
        return [replace(one, held_nusd=0, held_tokens=0, held_calls=0) for one in bookings]


BUGS = (
    Bug("forgets_reservations", "B2", step=lambda: forgets_reservations, among=BUDGETS),
    Bug("settles_twice", "B1 B2", log=SettlesTwice, among=BUDGETS),
    Bug("refunds_early", "B1", log=RefundsEarly, among=BUDGETS),
)
